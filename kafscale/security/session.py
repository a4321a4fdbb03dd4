"""The authentication of one connection, and its expiry. Sans-IO.

    HANDSHAKE ── SaslHandshake ──► EXCHANGE ── SaslAuthenticate… ──► AUTHENTICATED
                                      │                                 │  SaslHandshake, if there is an end (KIP-368)
                                      ▼                                 ▼
                                    FAILED ◄──────────────────────── EXCHANGE, of the same mechanism and principal

A request out of order is answered ILLEGAL_SASL_STATE and ends the connection, as does a failed login: the sender of the
answer checks `failure`. A session continues during a new login. `admits` decides which requests are allowed. Times are
seconds of a monotonic clock, and milliseconds since 1970 for tokens (`Moment`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from kafscale.config import SaslMechanism
from kafscale.security.exchanges import Challenge, DeriveKey, FetchKeys, Granted, Outcome, Refused, SaslExchange
from kafscale.security.principals import USER, Principal
from kafscale.wire.error_codes import (
    ILLEGAL_SASL_STATE,
    NONE,
    SASL_AUTHENTICATION_FAILED,
    UNSUPPORTED_SASL_MECHANISM,
    UNSUPPORTED_VERSION,
)

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36  # API keys
BEFORE: Final = frozenset({SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE})
AFTER: Final = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})
REAUTHENTICATION_LEAST_SECONDS: Final = 1.0  # between the beginnings of two, as in Kafka
EXCHANGE_MAX_COUNT: Final = 8  # messages of one login; SCRAM has two


class State(enum.Enum):
    HANDSHAKE = "handshake"
    EXCHANGE = "exchange"
    WRONG_MECHANISM = (
        "wrong mechanism"  # asked for when authenticating anew; told when the exchange begins, as in Kafka
    )
    AUTHENTICATED = "authenticated"
    FAILED = "failed"


@attrs.frozen
class Moment:
    seconds: float
    unix_ms: int


@attrs.frozen(kw_only=True)
class SaslAnswer:
    error_code: int = NONE
    message: str | None = None
    data: bytes = b""
    session_lifetime_ms: int = 0


Step = SaslAnswer | DeriveKey | FetchKeys


@attrs.define(eq=False, kw_only=True, repr=False)
class SaslSession:
    """Authentication of one connection. `max_session_ms` is 0 for no end; `failure` is the log's reason to end it."""

    mechanisms: Sequence[SaslMechanism]
    make_exchange: Callable[[SaslMechanism], SaslExchange]
    max_session_ms: int = 0
    state: State = attrs.field(default=State.HANDSHAKE, init=False)
    principal: Principal | None = attrs.field(default=None, init=False)
    mechanism: SaslMechanism | None = attrs.field(default=None, init=False)
    ends_at: float = attrs.field(default=math.inf, init=False)
    failure: str | None = attrs.field(default=None, init=False)
    _exchange: SaslExchange | None = attrs.field(default=None, init=False)
    _messages_count: int = attrs.field(default=0, init=False)
    _wanted: str = attrs.field(default="", init=False)
    _began_anew_at: float = attrs.field(default=-math.inf, init=False)

    @property
    def is_authenticated(self) -> bool:
        """Tell whether a login has succeeded, also if the session has ended since."""
        return self.principal is not None

    @property
    def is_under_way(self) -> bool:
        """Tell whether a login has begun and not ended."""
        return self.state in (State.EXCHANGE, State.WRONG_MECHANISM)

    def admits(self, api_key: int, now_seconds: float) -> bool:
        if self.state is State.FAILED:
            return False
        if self.principal is None:
            return api_key in BEFORE
        return now_seconds < self.ends_at or api_key in AFTER

    def handshake(self, version: int, mechanism: str, now: Moment) -> int:
        """Take a SaslHandshake, and return the error code of its answer."""
        if self.state is State.AUTHENTICATED:
            is_possible = self.ends_at < math.inf
            if not is_possible or now.seconds - self._began_anew_at < REAUTHENTICATION_LEAST_SECONDS:
                return ILLEGAL_SASL_STATE  # as in Kafka the connection goes on
            self._began_anew_at = now.seconds
        elif self.state is not State.HANDSHAKE:
            return self._fail(ILLEGAL_SASL_STATE, "a SaslHandshake during the exchange")
        if version == 0:
            return self._fail(UNSUPPORTED_VERSION, "SaslHandshake version 0, whose tokens come without requests")
        if mechanism not in self.mechanisms:
            return self._fail(UNSUPPORTED_SASL_MECHANISM, f"the mechanism {mechanism[:40]!r}, which is not enabled")
        wanted = SaslMechanism(mechanism)
        if self.mechanism is not None and wanted is not self.mechanism:
            self._wanted, self.state = mechanism, State.WRONG_MECHANISM
            return NONE
        self.mechanism = wanted
        self._exchange, self._messages_count = self.make_exchange(wanted), 0
        self.state = State.EXCHANGE
        return NONE

    def authenticate(self, data: bytes, now: Moment) -> Step:
        """Take a SaslAuthenticate; return its answer, or a request to the caller."""
        if self.state is State.AUTHENTICATED:
            text = "SaslAuthenticate request received after successful authentication"
            return SaslAnswer(error_code=ILLEGAL_SASL_STATE, message=text)
        if self.state is State.WRONG_MECHANISM:
            text = (
                f"SASL mechanism '{self._wanted}' requested by client is not supported for re-authentication of "
                f"mechanism '{self.mechanism}'"
            )
            return SaslAnswer(error_code=self._fail(SASL_AUTHENTICATION_FAILED, text), message=text)
        if self.state is not State.EXCHANGE or self._exchange is None:
            text = "a SaslAuthenticate without a SaslHandshake before it"
            return SaslAnswer(error_code=self._fail(ILLEGAL_SASL_STATE, text), message=text)
        self._messages_count += 1
        if self._messages_count > EXCHANGE_MAX_COUNT:
            return self._step(Refused("an exchange without an end"), now)
        return self._step(self._exchange.send(data, now.unix_ms), now)

    def resume(self, result: bytes, now: Moment) -> Step:
        """Continue with the result of a request to the caller."""
        assert self._exchange is not None
        return self._step(self._exchange.send(result, now.unix_ms), now)

    def _step(self, outcome: Outcome, now: Moment) -> Step:
        if isinstance(outcome, Challenge):
            return SaslAnswer(data=outcome.data)
        if isinstance(outcome, Refused):
            return self._refuse(outcome)
        if isinstance(outcome, Granted):
            return self._grant(outcome, now)
        return outcome

    def _refuse(self, refused: Refused) -> SaslAnswer:
        again = "re-authentication" if self.is_authenticated else "authentication"
        general = (
            f"Authentication failed during {again} due to invalid credentials with SASL mechanism {self.mechanism}"
        )
        code = self._fail(SASL_AUTHENTICATION_FAILED, f"{again} by {self.mechanism} has failed: {refused.why}")
        return SaslAnswer(error_code=code, message=refused.message or general)

    def _grant(self, granted: Granted, now: Moment) -> SaslAnswer:
        principal = Principal(USER, granted.name)
        before = self.principal
        if before is not None and principal != before:
            text = (
                f"Cannot change principals during re-authentication from {before.type}.{before.name}: "
                f"{principal.type}.{principal.name}"
            )
            return self._refuse(Refused("another user than before", text))
        lifetimes_ms = [self.max_session_ms] if self.max_session_ms else []
        if granted.expires_at_ms is not None:
            lifetimes_ms.append(max(0, granted.expires_at_ms - now.unix_ms))
        lifetime_ms = min(lifetimes_ms, default=0)
        self.ends_at = now.seconds + lifetime_ms / 1000 if lifetimes_ms else math.inf
        self.principal, self.state, self._exchange = principal, State.AUTHENTICATED, None
        return SaslAnswer(data=granted.data, session_lifetime_ms=lifetime_ms)

    def _fail(self, error_code: int, why: str) -> int:
        self.state, self.failure, self._exchange = State.FAILED, why, None
        return error_code
