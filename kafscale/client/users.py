"""Users and their passwords, as SCRAM has them (KIP-554): what the command line asks a broker for."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kafscale.client.client import Client
from kafscale.config import SaslMechanism
from kafscale.login.failures import check
from kafscale.security.verifiers import SCRAM_TYPES
from kafscale.wire.error_codes import RESOURCE_NOT_FOUND
from kafscale.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

_NUMBERS = {mechanism: number for number, mechanism in SCRAM_TYPES.items()}


@attrs.frozen(kw_only=True)
class SaltedPassword:
    """A password that nobody can read any more."""

    mechanism: SaslMechanism
    iterations: int
    salt: bytes = attrs.field(repr=False)
    salted_password: bytes = attrs.field(repr=False)


async def list_users(client: Client) -> dict[str, dict[SaslMechanism, int]]:
    """All users, with the number of iterations by mechanism. Raises KafkaError, BrokerUnavailable."""
    response = await client.request(DescribeUserScramCredentialsRequest(), DescribeUserScramCredentialsResponse)
    check(response.error_code, "users", response.error_message)
    return {
        each.user: {
            SCRAM_TYPES[info.mechanism]: info.iterations
            for info in each.credential_infos
            if info.mechanism in SCRAM_TYPES
        }
        for each in response.results
        if each.error_code != RESOURCE_NOT_FOUND
    }


async def set_password(client: Client, user: str, passwords: Sequence[SaltedPassword]) -> None:
    """Add a user, or change the password, for each mechanism one. Raises KafkaError, BrokerUnavailable."""
    for each in passwords:  # one request can't change a user twice
        upsertion = ScramCredentialUpsertion(
            name=user,
            mechanism=_NUMBERS[each.mechanism],
            iterations=each.iterations,
            salt=each.salt,
            salted_password=each.salted_password,
        )
        await _alter(client, AlterUserScramCredentialsRequest(upsertions=[upsertion]))


async def remove_user(client: Client, user: str, mechanisms: Sequence[SaslMechanism]) -> None:
    """Remove passwords of a user. Raises KafkaError, BrokerUnavailable."""
    for each in mechanisms:
        deletion = ScramCredentialDeletion(name=user, mechanism=_NUMBERS[each])
        await _alter(client, AlterUserScramCredentialsRequest(deletions=[deletion]))


async def _alter(client: Client, request: AlterUserScramCredentialsRequest) -> None:
    response = await client.request(request, AlterUserScramCredentialsResponse)
    for each in response.results:
        check(each.error_code, f"user '{each.user}'", each.error_message)
