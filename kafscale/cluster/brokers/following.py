"""Partitions that another broker leads, as far as the bucket has them: for consumers that read from their own rack.

    look at the metadata      the leader has decided where its epoch begins
    list, read footers        as a start does, but nothing is written: what is not whole is left to the leader
    look at the metadata      the leader and its epoch are the same: all that was found is in the log, and stays there

Why it stays: what a leader uploads it acknowledges after a look at the metadata. One that is superseded later than our
second look has been listed before, and so will be by whoever leads next. One that was superseded before is not the
leader that we have seen.

What has been found is kept until somebody asks for what is behind it, or for what has been deleted since. Who asks for
what is not in the bucket yet is sent to the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.cluster.brokers.leading import begun
from kafscale.cluster.brokers.records import Placement
from kafscale.cluster.brokers.state import ClusterState
from kafscale.cluster.topics.index import Topic
from kafscale.concurrency.single_flight import Flight
from kafscale.errors import DamagedObject, Fenced, StartupError, StoreError, StoreUnavailable
from kafscale.formats.manifest import ListedSegment, PartitionId
from kafscale.log.bucket.restore import RestoredPartition, Restorer
from kafscale.log.hand_over import list_partition
from kafscale.log.log import Log, TopicSpec, take_restored
from kafscale.log.partition.partition import Partition
from kafscale.log.repair.quarantine import Examiner
from kafscale.store.forwarding import ForwardingStore
from kafscale.wire.error_codes import NOT_LEADER_OR_FOLLOWER

KEPT_MAX_COUNT = 500  # partitions; of each segment some 200 bytes are kept
LOOK_LEAST_SECONDS = 1.0  # from one look at a partition to the next

logger = logging.getLogger(__name__)


class _ReadOnlyStore(ForwardingStore):
    """Refuses to write: whoever does not lead a partition repairs nothing of it."""

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        raise StoreUnavailable(f"{key} is only read here")

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        raise StoreUnavailable(f"{key} is only read here")

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        raise StoreUnavailable(f"{key} is only read here")


@attrs.frozen(eq=False, repr=False)
class _Known:
    partition: Partition
    leader: int
    looked_at: float


@attrs.define(eq=False, kw_only=True, repr=False)
class Following:
    """What broker `broker_id` reads of partitions that others lead. `refresh` looks at what was committed.

    `spec` makes what the log is told of a topic, and `log_start_offsets` tells those of a topic.
    """

    broker_id: int
    state: ClusterState
    log: Log
    spec: Callable[[Topic], TopicSpec]
    log_start_offsets: Callable[[bytes], Mapping[int, int]]
    refresh: Callable[[], Awaitable[None]]
    _known: dict[PartitionId, _Known] = attrs.field(factory=dict, init=False)  # that was asked for last is last
    _looking: dict[PartitionId, Flight] = attrs.field(factory=dict, init=False)

    async def find(self, topic: Topic, index: int, offset: int, *, committed: bool = False) -> Partition | None:
        """Return a partition of which `offset` can be read from the bucket; None if only its leader may have that.

        It is read like one that is led here, but has no tail. With `committed` the offset is decided there, too.
        """
        partition_id = topic.topic_id, index
        known = self._current(partition_id)
        if known is None or offset >= _readable_end(known.partition, committed):
            await self._look(topic, index)
            known = self._current(partition_id)
        if known is None:
            return None
        self._known[partition_id] = self._known.pop(partition_id)
        partition = known.partition
        partition.log_start_offset = self.log_start_offsets(topic.topic_id).get(index, 0)
        return partition if partition.log_start_offset <= offset < _readable_end(partition, committed) else None

    def forget(self, partition: Partition) -> None:
        """Look at a partition again when it is asked for next: what was known of it has gone."""
        known = self._known.get(partition.partition_id)
        if known is not None and known.partition is partition:
            self._drop(partition.partition_id)

    def _drop(self, partition_id: PartitionId) -> None:
        partition = self._known.pop(partition_id).partition
        self.log.reader.forget(partition)
        partition.close(NOT_LEADER_OR_FOLLOWER)

    def _current(self, partition_id: PartitionId) -> _Known | None:
        """Return what is known of a partition that still has the same leader, with the same epoch."""
        known = self._known.get(partition_id)
        if known is None:
            return None
        placement = self.state.placement(*partition_id)
        if placement is not None and (placement.leader, placement.epoch) == (
            known.leader,
            known.partition.leader_epoch,
        ):
            return known
        self._drop(partition_id)
        return None

    # ---- looks -----------------------------------------------------------------------------------------------------

    async def _look(self, topic: Topic, index: int) -> None:
        """Find out what the bucket has of a partition; several who ask at the same time share a look."""
        partition_id = topic.topic_id, index
        if (flight := self._looking.get(partition_id)) is not None:
            await flight.wait()
            return
        flight = self._looking[partition_id] = Flight()
        try:
            known = self._known.get(partition_id)
            if known is not None:
                await trio.sleep_until(known.looked_at + LOOK_LEAST_SECONDS)
            await self._look_once(topic, index)
        except (StoreError, DamagedObject, StartupError, Fenced) as exc:
            logger.info("%s-%d can't be read from the bucket just now: %s", topic.name, index, exc)
        finally:
            del self._looking[partition_id]
            flight.land()

    async def _look_once(self, topic: Topic, index: int) -> None:
        await self.refresh()
        placement = self.state.placement(topic.topic_id, index)
        if placement is None or not self._is_settled(placement):
            return
        looked_at = trio.current_time()
        spec = attrs.evolve(self.spec(topic), leader_epochs={index: placement.epoch})
        partition = self.log.new_partition(spec, index)
        contents = await self._restored(partition, placement)
        await self.refresh()
        after = self.state.placement(topic.topic_id, index)
        if after is None or (after.leader, after.epoch) != (placement.leader, placement.epoch):
            return
        take_restored(partition, _without_producers(contents))
        if partition.partition_id in self._known:
            self._drop(partition.partition_id)
        self._known[partition.partition_id] = _Known(partition, placement.leader, looked_at)
        while len(self._known) > KEPT_MAX_COUNT:
            self._drop(next(iter(self._known)))

    def _is_settled(self, placement: Placement) -> bool:
        """Tell whether the bucket alone tells what is below its end: nothing is to be recovered from elsewhere."""
        return placement.is_decided and not placement.recover and placement.leader != self.broker_id

    async def _restored(self, partition: Partition, placement: Placement) -> RestoredPartition:
        store = _ReadOnlyStore(self.log.views.fetch)
        restorer = Restorer(
            store=store,
            examiner=Examiner(store=store),
            checkpoint={},
            log_start_offset=lambda _partition_id: partition.log_start_offset,
        )
        listed = _whole(await list_partition(self.log, partition))
        return await restorer.restore_partition(partition.partition_id, listed, begun=begun(placement))


def _whole(listed: Sequence[ListedSegment]) -> Sequence[ListedSegment]:
    """Return the segments before the first one whose upload is under way, as it has no `.index` yet."""
    first = min((each.key.base_offset for each in listed if not each.has_index), default=None)
    return [each for each in listed if first is None or each.key.base_offset < first]


def _without_producers(contents: RestoredPartition) -> RestoredPartition:
    """Leave out who has produced: nobody does here, and what is led here needs the room."""
    end = contents.end
    return contents if end is None else attrs.evolve(contents, end=attrs.evolve(end, producers=(), kept_in={}))


def _readable_end(partition: Partition, committed: bool) -> int:
    return partition.last_stable_offset if committed else partition.flushed_offset
