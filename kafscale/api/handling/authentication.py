"""Does for sessions of SASL what takes time: derivations of keys in threads, fetches of keys, delays of refusals.

The state machine is `kafscale.security.session`. A derivation takes milliseconds of CPU time; so few are under way at
once that the rest of the broker goes on, and so many wait that they are over before clients give up. Whoever comes
beyond that is disconnected, and tries again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from kafscale.cluster.scram_users import ScramUsers
from kafscale.config import SaslMechanism, SaslSettings
from kafscale.errors import ProtocolError
from kafscale.metrics import CounterFamily, Metrics
from kafscale.security.exchanges import DeriveKey, Exchange
from kafscale.security.plain import PlainExchange
from kafscale.security.scram import ScramExchange
from kafscale.security.session import Answer, Moment, SaslSession
from kafscale.security.verifiers import salt_password

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

DERIVATIONS_COUNT = 2  # at once: half of what 4 cores have; one takes 4 to 12 ms
WAITING_MAX_COUNT = 1000  # of derivations: 5 s of work


class TokenKeys(Protocol):
    """The keys that sign tokens, as far as they are known."""

    @property
    def current(self) -> KeySet | None: ...

    async def fetch(self) -> None:
        """Read them again, unless that was done lately or is impossible. Returns when it has been tried."""
        ...


@attrs.frozen
class NoTokenKeys:
    """Where OAUTHBEARER is not enabled."""

    current: KeySet | None = None

    async def fetch(self) -> None:
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False, kw_only=True, repr=False)
class Authenticator:
    """Shared by all connections of a broker."""

    settings: SaslSettings
    users: ScramUsers
    metrics: Metrics
    token_keys: TokenKeys = attrs.field(factory=NoTokenKeys)
    _outcomes: CounterFamily = attrs.field(init=False)
    _deriving: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(DERIVATIONS_COUNT), init=False)

    def __attrs_post_init__(self) -> None:
        self._outcomes = self.metrics.counter(
            "kafscale_authentications_total", "Logins of clients.", "mechanism", "outcome"
        )

    def prepare(self) -> None:
        """Import what the mechanisms need, for up to 0.1 s: the first login would do so while others are served."""
        for mechanism in self.settings.sasl_mechanisms:
            self._make_exchange(mechanism)

    def open_session(self) -> SaslSession:
        """Begin the session of one connection."""
        return SaslSession(
            mechanisms=self.settings.sasl_mechanisms,
            make_exchange=self._make_exchange,
            max_session_ms=self.settings.connections_max_reauth_ms,
        )

    def _make_exchange(self, mechanism: SaslMechanism) -> Exchange:
        if mechanism is SaslMechanism.PLAIN:
            return PlainExchange(self.users)
        if mechanism is SaslMechanism.OAUTHBEARER:
            return self._make_oauthbearer()
        return ScramExchange(mechanism, self.users)

    def _make_oauthbearer(self) -> Exchange:
        from kafscale.security.oauthbearer import OauthbearerExchange  # only where they are enabled: 100 ms
        from kafscale.security.tokens import NO_KEYS, TokenPolicy

        return OauthbearerExchange(TokenPolicy.of(self.settings), lambda: self.token_keys.current or NO_KEYS)

    async def handshake(self, session: SaslSession, version: int, mechanism: str) -> int:
        """Return the error code of a SaslHandshake's answer, late if it ends the connection."""
        error_code = session.handshake(version, mechanism, _now())
        if session.failure is not None:
            await self._delay()
        return error_code

    async def authenticate(self, session: SaslSession, data: bytes) -> Answer:
        """Return what to answer to a SaslAuthenticate, late if it ends the connection. Raises ProtocolError."""
        step = session.authenticate(data, _now())
        del data
        while not isinstance(step, Answer):
            result = await self._derive(step) if isinstance(step, DeriveKey) else await self._fetch()
            step = session.resume(result, _now())
        mechanism = "none" if session.mechanism is None else session.mechanism.value
        if session.failure is not None:
            self._outcomes.of(mechanism, "failed").value += 1
            await self._delay()
        elif not session.is_under_way:
            self._outcomes.of(mechanism, "succeeded").value += 1
        return step

    async def _derive(self, asked: DeriveKey) -> bytes:
        if self._deriving.statistics().tasks_waiting >= WAITING_MAX_COUNT:
            raise ProtocolError(f"{WAITING_MAX_COUNT} logins wait for a derivation of keys already")
        return await trio.to_thread.run_sync(
            salt_password,
            *(asked.mechanism, asked.password, asked.salt, asked.iterations),
            limiter=self._deriving,
        )

    async def _fetch(self) -> bytes:
        await self.token_keys.fetch()
        return b""

    async def _delay(self) -> None:
        await trio.sleep(self.settings.connection_failed_authentication_delay_ms / 1000)


def _now() -> Moment:
    return Moment(trio.current_time(), time.time_ns() // 1_000_000)
