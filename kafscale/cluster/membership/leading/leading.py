"""Leads partitions as their placements say: acquires those that come to this broker, and releases those that leave.

The hand-over and the fail-over are described step by step in docs/discussion/architecture.md. Records of earlier epochs
behind the committed start of this epoch do not count. A new partition is opened at once, empty.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial

import attrs
import trio

from kafscale.cluster.membership.peers.heartbeats import ReleasedContents, heartbeat
from kafscale.cluster.membership.peers.peer_connections import BrokerCalls
from kafscale.cluster.membership.placement.writer import Change, PlacementWriter, WantedChange
from kafscale.cluster.membership.records import Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.cluster.registries.topic_records import Topic
from kafscale.concurrency.sharing import Gathering
from kafscale.concurrency.signals import Signal
from kafscale.errors import (
    BrokerUnavailable,
    DamagedObject,
    Fenced,
    KafkaError,
    ProtocolError,
    StartupError,
    StoreError,
)
from kafscale.formats.manifest import PartitionId
from kafscale.formats.manifest_checkpoint import KnownPartition
from kafscale.formats.placements import decided_begin
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_objects import WalObject
from kafscale.log.hand_over import (
    Acquisition,
    Recovering,
    acquire_partition,
    contents_of,
    known_from,
    release_partition,
)
from kafscale.log.log import Log, TopicSpec
from kafscale.log.partition.partition import Partition
from kafscale.log.replaying import RestoreBefore
from kafscale.wire.error_codes import NOT_LEADER_OR_FOLLOWER
from kafscale.wire.messages.brokers import (
    BegunPartition,
    BrokerHeartbeatResponse,
    OwnHeartbeatRequest,
    ReleasedPartition,
)

TOLD_SECONDS = 2.0  # for the controller to commit them; then this broker does by itself
TOLD_AT_ONCE_MAX_COUNT = 1_000  # partitions in a request, which are some 30 KiB


@attrs.define(eq=False, kw_only=True, repr=False)
class EpochStarts:
    """Commits the epoch starts of partitions that this broker leads, and those sent by others (decision 0051).

    The controller commits as the sender would: only for the incarnation that leads with this epoch, and only while the
    start is not decided. The sender goes on when its own metadata has the start as it was sent. If a late message of an
    earlier attempt, which had found less, was committed instead, the sender recovers the partition again.

    When all records of earlier streams are flushed, the leader sends the same again, without these streams.
    """

    metadata: SharedMetadataStore
    state: ClusterState
    writer: PlacementWriter
    calls: BrokerCalls
    _telling: Gathering[BegunPartition, None] = attrs.field(
        default=attrs.Factory(lambda self: Gathering(self._tell_all, TOLD_AT_ONCE_MAX_COUNT), takes_self=True),
        init=False,
    )

    async def commit(self, partition: Partition) -> bool:
        """Commit an undecided start; return False to recover anew. Raises StoreError, KafkaError."""
        placement = self._placement(partition)
        if placement is not None:
            await self._tell(partition, partition.next_offset, _streams_of(partition, placement.recover))
        placement = self._placement(partition)
        if placement is not None and not placement.is_decided:
            await self.writer.change(*partition.partition_id, partition.leader_epoch, _at_end_of(partition))
            placement = self._placement(partition)
        begins_at_end = placement is not None and placement.is_decided_at(partition.next_offset)
        return begins_at_end and self.state.is_own_current()

    async def forget_streams(self, partition: Partition) -> None:
        """Commit that a partition needs no earlier streams any more. Raises StoreError, KafkaError."""

        def recovered(current: Placement, _number: int) -> Placement:
            return attrs.evolve(current, recover=())

        placement = self._placement(partition)
        if placement is not None:
            await self._tell(partition, placement.decided_offset, ())
        placement = self._placement(partition)
        if placement is not None and placement.recover:
            await self.writer.change(*partition.partition_id, partition.leader_epoch, recovered)

    def _placement(self, partition: Partition) -> Placement | None:
        placement = self.state.placement(*partition.partition_id)
        return placement if placement is not None and placement.epoch == partition.leader_epoch else None

    async def _tell(self, partition: Partition, offset: int, recover: Sequence[int]) -> None:
        controller = self.state.controller
        if controller is None or controller.broker_id == self.state.broker_id:
            return
        begun = BegunPartition(
            topic_id=partition.topic_id,
            partition_index=partition.index,
            leader_epoch=partition.leader_epoch,
            offset=offset,
            recover=list(recover),
        )
        with suppress(BrokerUnavailable):
            await self._telling.request(begun, BrokerUnavailable("who told the controller was cancelled"))

    async def _tell_all(self, begun: Sequence[BegunPartition]) -> Sequence[None]:
        controller = self.state.controller
        if controller is not None:
            request = heartbeat(self.state, self.metadata.applied.number)
            request.begun = list(begun)
            with suppress(BrokerUnavailable, ProtocolError, KafkaError):
                await self.calls.ask(
                    controller.broker_id, request, BrokerHeartbeatResponse, within_seconds=TOLD_SECONDS
                )
            self.metadata.note_newer(self.metadata.applied.number + 1)
            with suppress(StoreError, DamagedObject, Fenced):  # the writer or the watch raises them
                await self.metadata.refresh()
        return [None] * len(begun)

    async def take(self, request: OwnHeartbeatRequest) -> None:
        """Commit the starts that another broker sends and may decide."""
        changes = [
            WantedChange(
                partition.topic_id, partition.partition_index, partition.leader_epoch, self._change(request, partition)
            )
            for partition in request.begun
        ]
        try:
            await self.writer.change_all(changes)
        except (StoreError, KafkaError) as exc:
            logger.info("broker %d has to commit by itself where epochs begin: %s", request.broker_id, exc)

    def _change(self, request: OwnHeartbeatRequest, begun: BegunPartition) -> Change:
        def decided(current: Placement, _number: int) -> Placement:
            is_its_own = current.leader == request.broker_id
            if not is_its_own or not self.state.is_current(current.leader, request.broker_epoch):
                return current
            if current.is_decided and not current.is_decided_at(begun.offset):
                return current
            recover = tuple(number for number in current.recover if number in begun.recover)
            return _decided(current, begun.offset, recover)

        return decided


async def decide_begin(writer: PlacementWriter, partition: Partition) -> bool:
    """Commit the start of the epoch of a partition, also over another decided start; return False if another broker
    leads it.

    Streams without records of its tail are dropped. Raises StoreError, KafkaError.
    """
    return await writer.change(*partition.partition_id, partition.leader_epoch, _at_end_of(partition, anew=True))


def _at_end_of(partition: Partition, *, anew: bool = False) -> Change:
    """Return a change that begins the epoch behind the recovered records; with `anew` over another decided start."""

    def decided(current: Placement, _number: int) -> Placement:
        if current.is_decided and not anew:
            return current
        return _decided(current, partition.next_offset, _streams_of(partition, current.recover))

    return decided


def _decided(current: Placement, offset: int, recover: tuple[int, ...]) -> Placement:
    return attrs.evolve(current, decided_epoch=current.epoch, decided_offset=offset, recover=recover)


def _streams_of(partition: Partition, recover: Sequence[int]) -> tuple[int, ...]:
    """Return the streams among `recover` that hold records of the tail. A lone broker's stream is all epochs up to it.

    No other broker recovers records of a dropped stream.
    """
    epochs = {batch.file.position.epoch for batch in partition.tail.batches if isinstance(batch.file, WalObject)}
    ascending = sorted(recover)
    needed = {number for epoch in epochs for number in ascending[bisect_left(ascending, epoch) :][:1]}
    return tuple(number for number in recover if number in needed)


RETRY_SECONDS = 1.0
ACQUIRED_AT_ONCE_COUNT = 32  # partitions that list their objects
# Partitions that wait for their last flush, and then for a commit. They have no leader meanwhile, so few wait at once,
# and those whose turn has not come are served. More at once where very many are to leave.
RELEASED_LEAST_COUNT, RELEASED_MOST_COUNT = 8, 32
RELEASED_FRACTION = 0.1

logger = logging.getLogger(__name__)


class Superseded(Exception):
    """Raised when another broker is to lead by now, or the epoch is decided to begin elsewhere."""


@attrs.frozen(eq=False, repr=False)
class AllPartitions:
    """Opens the partitions of a lone broker, which leads all from their creation on. Otherwise as `Leading`."""

    log: Log
    spec: Callable[[Topic], TopicSpec]

    def open_topic(self, topic: Topic) -> None:
        self.log.open_topic(self.spec(topic))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()


@attrs.define(eq=False, kw_only=True, repr=False)
class Leading:
    """Partitions that this incarnation leads; once superseded, it opens and acquires nothing more.

    `find_topic` finds a topic by id, and `spec` describes it to the log. `tell` sends a leader notice with released
    contents; `released_contents` holds those of other brokers. `look` raises StoreError while the bucket is away.
    `recovering` replays streams, if this broker has one itself.
    """

    state: ClusterState
    writer: PlacementWriter
    epoch_starts: EpochStarts
    log: Log
    find_topic: Callable[[bytes], Topic | None]
    spec: Callable[[Topic], TopicSpec]
    tell: Callable[[int, Sequence[ReleasedPartition]], None]
    released_contents: ReleasedContents = attrs.field(factory=ReleasedContents)
    recovering: Recovering | None = None
    look: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    _changed: dict[bytes, None] = attrs.field(factory=dict, init=False)  # as a set, in order
    _more: Signal = attrs.field(factory=Signal, init=False)
    _busy: set[PartitionId] = attrs.field(factory=set, init=False)
    # Partitions whose hand-over may not be committed: the end of each, None if it was not open.
    _handed_over: dict[PartitionId, int | None] = attrs.field(factory=dict, init=False)
    _acquiring: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(ACQUIRED_AT_ONCE_COUNT), init=False
    )
    _releasing: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(RELEASED_LEAST_COUNT), init=False
    )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Acquire and release partitions as placements change, until cancelled; reports started."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forget_recovered)
            self.state.listeners.append(self.note)
            try:
                self.note(self.state.placements.keys())
                task_status.started()
                while True:
                    await self._more.wait()
                    self._more.clear()  # a topic that is noted from here on is not missed
                    changed, self._changed = self._changed, {}
                    for topic_id in changed:
                        self._begin_work(topic_id, nursery)
                        await trio.lowlevel.checkpoint()
            finally:
                self.state.listeners.remove(self.note)

    def open_topic(self, topic: Topic) -> None:
        """Open partitions of a new or changed topic."""
        self.log.open_topic(attrs.evolve(self.spec(topic), leader_epochs={}))
        self.note([topic.topic_id])

    def note(self, topic_ids: Collection[bytes]) -> None:
        """Look again at the placements of these topics; of all topics if the collection is empty."""
        self._changed.update(dict.fromkeys(topic_ids or self.state.placements))
        for topic_id in topic_ids:
            self._open_new(topic_id)
        self._more.set()

    def _open_new(self, topic_id: bytes) -> None:
        topic = self.find_topic(topic_id)
        if topic is None or topic.name not in self.log.by_name or not self.state.is_own_current():
            return  # it is noted again when it is there
        spec: TopicSpec | None = None
        for index, placement in self._mine(topic):
            is_new = placement.is_decided and placement.decided_offset == 0
            if is_new and not self._is_known((topic_id, index)):
                spec = spec or self.spec(topic)
                self.log.open_partition(self.log.new_partition(spec, index))

    def _mine(self, topic: Topic) -> Iterator[tuple[int, Placement]]:
        row = self.state.placements.get(topic.topic_id, ())
        known_count = len(self.log.by_name[topic.name])
        for index, placement in enumerate(row[:known_count]):
            if placement.leader == self.state.broker_id:
                yield index, placement

    def _is_known(self, partition_id: PartitionId) -> bool:
        known = (self._busy, self._handed_over, self.log.partitions, self.log.moving)
        return any(partition_id in partitions for partitions in known)

    # ---- work ------------------------------------------------------------------------------------------------------

    def _begin_work(self, topic_id: bytes, nursery: trio.Nursery) -> None:
        topic = self.find_topic(topic_id)
        if topic is None or topic.name not in self.log.by_name:
            for partition_id in [handed_over for handed_over in self._handed_over if handed_over[0] == topic_id]:
                del self._handed_over[partition_id]
            return
        is_current = self.state.is_own_current()
        for index, partition in enumerate(self.log.by_name[topic.name]):
            placement = self.state.placement(topic_id, index)
            if placement is None or (topic_id, index) in self._busy:
                continue
            if placement.leader != self.state.broker_id:
                if partition is not None:
                    logger.warning("%s is led by broker %d now, and was not released here", partition, placement.leader)
                    self.log.close_partition(partition, NOT_LEADER_OR_FOLLOWER)
            elif is_current and (self._is_to_leave(placement) or partition is None):
                self._busy.add((topic_id, index))
                nursery.start_soon(self._work, topic, index, placement)

    def _is_to_leave(self, placement: Placement) -> bool:
        target = None if placement.target is None else self.state.brokers.get(placement.target)
        return target is not None and target.stays and placement.target != self.state.broker_id

    async def _work(self, topic: Topic, index: int, placement: Placement) -> None:
        """Hand over or acquire; after an error try again in a while, as the placement says then."""
        name = f"{topic.name}-{index}"
        try:
            if self._is_to_leave(placement):
                wanted_count = int(self._releasing.statistics().tasks_waiting * RELEASED_FRACTION)
                self._releasing.total_tokens = min(max(RELEASED_LEAST_COUNT, wanted_count), RELEASED_MOST_COUNT)
                async with self._releasing:
                    await self._hand_over(topic, index)
            else:
                await self._acquire(topic, index, placement)
        except Superseded:
            logger.info("%s is to be looked for anew, if it is still led here", name)
        except (StoreError, DamagedObject, StartupError, KafkaError) as exc:
            logger.warning("%s can't be handed over, or taken over, just now, and is tried again: %s", name, exc)
            await trio.sleep(RETRY_SECONDS)
        finally:
            self._busy.discard((topic.topic_id, index))
        self.note([topic.topic_id])

    async def _hand_over(self, topic: Topic, index: int) -> None:
        """Hand over to the target, if there still is one; it recovers a partition that was never open here."""
        await self.look()  # or a released partition would have no leader until the store is back
        partition_id = topic.topic_id, index
        placement = self.state.placement(*partition_id)
        if placement is None or placement.leader != self.state.broker_id or not self._is_to_leave(placement):
            return
        partition = self.log.partitions.get(partition_id)
        if partition is not None:
            await release_partition(self.log, partition)
            self._handed_over[partition_id] = partition.next_offset
        end_offset = self._handed_over.setdefault(partition_id, None)
        contents = b"" if partition is None else await contents_of(partition)
        epoch = await self._have_target_lead(partition_id, placement.epoch, end_offset)
        self._handed_over.pop(partition_id, None)  # its topic may have been deleted meanwhile
        if placement.target is None:
            return
        released: list[ReleasedPartition] = []
        if contents and epoch is not None:
            released.append(
                ReleasedPartition(topic_id=topic.topic_id, partition_index=index, leader_epoch=epoch, contents=contents)
            )
        self.tell(placement.target, released)

    async def _have_target_lead(self, partition_id: PartitionId, epoch: int, end_offset: int | None) -> int | None:
        """Commit that the target leads from the released offset on; return its epoch, None if another one leads."""
        next_epoch: int | None = None

        def lead_elsewhere(current: Placement, number: int) -> Placement:
            nonlocal next_epoch
            next_epoch = number
            # The target may have gone since: then the partition is opened here again.
            leader = current.target if current.target is not None and self._is_to_leave(current) else current.leader
            new = attrs.evolve(current, leader=leader, epoch=number, target=None)
            if end_offset is None:
                return new
            return attrs.evolve(new, decided_epoch=number, decided_offset=end_offset, recover=())

        is_made = await self.writer.change(*partition_id, epoch, lead_elsewhere)
        return next_epoch if is_made else None

    async def _acquire(self, topic: Topic, index: int, placement: Placement) -> None:
        async def decide(partition: Partition) -> None:
            if not await self._is_decided(partition, placement):
                raise Superseded

        spec = self.spec(topic)
        if spec.leader_epochs.get(index) != placement.epoch:
            raise Superseded
        how = Acquisition(
            known=self._known(topic, index, placement),
            begun=begun(placement),
            acknowledged_before=placement.decided_offset if placement.is_decided else 0,
            restoring=self._acquiring,
            decide=decide,
        )
        if placement.recover:
            await self._recover(spec, index, placement.recover, how)
        else:
            await acquire_partition(self.log, spec, index, how)
        self._handed_over.pop((topic.topic_id, index), None)

    def _known(self, topic: Topic, index: int, placement: Placement) -> KnownPartition | None:
        """Return the contents that the former leader sent, unless the partition had another leader since."""
        partition_id = topic.topic_id, index
        contents = self.released_contents.take(partition_id, placement.epoch)
        if contents is None or not placement.is_settled or partition_id in self._handed_over:
            return None
        return known_from(contents, partition_id, placement.decided_offset)

    async def _recover(self, spec: TopicSpec, index: int, streams: Sequence[int], how: Acquisition) -> None:
        if self.recovering is None:
            raise KafkaError(
                NOT_LEADER_OR_FOLLOWER,
                "records of it are in the write-ahead log in the bucket only, which this broker does not use: start it "
                "with --durability s3-wal",
            )
        partition_id = spec.topic_id, index
        with self.recovering.expecting(partition_id):
            how = _with_recovery(how, self.recovering, partition_id, streams)
            await acquire_partition(self.log, spec, index, how)

    async def _is_decided(self, partition: Partition, found: Placement) -> bool:
        """Commit the start of its epoch; return False if the partition must be recovered again.

        `found` is the placement by which it was recovered. If the former leader has handed it over, the start is
        committed already, and no other broker takes the partition without a fence.
        """
        if not found.is_decided:
            return await self.epoch_starts.commit(partition)
        placement = self.state.placement(*partition.partition_id)
        is_given_away = partition.partition_id in self._handed_over  # perhaps
        if (
            placement is not None
            and placement.is_settled
            and placement.epoch == partition.leader_epoch
            and not is_given_away
            and self.state.is_own_current()
        ):
            await trio.lowlevel.checkpoint()
            return True
        return await decide_begin(self.writer, partition)

    # ---- recovered partitions --------------------------------------------------------------------------------------

    async def _forget_recovered(self) -> None:
        while True:
            await trio.sleep(RETRY_SECONDS)
            done = [
                found
                for found in map(self.log.partitions.get, self.state.recovering)
                if found and self._has_flushed(found)
            ]
            async with trio.open_nursery() as nursery:
                for partition in done:
                    nursery.start_soon(self._forget_streams, partition)

    def _has_flushed(self, partition: Partition) -> bool:
        placement = self.state.placement(*partition.partition_id)
        return (
            placement is not None
            and placement.is_decided
            and placement.epoch == partition.leader_epoch
            and partition.flushed_offset >= placement.decided_offset
        )

    async def _forget_streams(self, partition: Partition) -> None:
        try:
            await self.epoch_starts.forget_streams(partition)
        except (StoreError, KafkaError) as exc:
            logger.warning("%s is recovered, and that can't be noted just now: %s", partition, exc)


def _with_recovery(
    how: Acquisition, recovering: Recovering, partition_id: PartitionId, streams: Sequence[int]
) -> Acquisition:
    """End these streams before segments are listed, and replay them."""

    async def recover(partition: Partition, restore_before: RestoreBefore) -> None:
        await recovering.replay(partition, streams, restore_before)

    return attrs.evolve(how, prepare=partial(recovering.streams.end, {partition_id: streams}), recover=recover)


def begun(placement: Placement) -> tuple[EpochStart, ...]:
    return decided_begin(placement.decided_epoch, placement.decided_offset)
