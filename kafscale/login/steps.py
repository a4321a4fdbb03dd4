"""SASL logins as steps: the next request by the broker's last answer.

    login = LoginSteps(sasl, address)
    request = login.next(None)
    while request is not None:
        request = login.next(<the answer, a `login.response_class`>)

A step may read a token, or derive a key for some milliseconds, so run it in a thread. A session with an end (KIP-368)
is not renewed: the client connects anew before.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import attrs

from kafscale.config import Address, SaslMechanism
from kafscale.errors import KafkaError
from kafscale.login.failures import check
from kafscale.login.sasl import ClientSasl
from kafscale.login.scram import load_scramp
from kafscale.wire.error_codes import SASL_AUTHENTICATION_FAILED
from kafscale.wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

HANDSHAKE_VERSION = 1
# What a broker may ask for: at 1,000,000, a second. Kafka's allow 16,384.
ITERATIONS_MOST = 1_000_000
SESSION_FRACTION = 0.85  # after which the next request goes over a new connection; Java's clients renew it by then

Request = SaslHandshakeRequest | SaslAuthenticateRequest
Steps = Generator[Request, Any, None]
Parts = Generator[Request, Any, bytes]


@attrs.define(eq=False, repr=False)
class LoginSteps:
    """One login. `session_seconds` is the length of its session; None for no end."""

    sasl: ClientSasl
    address: Address
    session_seconds: float | None = attrs.field(default=None, init=False)
    _steps: Steps = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._steps = self._all()

    def next(self, answer: SaslHandshakeResponse | SaslAuthenticateResponse | None) -> Request | None:
        """Return the next request, None after the login. Raises KafkaError, ConfigError, BrokerUnavailable."""
        try:
            return self._steps.send(answer)
        except StopIteration:
            return None

    @property
    def about(self) -> str:
        return f"login as {self.sasl.username or 'the owner of a token'} by {self.sasl.mechanism} at {self.address}"

    def _all(self) -> Steps:
        answer: SaslHandshakeResponse = yield SaslHandshakeRequest(mechanism=self.sasl.mechanism.value)
        offered = f"the broker has {', '.join(answer.mechanisms)}" if answer.mechanisms else None
        check(answer.error_code, self.about, offered)
        if self.sasl.mechanism is SaslMechanism.PLAIN:
            yield from self._send(f"\0{self.sasl.username}\0{self.sasl.password}".encode())
        elif self.sasl.mechanism is SaslMechanism.OAUTHBEARER:
            yield from self._token()
        else:
            yield from self._scram()

    def _send(self, data: bytes) -> Parts:
        answer: SaslAuthenticateResponse = yield SaslAuthenticateRequest(auth_bytes=data)
        check(answer.error_code, self.about, answer.error_message)
        self.session_seconds = answer.session_lifetime_ms / 1000 if answer.session_lifetime_ms > 0 else None
        return bytes(answer.auth_bytes)

    def _token(self) -> Steps:
        assert self.sasl.tokens is not None
        if (yield from self._send(f"n,,\x01auth=Bearer {self.sasl.tokens.get().text}\x01\x01".encode())):
            # It says what is wrong, and fails when it is told that this was heard (RFC 7628).
            yield from self._send(b"\x01")
            raise KafkaError(SASL_AUTHENTICATION_FAILED, f"{self.about}: the token is refused")

    def _scram(self) -> Steps:
        scramp = load_scramp()
        try:
            client = scramp.ScramClient([self.sasl.mechanism.value], self.sasl.username, self.sasl.password)
            first = yield from self._send(client.get_client_first().encode())
            client.set_server_first(first.decode())
            if int(client.iterations) > ITERATIONS_MOST:
                raise scramp.ScramException(f"it asks for {client.iterations} iterations")
            client.set_server_final((yield from self._send(client.get_client_final().encode())).decode())
        except (scramp.ScramException, UnicodeDecodeError) as exc:
            raise KafkaError(
                SASL_AUTHENTICATION_FAILED, f"{self.about}: the broker does not do as SCRAM has it: {exc}"
            ) from exc
