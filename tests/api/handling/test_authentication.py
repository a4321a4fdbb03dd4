"""Slow logins: one client's do not keep out another's."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kafscale.api.handling import authentication
from kafscale.api.handling.authentication import Authenticator
from kafscale.concurrency.turns import FairTurns
from kafscale.config import SaslMechanism, SaslSettings
from kafscale.metrics import Metrics
from kafscale.security.verifiers import salt_password
from kafscale.server.token_keys import PublishedKeys
from kafscale.wire.error_codes import NONE, SASL_AUTHENTICATION_FAILED
from tests.devtools.processes.sasl import Users, plain_message

FLOOD_COUNT = 60
FLOOD_HOST, HONEST_HOST = "192.0.2.66", "192.0.2.1"


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The passwords of which keys were derived, in order."""
    passwords: list[bytes] = []

    def note(mechanism: SaslMechanism, password: bytes, salt: bytes, iterations: int) -> bytes:
        passwords.append(password)
        return salt_password(mechanism, password, salt, iterations)

    monkeypatch.setattr(authentication, "salt_password", note)
    return passwords


@pytest.fixture
def authenticator() -> Authenticator:
    users: Any = Users()
    settings = SaslSettings(sasl_mechanisms=(SaslMechanism.PLAIN,), connection_failed_authentication_delay_ms=0)
    made = Authenticator(settings=settings, users=users, metrics=Metrics(), token_keys=PublishedKeys.of(settings))
    made._deriving = FairTurns(1, FLOOD_COUNT // 2)
    return made


async def log_in(authenticator: Authenticator, host: str, message: bytes) -> int:
    """The error code of a login."""
    session = authenticator.open_session()
    await authenticator.handshake(session, 1, "PLAIN")
    return (await authenticator.authenticate(session, message, host)).error_code


async def flood(authenticator: Authenticator, nursery: trio.Nursery, refused: list[Exception]) -> None:
    async def log_in_wrongly(number: int) -> None:
        try:
            code = await log_in(authenticator, FLOOD_HOST, plain_message(password=f"wrong {number}"))
            assert code == SASL_AUTHENTICATION_FAILED
        except Exception as exc:
            refused.append(exc)

    for number in range(FLOOD_COUNT):
        nursery.start_soon(log_in_wrongly, number)
    await trio.testing.wait_all_tasks_blocked()


async def test_wrong_logins_from_one_address_do_not_keep_out_another(
    nursery: trio.Nursery, authenticator: Authenticator, derived: list[bytes]
) -> None:
    refused: list[Exception] = []
    await flood(authenticator, nursery, refused)
    assert len(refused) == FLOOD_COUNT - FLOOD_COUNT // 2 - 1, "it has filled the queue"
    assert await log_in(authenticator, HONEST_HOST, plain_message()) == NONE
    assert len(derived) <= 4, "it had the next turn"


async def test_a_repeated_login_does_not_queue_behind_a_flood_of_logins(
    nursery: trio.Nursery, authenticator: Authenticator, derived: list[bytes]
) -> None:
    assert await log_in(authenticator, FLOOD_HOST, plain_message()) == NONE
    refused: list[Exception] = []
    await flood(authenticator, nursery, refused)
    before = len(derived)
    assert await log_in(authenticator, FLOOD_HOST, plain_message()) == NONE
    assert len(derived) <= before + 1


async def test_a_changed_or_removed_password_is_refused_after_an_earlier_login(authenticator: Authenticator) -> None:
    users: Any = authenticator.users
    assert await log_in(authenticator, HONEST_HOST, plain_message()) == NONE
    users.passwords["alice"] = "another one"
    assert await log_in(authenticator, HONEST_HOST, plain_message()) == SASL_AUTHENTICATION_FAILED
    del users.passwords["alice"]
    assert await log_in(authenticator, HONEST_HOST, plain_message()) == SASL_AUTHENTICATION_FAILED
