"""Heartbeats between brokers, on connections that are kept: each tells that its sender runs, and is answered.

    the controller    to every other broker
    the others        to the controller; to all while there is no controller

So one direction that is cut off does no harm. Heartbeats decide and write nothing. They carry the sender's revision of
the metadata, and are sent at once when that changes: while brokers hear of the controller, they need hardly look at the
head otherwise (`is_told_of_all`). An answer tells whether the sender may act: not if it was declared dead or replaced.

`LeaderNotices` tell the new leader of a partition at once, with the partition's contents (decision 0047). A notice only
saves time: if it is lost, late, or of another epoch than the committed one, the new leader reads the bucket.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import attrs
import trio

from kafscale.cluster.membership.peers.liveness import Liveness, StoreLoss
from kafscale.cluster.membership.peers.loads import load_message
from kafscale.cluster.membership.peers.peer_connections import BrokerCalls, Connect, PeerConnection
from kafscale.cluster.membership.records import NOBODY, BrokerRecord, BrokerState
from kafscale.cluster.membership.state import ClusterState
from kafscale.concurrency.clocks import elapsed
from kafscale.concurrency.signals import Signal
from kafscale.errors import BrokerUnavailable, KafkaError, ProtocolError
from kafscale.formats.manifest import PartitionId
from kafscale.log.load import SAMPLE_SECONDS, BrokerLoad
from kafscale.wire import error_codes
from kafscale.wire.messages.brokers import (
    BrokerHeartbeatResponse,
    OwnHeartbeatRequest,
    OwnHeartbeatResponse,
    ReleasedPartition,
)

PAUSE_LEAST_SECONDS = 0.1  # between two heartbeats to the same broker
TOLD_SECONDS = 1.0  # since the controller's last: while it is not older, nothing has been committed that is not known
WATCHED_STATES = (BrokerState.LIVE, BrokerState.AWAY)

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True, repr=False)
class Heartbeats:
    """Sends the heartbeats of this incarnation; `run` it.

    connect       opens a connection to a broker; raises ProtocolError, KafkaError, and BrokerUnavailable, caused by
                  ConnectionRefusedError if the address refuses. Without it no broker is lost
    revision      returns the revision of the local metadata
    look_soon     called with a later revision to look for
    load          measures this broker's load
    take_surplus  called with the weight of each broker's partitions beyond their number
    """

    state: ClusterState
    liveness: Liveness
    store_loss: StoreLoss
    connect: Connect | None
    revision: Callable[[], int]
    look_soon: Callable[[int], None]
    load: Callable[[], BrokerLoad]
    take_surplus: Callable[[Mapping[int, float]], None]
    _changed: Signal = attrs.field(factory=Signal, init=False)
    _refusing: set[int] = attrs.field(factory=set, init=False)  # brokers where this one lacks a right; they answer
    _tasks: dict[int, tuple[BrokerRecord, trio.CancelScope]] = attrs.field(factory=dict, init=False)
    _told_at: float = attrs.field(default=-math.inf, init=False)  # by the controller
    _told_revision: int = attrs.field(default=0, init=False)

    def watched(self) -> dict[int, BrokerRecord]:
        """Return the brokers to send heartbeats to: all others that may run, or the controller."""
        controller = NOBODY if self.state.controller is None else self.state.controller.broker_id
        watches_all = controller in (self.state.broker_id, NOBODY) or controller in self.liveness.lost()
        return {
            broker_id: record
            for broker_id, record in self.state.brokers.items()
            if broker_id != self.state.broker_id
            and record.state in WATCHED_STATES
            and (watches_all or broker_id == controller)
        }

    def heard(self, broker_id: int, incarnation: int, revision: int) -> bool:
        """Note a heartbeat with its sender's revision of the metadata; return whether that incarnation may act."""
        self.liveness.heard(broker_id, incarnation)
        controller = self.state.controller
        if controller is not None and (controller.broker_id, controller.incarnation) == (broker_id, incarnation):
            self._told_at, self._told_revision = elapsed(), revision
        return self.state.is_current(broker_id, incarnation)

    def is_told_of_all(self) -> bool:
        """Tell whether this broker knew all metadata of the controller a moment ago."""
        return elapsed() - self._told_at <= TOLD_SECONDS and self._told_revision <= self.revision()

    async def run(self) -> None:
        if self.connect is None:
            return
        self.state.store.follow(lambda _change: self._changed.wake())
        self.liveness.is_watching = True
        more = Signal()
        self.state.listeners.append(lambda _topics: more.set())
        async with trio.open_nursery() as nursery:
            while True:
                more.clear()
                watched = self.watched()
                self.liveness.follow({broker_id: record.incarnation for broker_id, record in watched.items()})
                for broker_id in list(self._outdated(watched)):
                    self._tasks.pop(broker_id)[1].cancel()
                for broker_id, record in watched.items():
                    if broker_id not in self._tasks:
                        scope = trio.CancelScope()
                        self._tasks[broker_id] = record, scope
                        nursery.start_soon(self._beat, self.connect, broker_id, record, scope)
                with trio.move_on_after(self.liveness.interval_seconds):
                    await more.wait()

    def _outdated(self, watched: dict[int, BrokerRecord]) -> Iterator[int]:
        for broker_id, (record, _) in self._tasks.items():
            now = watched.get(broker_id)
            if now is None or (now.incarnation, now.endpoints) != (record.incarnation, record.endpoints):
                yield broker_id

    async def _beat(self, connect: Connect, broker_id: int, record: BrokerRecord, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                if not await self._use_one_connection(connect, broker_id, record):
                    await trio.sleep(self.liveness.interval_seconds)

    async def _use_one_connection(self, connect: Connect, broker_id: int, record: BrokerRecord) -> bool:
        """Send heartbeats as long as a connection lasts; return False if none was answered on it."""
        connection: PeerConnection | None = None
        is_answered = False
        load_told_at, is_settled = -math.inf, False
        try:
            with trio.fail_after(self.liveness.session_timeout_seconds):
                connection = await connect(broker_id, record)
            while True:
                told, asked_at = self.revision(), self.liveness.clock()
                request = heartbeat(self.state, told)
                is_due = trio.current_time() - load_told_at >= SAMPLE_SECONDS or not is_settled
                if is_due and self._decides(broker_id):
                    load_told_at, load = trio.current_time(), self.load()
                    is_settled = load.is_settled
                    request.load = load_message(load)
                with trio.fail_after(self.liveness.session_timeout_seconds):
                    response = await self._ask(broker_id, connection, request)
                self.store_loss.heard(broker_id, record.incarnation, response.store_silent_ms)
                is_answered = True
                self.liveness.answered(broker_id, record.incarnation, asked_at)
                await self._pause(told)
        except (BrokerUnavailable, ProtocolError, KafkaError, trio.TooSlowError) as exc:
            logger.debug("no heartbeat to broker %d: %s", broker_id, exc)
            why = "it does not answer" if isinstance(exc, trio.TooSlowError) else str(exc)
            self.liveness.failed(broker_id, record.incarnation, why, is_refusing=was_refused(exc))
            return is_answered
        finally:
            if connection is not None:
                await connection.aclose()

    def _decides(self, broker_id: int) -> bool:
        return self.state.controller is not None and self.state.controller.broker_id == broker_id

    async def _pause(self, told: int) -> None:
        await trio.sleep(PAUSE_LEAST_SECONDS)
        with trio.move_on_after(max(0.0, self.liveness.interval_seconds - PAUSE_LEAST_SECONDS)):
            while self.revision() == told:
                await self._changed.wait()

    async def _ask(
        self, broker_id: int, connection: PeerConnection, request: OwnHeartbeatRequest
    ) -> OwnHeartbeatResponse:
        response = await connection.request(request, OwnHeartbeatResponse)
        if response.surpluses and self._decides(broker_id):
            self.take_surplus({surplus.broker_id: surplus.weight for surplus in response.surpluses})
        if response.error_code == error_codes.NONE and response.is_fenced:
            self.liveness.disowned_at = elapsed()
            self.look_soon(request.current_metadata_offset + 1)  # this ends the incarnation if the bucket confirms it
        is_refused = response.error_code == error_codes.CLUSTER_AUTHORIZATION_FAILED
        if is_refused and broker_id not in self._refusing:
            logger.warning(
                "broker %d refuses heartbeats: there the user of this one needs a right, by kafscale acls add "
                "User:NAME --operation cluster-action --cluster",
                broker_id,
            )
        (self._refusing.add if is_refused else self._refusing.discard)(broker_id)
        return response


def heartbeat(own: ClusterState, revision: int) -> OwnHeartbeatRequest:
    """Return a heartbeat of this incarnation, which knows the metadata up to a revision."""
    return OwnHeartbeatRequest(
        broker_id=own.broker_id,
        broker_epoch=own.incarnation,
        secret=own.secret,
        current_metadata_offset=revision,
        want_fence=False,
        want_shut_down=False,
    )


def was_refused(exc: BaseException | None) -> bool:
    """Tell whether no process listens at an address: every way to reach it was refused."""
    while exc is not None:
        if isinstance(exc, BaseExceptionGroup):
            return all(map(was_refused, exc.exceptions))
        if isinstance(exc, ConnectionRefusedError):
            return True
        exc = exc.__cause__
    return False


# Partitions whose contents wait to be told, or to be taken; each is small. Of more the bucket has to tell.
TOLD_MAX_COUNT = 1_000
TOLD_MAX_BYTES = 32 << 20  # of contents that wait to be taken: a thousand times the largest of a partition


@attrs.define(eq=False, kw_only=True, repr=False)
class LeaderNotices:
    """Sends leader notices; `run` it. `revision` returns that of the local metadata."""

    state: ClusterState
    calls: BrokerCalls
    revision: Callable[[], int]
    _untold: dict[int, list[ReleasedPartition]] = attrs.field(factory=dict, init=False)
    _asking: set[int] = attrs.field(factory=set, init=False)
    _more: Signal = attrs.field(factory=Signal, init=False)

    def tell(self, broker_id: int, released: Sequence[ReleasedPartition] = ()) -> None:
        """Tell a broker to look at the metadata, and send it the contents of released partitions."""
        untold = self._untold.setdefault(broker_id, [])
        untold += released
        del untold[:-TOLD_MAX_COUNT]
        self._more.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                await self._more.wait()
                self._more.clear()
                for broker_id in self._untold.keys() - self._asking:
                    self._asking.add(broker_id)
                    nursery.start_soon(self._tell, broker_id)

    async def _tell(self, broker_id: int) -> None:
        while broker_id in self._untold:
            request = heartbeat(self.state, self.revision())
            request.released = self._untold.pop(broker_id)
            with suppress(BrokerUnavailable, ProtocolError, KafkaError):
                await self.calls.ask(broker_id, request, BrokerHeartbeatResponse)
        self._asking.discard(broker_id)


@attrs.define(eq=False, repr=False)
class ReleasedContents:
    """Contents of partitions that other brokers have released, until the new leader takes them."""

    _released: dict[PartitionId, ReleasedPartition] = attrs.field(factory=dict, init=False)
    _size_bytes: int = attrs.field(default=0, init=False)

    def note(self, released: Iterable[ReleasedPartition]) -> None:
        """Keep the newest contents, as far as there is room: any client may send some."""
        for partition in released:
            partition_id = partition.topic_id, partition.partition_index
            self._remove(partition_id)
            self._released[partition_id] = partition
            self._size_bytes += len(partition.contents)
        while len(self._released) > TOLD_MAX_COUNT or self._size_bytes > TOLD_MAX_BYTES:
            self._remove(next(iter(self._released)))

    def take(self, partition_id: PartitionId, leader_epoch: int) -> bytes | None:
        """Return, once, the contents of a partition at the beginning of this epoch, if they were sent."""
        told = self._remove(partition_id)
        return told.contents if told is not None and told.leader_epoch == leader_epoch else None

    def _remove(self, partition_id: PartitionId) -> ReleasedPartition | None:
        told = self._released.pop(partition_id, None)
        if told is not None:
            self._size_bytes -= len(told.contents)
        return told
