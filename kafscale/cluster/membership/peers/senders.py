"""Brokers of a cluster know each other by secrets: any client may connect to the listener by which they do.

Each start of a broker makes a secret, whose hash is in its broker record in the metadata. BrokerHeartbeat, which only
brokers send, has the sender's id, incarnation and secret. Its receiver believes it if the hash fits the sender's
record. The secret itself is stored nowhere, so readers of the bucket do not learn it. It is sent as a password is: TLS
hides it from those who listen on the network.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar

import attrs

from kafscale.cluster.membership.peers.peer_connections import Connect, PeerConnection
from kafscale.cluster.membership.records import BrokerRecord
from kafscale.cluster.membership.state import ClusterState
from kafscale.concurrency.clocks import elapsed
from kafscale.wire.error_codes import BROKER_ID_NOT_REGISTERED, CLUSTER_AUTHORIZATION_FAILED, NONE, STALE_BROKER_EPOCH
from kafscale.wire.messages.brokers import OwnHeartbeatRequest

SECRET_BYTES = 32
LOOK_SECONDS = 1.0  # between two looks at the metadata for claims that can't be checked

R = TypeVar("R")


def hash_of(secret: bytes) -> bytes:
    """Return the hash of a secret, as a broker record has it."""
    return sha256(secret).digest()


def introduced(connect: Connect, broker_id: int, incarnation: int, secret: bytes) -> Connect:
    """Return a `connect` whose connections name this incarnation as the sender of each heartbeat."""

    async def connect_as_broker(to: int, record: BrokerRecord) -> PeerConnection:
        return _IntroducedConnection(await connect(to, record), broker_id, incarnation, secret)

    return connect_as_broker


@attrs.frozen(eq=False, repr=False)
class _IntroducedConnection:
    line: PeerConnection
    broker_id: int
    incarnation: int
    secret: bytes

    async def request(self, message: object, response_class: type[R]) -> R:
        if isinstance(message, OwnHeartbeatRequest):
            message.broker_id, message.broker_epoch, message.secret = self.broker_id, self.incarnation, self.secret
        return await self.line.request(message, response_class)

    async def aclose(self) -> None:
        await self.line.aclose()


@attrs.define(eq=False, kw_only=True, repr=False)
class Senders:
    """Tells genuine brokers from clients.

    `revision` is that of the metadata, as far as it is known here, and `look_soon` has this broker look for a later
    one.
    """

    state: ClusterState
    revision: Callable[[], int]
    look_soon: Callable[[int], None]
    _looked_at: float = attrs.field(default=-math.inf, init=False)

    def error_code(self, request: OwnHeartbeatRequest) -> int:
        """Return NONE for a sender to believe.

        STALE_BROKER_EPOCH for an incarnation that has a successor, CLUSTER_AUTHORIZATION_FAILED for a wrong secret, and
        BROKER_ID_NOT_REGISTERED for an incarnation without a record here. The last has this broker look, as that one
        may have begun a moment ago.
        """
        record = self.state.brokers.get(request.broker_id)
        if record is None or record.incarnation < request.broker_epoch:
            self._look_seldom()
            return BROKER_ID_NOT_REGISTERED
        if record.incarnation > request.broker_epoch:
            return STALE_BROKER_EPOCH
        return NONE if _fits(request.secret, record) else CLUSTER_AUTHORIZATION_FAILED

    def look_for_newer(self, request: OwnHeartbeatRequest) -> None:
        """Look for metadata that a believed sender knows and this broker does not."""
        revision = request.current_metadata_offset
        if revision > self.revision():
            self.look_soon(revision)

    def _look_seldom(self) -> None:
        """Look for later metadata, once in LOOK_SECONDS however often this is called."""
        now = elapsed()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self.look_soon(self.revision() + 1)


def _fits(secret: bytes, record: BrokerRecord) -> bool:
    return len(secret) == SECRET_BYTES and hmac.compare_digest(hash_of(secret), record.secret_hash)
