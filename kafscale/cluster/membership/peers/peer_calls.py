"""Requests to other brokers that wait for replies, on connections that are made on demand.

Each kind of request has one connection to each broker: replies come in order, and one may wait for a log that another
does not need. A request that is not answered in time ends its connection, and so does the end of the incarnation at the
other end: the caller then knows only that the request may have had its effect.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import TypeVar

import attrs
import trio

from kafscale.cluster.membership.peers.peer_connections import Connect, PeerConnection
from kafscale.cluster.membership.records import BrokerRecord, BrokerState
from kafscale.cluster.membership.state import ClusterState
from kafscale.concurrency.signals import Signal
from kafscale.errors import BrokerUnavailable, ProtocolError

TIMEOUT_SECONDS = 30.0  # Kafka: request.timeout.ms of a broker, 30,000
LEAST_SECONDS = 10.0  # for each request, however long those before it have had no answer

R = TypeVar("R")
_Place = tuple[int, type]  # a broker, and a kind of request


@attrs.define(eq=False)
class _Kept:
    """A connection, and the incarnation that it leads to.

    `silent_since` is when the first of the unanswered requests was sent, also one whose caller was cancelled meanwhile.
    """

    incarnation: int
    line: PeerConnection
    silent_since: float = math.inf


@attrs.define(eq=False, repr=False)
class BrokerCalls:
    """Asks other brokers; `run` it, which closes the connections. Without `connect` no broker can be reached."""

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
        """Send one request to a broker that serves, and wait for its reply, for `timeout_seconds` or less.

        Raises BrokerUnavailable: it may have had its effect, or not. KafkaError UNSUPPORTED_VERSION, ProtocolError.
        """
        kept, place = None, (broker_id, type(message))
        began = trio.current_time()
        try:
            with trio.fail_after(self.timeout_seconds if within_seconds is None else within_seconds) as limit:
                kept = await self._line_to(place)
                now = trio.current_time()
                kept.silent_since = min(kept.silent_since, now)
                silent_until = max(kept.silent_since + self.timeout_seconds, now + LEAST_SECONDS)
                limit.deadline = min(limit.deadline, silent_until)
                reply = await kept.line.request(message, response_class)
                kept.silent_since = math.inf
                return reply
        except (BrokerUnavailable, ProtocolError, trio.TooSlowError) as exc:
            if kept is not None:
                await self._drop(place, kept)
            if isinstance(exc, trio.TooSlowError):
                waited_seconds = trio.current_time() - began
                raise BrokerUnavailable(f"no answer from broker {broker_id} in {waited_seconds:.3g} s") from exc
            raise

    async def _line_to(self, place: _Place) -> _Kept:
        """Return the connection, which may be new. Raises BrokerUnavailable, ProtocolError, KafkaError."""
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
        await kept.line.aclose()
