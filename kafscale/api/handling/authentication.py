"""The slow part of SASL sessions (`kafscale.security.session`): derive keys in threads, fetch keys, delay refusals.

A derivation takes milliseconds of CPU time, so only a few run at once. Client addresses take turns. When too many
derivations wait, one of the address with the most is refused: a flood of wrong passwords crowds out only itself. Right
passwords are remembered by a keyed hash, so that returning clients do not wait.
"""

from __future__ import annotations

import hmac
import os
import time
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from kafscale.cluster.registries.scram_users import ScramUsers
from kafscale.concurrency.turns import Crowded, FairTurns
from kafscale.config import SaslMechanism, SaslSettings
from kafscale.errors import ProtocolError
from kafscale.lru import LruCache
from kafscale.metrics import CounterFamily, Metrics
from kafscale.security.exchanges import DeriveKey, SaslExchange, plain, scram
from kafscale.security.session import Moment, SaslAnswer, SaslSession
from kafscale.security.verifiers import salt_password

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

DERIVATIONS_COUNT = 2  # at once, of 4 to 12 ms each: half of 4 cores
WAITING_MAX_COUNT = 1000  # derivations: 5 s of work
KNOWN_MAX_COUNT = 10_000  # right passwords, 300 bytes each


class TokenKeys(Protocol):
    @property
    def current(self) -> KeySet | None: ...

    async def fetch(self) -> None:
        """Try to read the keys again, unless that was done lately. Does not raise."""
        ...


@attrs.define(eq=False, kw_only=True, repr=False)
class Authenticator:
    settings: SaslSettings
    users: ScramUsers
    metrics: Metrics
    token_keys: TokenKeys
    _outcomes: CounterFamily = attrs.field(init=False)
    _deriving: FairTurns = attrs.field(factory=lambda: FairTurns(DERIVATIONS_COUNT, WAITING_MAX_COUNT), init=False)
    _secret: bytes = attrs.field(factory=lambda: os.urandom(32), init=False)  # of this process, for `_known`
    _known: LruCache[bytes, bytes] = attrs.field(factory=lambda: LruCache(KNOWN_MAX_COUNT), init=False)

    def __attrs_post_init__(self) -> None:
        self._outcomes = self.metrics.counter(
            "kafscale_authentications_total", "Logins of clients, by mechanism and outcome.", "mechanism", "outcome"
        )

    def prepare(self) -> None:
        """Import the modules of the mechanisms, which takes up to 0.1 s, before the first login."""
        for mechanism in self.settings.sasl_mechanisms:
            self._make_exchange(mechanism)

    def open_session(self) -> SaslSession:
        return SaslSession(
            mechanisms=self.settings.sasl_mechanisms,
            make_exchange=self._make_exchange,
            max_session_ms=self.settings.connections_max_reauth_ms,
        )

    def _make_exchange(self, mechanism: SaslMechanism) -> SaslExchange:
        if mechanism is SaslMechanism.PLAIN:
            return SaslExchange(plain(self.users))
        if mechanism is SaslMechanism.OAUTHBEARER:
            from kafscale.security.oauthbearer import NO_KEYS, TokenPolicy, oauthbearer

            return SaslExchange(oauthbearer(TokenPolicy(self.settings), lambda: self.token_keys.current or NO_KEYS))
        return SaslExchange(scram(mechanism, self.users))

    async def handshake(self, session: SaslSession, version: int, mechanism: str) -> int:
        """Return the error code of a SaslHandshake, after a delay if it ends the connection."""
        error_code = session.handshake(version, mechanism, _now())
        if session.failure is not None:
            await self._delay()
        return error_code

    async def authenticate(self, session: SaslSession, data: bytes, host: str) -> SaslAnswer:
        """Return the answer to a SaslAuthenticate, after a delay if it ends the connection. Raises ProtocolError."""
        step = session.authenticate(data, _now())
        del data
        derived: dict[bytes, bytes] = {}
        while not isinstance(step, SaslAnswer):
            if isinstance(step, DeriveKey):
                question = self._hash(step)
                result = derived[question] = self._known.get(question) or await self._derive(step, host)
            else:
                result = await self._fetch()
            step = session.resume(result, _now())
        mechanism = "none" if session.mechanism is None else session.mechanism.value
        if session.failure is not None:
            self._outcomes.of(mechanism, "failed").value += 1
            await self._delay()
        elif not session.is_under_way:
            self._outcomes.of(mechanism, "succeeded").value += 1
            self._remember(derived)
        return step

    async def _derive(self, asked: DeriveKey, host: str) -> bytes:
        try:
            async with self._deriving.turn(host):
                return await trio.to_thread.run_sync(
                    salt_password, asked.mechanism, asked.password, asked.salt, asked.iterations
                )
        except Crowded as exc:
            raise ProtocolError(f"{WAITING_MAX_COUNT} logins already wait for a derivation of keys") from exc

    def _hash(self, asked: DeriveKey) -> bytes:
        told = (asked.mechanism.value.encode(), asked.salt, str(asked.iterations).encode(), asked.password)
        return hmac.digest(self._secret, b"".join(len(part).to_bytes(4) + part for part in told), "sha256")

    def _remember(self, derived: dict[bytes, bytes]) -> None:
        """Remember right keys. A new password has another salt, and so another hash."""
        for question, result in derived.items():
            self._known.put(question, result)

    async def _fetch(self) -> bytes:
        await self.token_keys.fetch()
        return b""

    async def _delay(self) -> None:
        await trio.sleep(self.settings.connection_failed_authentication_delay_ms / 1000)


def _now() -> Moment:
    return Moment(trio.current_time(), time.time_ns() // 1_000_000)
