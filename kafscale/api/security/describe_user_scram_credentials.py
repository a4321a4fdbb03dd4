"""DescribeUserScramCredentials (50, KIP-554): users with passwords and their mechanisms.

v0  (flexible) all users, or those that are named

The answer has mechanisms and numbers of iterations, nothing that helps to guess a password.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import in_turns
from kafscale.config import SaslMechanism
from kafscale.security.verifiers import SCRAM_TYPES
from kafscale.wire.error_codes import DUPLICATE_RESOURCE, RESOURCE_NOT_FOUND
from kafscale.wire.messages.security import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from kafscale.wire.schema import mapped

TYPES = {mechanism: number for number, mechanism in SCRAM_TYPES.items()}


async def handle(
    services: Services, call: Call, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    described = services.scram_users.iterations()
    is_repeated: dict[str, bool] = {}
    async for user in in_turns(request.users or ()):
        is_repeated[user.name] = user.name in is_repeated
    if not is_repeated:
        is_repeated = dict.fromkeys(sorted(described), False)

    def result(of: tuple[str, bool]) -> DescribeUserScramCredentialsResult:
        user, repeated = of
        return _result(user, described.get(user, {}), is_repeated=repeated)

    return DescribeUserScramCredentialsResponse(results=mapped(result, is_repeated.items()))


def _result(
    user: str, iterations: dict[SaslMechanism, int], *, is_repeated: bool
) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=user)
    if is_repeated:
        result.error_code = DUPLICATE_RESOURCE
        result.error_message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    elif iterations:
        result.credential_infos = list(_infos(iterations.items()))
    else:
        result.error_code = RESOURCE_NOT_FOUND
        result.error_message = f"Attempt to describe a user credential that does not exist: {user}"
    return result


def _infos(iterations: Iterable[tuple[SaslMechanism, int]]) -> Iterable[CredentialInfo]:
    for mechanism, count in sorted(iterations):
        yield CredentialInfo(mechanism=TYPES[mechanism], iterations=count)


API = Api(
    50,
    "DescribeUserScramCredentials",
    0,
    0,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    handle,
)
