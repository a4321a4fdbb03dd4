"""Connections from broker to broker: made as any client's, with TLS and a login, and proved by a secret.

Any client may connect to the listener. So each start of a broker makes a secret, whose hash is in its broker record.
BrokerHeartbeat has the sender's id, incarnation and secret; its receiver compares the hash with the sender's record.
The secret itself is stored nowhere; TLS hides it on the network.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs
import trio

from kafscale.cluster.membership.records import BrokerRecord, BrokerState
from kafscale.cluster.membership.state import ClusterState
from kafscale.concurrency.clocks import elapsed
from kafscale.concurrency.signals import Signal
from kafscale.config import Address, SecurityProtocol, Settings
from kafscale.errors import BrokerUnavailable, ConfigError, ProtocolError, StartupError
from kafscale.wire.error_codes import BROKER_ID_NOT_REGISTERED, CLUSTER_AUTHORIZATION_FAILED, NONE, STALE_BROKER_EPOCH
from kafscale.wire.messages.brokers import OwnHeartbeatRequest

if TYPE_CHECKING:
    from kafscale.login.security import ClientSecurity

CLIENT_ID = "kafscale-broker"
LOCATION = ".location"  # what settings that name a file end with


R = TypeVar("R")


class PeerConnection(Protocol):
    """A connection to another broker."""

    async def request(self, message: object, response_class: type[R]) -> R:
        """Send one request and wait for its reply. Raises BrokerUnavailable, ProtocolError, KafkaError."""

    async def aclose(self) -> None:
        """Close it."""


Connect = Callable[[int, BrokerRecord], Awaitable[PeerConnection]]


@attrs.define(eq=False, repr=False)
class InterBrokerLogin:
    """Credentials of this broker towards others, and trusted certificates: the file of `--inter-broker-config`."""

    path: Path
    security: ClientSecurity = attrs.field(init=False)
    paths: Sequence[Path] = attrs.field(init=False)
    what: str = attrs.field(default="the file of --inter-broker-config", init=False)

    @classmethod
    def open(cls, settings: Settings) -> InterBrokerLogin | None:
        """Read the file, if the settings name one. Raises StartupError."""
        if settings.inter_broker_config is None:
            return None
        login = cls(settings.inter_broker_config)
        login.security, login.paths = login._read()
        return login

    def load(self) -> None:
        """Read the file again, for new connections. Raises StartupError, and changes nothing then."""
        security, paths = self._read()
        if security.protocol is not self.security.protocol:
            raise StartupError(
                f"--inter-broker-config {self.path}: security.protocol is {security.protocol.value} now, and was "
                f"{self.security.protocol.value}; restart the broker for that"
            )
        self.security, self.paths = security, paths

    def _read(self) -> tuple[ClientSecurity, Sequence[Path]]:
        from kafscale.login.properties import read_properties  # a broker that is alone has no use for these
        from kafscale.login.security import client_security

        try:
            properties = read_properties(self.path)
            named = [Path(value) for name, value in properties.items() if name.endswith(LOCATION)]
            return client_security(properties), [self.path, *named]
        except ConfigError as exc:
            raise StartupError(f"--inter-broker-config {self.path}: {exc}") from exc


def peer_connector(settings: Settings, login: InterBrokerLogin | None) -> Connect | None:
    """Return `connect`, or None if no listener is secured as this broker connects. Raises ConfigError."""
    protocol = _protocol(login)
    listener = settings.inter_broker_listener or _first_listener(settings, protocol)
    if listener is None:
        return None
    (wanted,) = (settings.protocol_of(name) for name in settings.listeners if name.name == listener)
    if wanted is not protocol:
        raise ConfigError(
            f"--inter-broker-listener: '{listener}' is {wanted.value}, and this broker connects by {protocol.value}; "
            "allowed: with a file --inter-broker-config that has the same security.protocol"
        )
    timeout_seconds = settings.broker_session_timeout_seconds

    async def connect(broker_id: int, record: BrokerRecord) -> PeerConnection:
        from kafscale.client.connection import connect_to  # a broker that is alone has no use for it
        from kafscale.login.security import PLAINTEXT

        endpoint = record.endpoints.get(listener)
        if endpoint is None:
            raise BrokerUnavailable(f"broker {broker_id} has no listener {listener}: give all brokers one of that name")
        address = Address(endpoint.host, endpoint.port)
        return await connect_to(
            address, CLIENT_ID, timeout_seconds, security=PLAINTEXT if login is None else login.security
        )

    return connect


def _protocol(login: InterBrokerLogin | None) -> SecurityProtocol:
    return SecurityProtocol.PLAINTEXT if login is None else login.security.protocol


def _first_listener(settings: Settings, protocol: SecurityProtocol) -> str | None:
    return next((listener.name for listener in settings.listeners if settings.protocol_of(listener) is protocol), None)


SECRET_BYTES = 32
CLAIM_LOOK_SECONDS = 1.0  # between two looks at the metadata for unknown incarnations


def hash_of(secret: bytes) -> bytes:
    return sha256(secret).digest()


@attrs.define(eq=False, kw_only=True, repr=False)
class Senders:
    """Tells genuine brokers from clients. `look_soon` makes this broker look for a later revision of the metadata."""

    state: ClusterState
    revision: Callable[[], int]
    look_soon: Callable[[int], None]
    _looked_at: float = attrs.field(default=-math.inf, init=False)

    def error_code(self, request: OwnHeartbeatRequest) -> int:
        """Return NONE for a genuine sender, STALE_BROKER_EPOCH for an incarnation that has a successor,
        CLUSTER_AUTHORIZATION_FAILED for a wrong secret, and BROKER_ID_NOT_REGISTERED for an unknown incarnation: then
        this broker looks, as that one may have begun a moment ago.
        """
        record = self.state.brokers.get(request.broker_id)
        if record is None or record.incarnation < request.broker_epoch:
            self._look_seldom()
            return BROKER_ID_NOT_REGISTERED
        if record.incarnation > request.broker_epoch:
            return STALE_BROKER_EPOCH
        return NONE if _fits(request.secret, record) else CLUSTER_AUTHORIZATION_FAILED

    def look_for_newer(self, request: OwnHeartbeatRequest) -> None:
        """Look for metadata that a genuine sender knows and this broker does not."""
        revision = request.current_metadata_offset
        if revision > self.revision():
            self.look_soon(revision)

    def _look_seldom(self) -> None:
        now = elapsed()
        if now - self._looked_at >= CLAIM_LOOK_SECONDS:
            self._looked_at = now
            self.look_soon(self.revision() + 1)


def _fits(secret: bytes, record: BrokerRecord) -> bool:
    return len(secret) == SECRET_BYTES and hmac.compare_digest(hash_of(secret), record.secret_hash)


TIMEOUT_SECONDS = 30.0  # Kafka: request.timeout.ms of a broker, 30,000
LEAST_SECONDS = 10.0  # for each request, however long those before it have had no answer

_Place = tuple[int, type]  # a broker, and a kind of request


@attrs.define(eq=False)
class _Kept:
    """A connection to an incarnation. The first unanswered request was sent at `silent_since`."""

    incarnation: int
    connection: PeerConnection
    silent_since: float = math.inf


@attrs.define(eq=False, repr=False)
class BrokerCalls:
    """Requests to other brokers; `run` it, which closes the connections. Without `connect` none can be reached."""

    state: ClusterState
    connect: Connect | None
    timeout_seconds: float = TIMEOUT_SECONDS
    _kept: dict[_Place, _Kept] = attrs.field(factory=dict, init=False)
    _connecting: dict[_Place, trio.Lock] = attrs.field(factory=dict, init=False)
    _changed: Signal = attrs.field(factory=Signal, init=False)

    async def run(self) -> None:
        """Close connections to incarnations that have ended, until cancelled; then all."""

        def look(_topics: Collection[bytes]) -> None:
            self._changed.set()

        self.state.listeners.append(look)
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                for place, kept in list(self._outdated()):
                    await self._drop(place, kept)
        finally:
            self.state.listeners.remove(look)
            with trio.CancelScope(shield=True):
                for place, kept in list(self._kept.items()):
                    await self._drop(place, kept)

    async def ask(
        self, broker_id: int, message: object, response_class: type[R], *, within_seconds: float | None = None
    ) -> R:
        """Send one request to a live broker, and wait for its reply, for `timeout_seconds` or less.

        Raises BrokerUnavailable (the request may have had its effect), KafkaError UNSUPPORTED_VERSION, ProtocolError.
        """
        kept, place = None, (broker_id, type(message))
        began = trio.current_time()
        try:
            with trio.fail_after(self.timeout_seconds if within_seconds is None else within_seconds) as limit:
                kept = await self._connection_to(place)
                now = trio.current_time()
                kept.silent_since = min(kept.silent_since, now)
                silent_until = max(kept.silent_since + self.timeout_seconds, now + LEAST_SECONDS)
                limit.deadline = min(limit.deadline, silent_until)
                reply = await kept.connection.request(message, response_class)
                kept.silent_since = math.inf
                return reply
        except (BrokerUnavailable, ProtocolError, trio.TooSlowError) as exc:
            if kept is not None:
                await self._drop(place, kept)
            if isinstance(exc, trio.TooSlowError):
                waited_seconds = trio.current_time() - began
                raise BrokerUnavailable(f"no answer from broker {broker_id} in {waited_seconds:.3g} s") from exc
            raise

    async def _connection_to(self, place: _Place) -> _Kept:
        broker_id, _ = place
        async with self._connecting.setdefault(place, trio.Lock()):
            record = self._serving(broker_id)
            kept = self._kept.get(place)
            if record is None or self.connect is None:
                raise BrokerUnavailable(f"broker {broker_id} can't be reached")
            since = trio.current_time() - self.timeout_seconds
            if kept is None or kept.incarnation != record.incarnation or kept.silent_since < since:
                if kept is not None:
                    await self._drop(place, kept)
                kept = self._kept[place] = _Kept(record.incarnation, await self.connect(broker_id, record))
            return kept

    def _serving(self, broker_id: int) -> BrokerRecord | None:
        record = self.state.brokers.get(broker_id)
        return record if record is not None and record.state is BrokerState.LIVE else None

    def _outdated(self) -> Iterator[tuple[_Place, _Kept]]:
        for place, kept in self._kept.items():
            record = self._serving(place[0])
            if record is None or record.incarnation != kept.incarnation:
                yield place, kept

    async def _drop(self, place: _Place, kept: _Kept) -> None:
        if self._kept.get(place) is kept:
            del self._kept[place]
        await kept.connection.aclose()
