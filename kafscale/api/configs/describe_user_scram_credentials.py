"""DescribeUserScramCredentials (50, KIP-554): which users have passwords for SCRAM, of whom there are none.

v0  (flexible) all users, or those that are named

`kafka-configs.sh --describe --entity-type users` asks for them beside the quotas of users. Clients do not authenticate,
so that none can be made: AlterUserScramCredentials is not served.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import in_turns
from kafscale.wire.error_codes import DUPLICATE_RESOURCE, RESOURCE_NOT_FOUND
from kafscale.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from kafscale.wire.schema import mapped


async def handle(
    services: Services, call: Call, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    is_repeated: dict[str, bool] = {}
    async for user in in_turns(request.users or ()):
        is_repeated[user.name] = user.name in is_repeated
    return DescribeUserScramCredentialsResponse(results=mapped(_result, is_repeated.items()))


def _result(of: tuple[str, bool]) -> DescribeUserScramCredentialsResult:
    user, is_repeated = of
    result = DescribeUserScramCredentialsResult(user=user, error_code=RESOURCE_NOT_FOUND)
    result.error_message = f"Attempt to describe a user credential that does not exist: {user}"
    if is_repeated:
        result.error_code = DUPLICATE_RESOURCE
        result.error_message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    return result


API = Api(
    50,
    "DescribeUserScramCredentials",
    0,
    0,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    handle,
)
