"""Partitions of other leaders, as far as the bucket has them: for consumers that read from their own rack.

    look at the metadata      the start of the leader's epoch is decided
    look at its stream        acknowledged records that are not flushed, with `s3-wal`
    list, read footers        as a start does, but nothing is written: damage is left to the leader
    look at the metadata      leader and epoch are the same: all records found are in the log, and stay there

Why they stay: a leader acknowledges an upload after a look at the metadata. Uploads of a leader that is superseded
after our second look were listed before, and the next leader lists them, too. A leader that was superseded before is
not the one that we have seen. Records in a stream, without a gap before them, stay in any case: the next leader ends
the stream behind them (`kafscale.log.wal.streams`), and we take only batches of this epoch.

A partition is kept until a consumer asks for records behind it, or that were deleted since; consumers of others go to
the leader. One GET looks at a stream, however many partitions and fetches wait (`Tails`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.cluster.membership.leading.leading import begun
from kafscale.cluster.membership.records import Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.registries.topic_records import Topic
from kafscale.concurrency.nurseries import ungrouped
from kafscale.concurrency.sharing import Flight
from kafscale.concurrency.signals import Signal
from kafscale.errors import DamagedObject, Fenced, StartupError, StoreError, StoreUnavailable
from kafscale.formats.manifest import ListedSegment, PartitionId
from kafscale.log.bucket.restore import RestoredPartition, Restorer
from kafscale.log.hand_over import list_partition
from kafscale.log.log import Log, TopicSpec, take_restored
from kafscale.log.partition.followed import follow_object
from kafscale.log.partition.partition import FetchWaiter, Partition
from kafscale.log.repair.repair import Examiner
from kafscale.log.wal.streams import Contents, FollowedJournal, FollowedObject, FollowedStream
from kafscale.store.base import ForwardingStore
from kafscale.wire.error_codes import NOT_LEADER_OR_FOLLOWER

KEPT_MAX_COUNT = 2_000  # partitions; of each segment some 200 bytes are kept
IDLE_SECONDS = 60.0  # since a partition was asked for: then it gives way to another one
LOOK_LEAST_SECONDS = 1.0  # from one look at a partition to the next
TAIL_MAX_COUNT = 2_000  # batches of a tail, at some 400 bytes of memory, before segments are looked for
TAIL_LEAST_SECONDS = 30.0  # but not more often than that
AT_ONCE_COUNT = 32  # partitions that are looked at

logger = logging.getLogger(__name__)


class _ReadOnlyStore(ForwardingStore):
    """Refuses to write: only the leader repairs a partition."""

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        raise StoreUnavailable(f"{key} is only read here")

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        raise StoreUnavailable(f"{key} is only read here")

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        raise StoreUnavailable(f"{key} is only read here")


@attrs.define(eq=False, repr=False)
class _Known:
    """A known partition. Its tail follows `stream`; None if only segments are read."""

    partition: Partition
    leader: int
    looked_at: float
    stream: FollowedStream | None
    used_at: float = attrs.field(factory=trio.current_time, init=False)


@attrs.define(eq=False, kw_only=True, repr=False)
class Following:
    """The partitions of other leaders that this broker reads; `run` it.

    `refresh` applies all earlier commits; concurrent callers share a look. `spec` describes a topic to the log, and
    `log_start_offsets` returns those of a topic.
    """

    state: ClusterState
    log: Log
    spec: Callable[[Topic], TopicSpec]
    log_start_offsets: Callable[[bytes], Mapping[int, int]]
    refresh: Callable[[], Awaitable[None]]
    _known: dict[PartitionId, _Known] = attrs.field(factory=dict, init=False)  # the latest asked for is last
    _looking: dict[PartitionId, Flight] = attrs.field(factory=dict, init=False)
    _long: dict[PartitionId, Topic] = attrs.field(factory=dict, init=False)  # to be looked at anew
    _has_long: Signal = attrs.field(factory=Signal, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(AT_ONCE_COUNT), init=False)
    tails: Tails = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.tails = Tails(following=self)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.state.listeners.append(self._note)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.tails.run)
                task_status.started()
                while True:
                    await self._has_long.wait()
                    self._has_long.clear()
                    long, self._long = self._long, {}
                    for (_, index), topic in long.items():
                        nursery.start_soon(self._look, topic, index)
        finally:
            self.state.listeners.remove(self._note)

    def has_tail(self, partition_id: PartitionId) -> bool:
        """Tell whether a stream has all that the leader acknowledges, so that any broker can read it."""
        placement = self.state.placement(*partition_id)
        return placement is not None and placement.is_settled and self._streaming(placement) is not None

    async def find(self, topic: Topic, index: int, offset: int, *, committed: bool = False) -> Partition | None:
        """Return a partition of which `offset` can be read from the bucket; None if only its leader may have it.

        It is read like one that is led here. If its tail is followed, `offset` may be its end. With `committed` the
        offset must be below the last stable offset.
        """
        partition_id = topic.topic_id, index
        known = self._current(partition_id)
        if known is not None and known.stream is not None and offset > known.partition.high_watermark:
            await self._catch_up(known.stream)
            known = self._current(partition_id)
        if known is None or not _has(known, offset, committed):
            await self._look(topic, index)
            known = self._current(partition_id)
        elif _is_long(known):
            self._long[partition_id] = topic
            self._has_long.set()
        if known is None:
            return None
        self._known[partition_id] = self._known.pop(partition_id)
        known.used_at = trio.current_time()
        partition = known.partition
        partition.log_start_offset = self.log_start_offsets(topic.topic_id).get(index, 0)
        return partition if partition.log_start_offset <= offset and _has(known, offset, committed) else None

    async def look_at(self, wanted: Iterable[tuple[Topic, int]]) -> None:
        """Look at those of these partitions together that are not known: then `find` has them."""
        unknown = [(topic, index) for topic, index in wanted if self._current((topic.topic_id, index)) is None]
        if unknown:
            with ungrouped():
                async with trio.open_nursery() as nursery:
                    for topic, index in unknown:
                        nursery.start_soon(self._look, topic, index)

    def forget(self, partition: Partition) -> None:
        """Look at a partition again when it is asked for next."""
        known = self._known.get(partition.partition_id)
        if known is not None and known.partition is partition:
            self._drop(partition.partition_id)

    def _drop(self, partition_id: PartitionId) -> None:
        partition = self._known.pop(partition_id).partition
        self.log.reader.forget(partition)
        partition.close(NOT_LEADER_OR_FOLLOWER)
        self.tails.wake(partition_id)

    def _current(self, partition_id: PartitionId) -> _Known | None:
        """Return a known partition, if its leader and leader epoch are the same still."""
        known = self._known.get(partition_id)
        if known is None:
            return None
        placement = self.state.placement(*partition_id)
        if placement is not None and (placement.leader, placement.epoch) == (
            known.leader,
            known.partition.leader_epoch,
        ):
            stream = known.stream
            if stream is None or self.state.is_current(known.leader, stream.incarnation):
                return known
        self._drop(partition_id)
        return None

    # ---- tails -----------------------------------------------------------------------------------------------------

    def _streaming(self, placement: Placement) -> int | None:
        leader = self.state.brokers.get(placement.leader)
        return leader.incarnation if leader is not None and leader.has_stream else None

    async def _catch_up(self, stream: FollowedStream) -> None:
        try:
            await stream.catch_up()
        except (StoreError, DamagedObject) as exc:
            logger.warning("the stream of incarnation %d can't be read: %s", stream.incarnation, exc)

    def stream_of(self, partition_id: PartitionId) -> FollowedStream | None:
        known = self._known.get(partition_id)
        return None if known is None else known.stream

    def serves(self, incarnation: int) -> bool:
        return any(record.incarnation == incarnation for record in self.state.brokers.values())

    def take(self, stream: FollowedStream, followed: FollowedObject) -> None:
        for partition_id in followed.batches:
            known = self._known.get(partition_id)
            if known is not None and known.stream is stream and not follow_object(known.partition, followed):
                end_offset = known.partition.next_offset
                logger.error("%s: its stream goes on behind offset %d: it is read anew", known.partition, end_offset)
                self._drop(partition_id)

    def lose(self, stream: FollowedStream) -> None:
        """Drop the partitions of a stream that can't be read, or must be read anew."""
        for partition_id in [followed for followed, known in self._known.items() if known.stream is stream]:
            self._drop(partition_id)

    def spill(self, followed: FollowedObject) -> None:
        """Read the batches of an object from the bucket from now on."""
        for partition_id, batches in followed.batches.items():
            known = self._known.get(partition_id)
            if known is not None:
                known.partition.tail.spill_before(batches[-1].next_offset)

    def _note(self, topic_ids: Collection[bytes]) -> None:
        """Wake consumers that wait for partitions whose leader has changed, so that they ask elsewhere."""
        for partition_id in self.tails.watched():
            if not topic_ids or partition_id[0] in topic_ids:
                self._current(partition_id)

    # ---- looks -----------------------------------------------------------------------------------------------------

    async def _look(self, topic: Topic, index: int) -> None:
        partition_id = topic.topic_id, index
        if (flight := self._looking.get(partition_id)) is not None:
            await flight.wait()
            return
        flight = self._looking[partition_id] = Flight()
        try:
            known = self._known.get(partition_id)
            if known is not None:
                await trio.sleep_until(known.looked_at + LOOK_LEAST_SECONDS)
            async with self._limiter:
                await self._look_once(topic, index)
        except (StoreError, DamagedObject, StartupError, Fenced) as exc:
            logger.info("%s-%d can't be read from the bucket just now: %s", topic.name, index, exc)
        finally:
            del self._looking[partition_id]
            flight.land()

    async def _look_once(self, topic: Topic, index: int) -> None:
        await self.refresh()
        placement = self.state.placement(topic.topic_id, index)
        if placement is None or not placement.is_settled or placement.leader == self.state.broker_id:
            return
        if not self._has_room((topic.topic_id, index)):
            return
        looked_at = trio.current_time()
        incarnation = self._streaming(placement)
        stream = None if incarnation is None else self.tails.stream(incarnation)
        if stream is not None:
            await stream.catch_up()  # before segments are listed: records that leave it are in one
        spec = attrs.evolve(self.spec(topic), leader_epochs={index: placement.epoch})
        partition = self.log.new_partition(spec, index)
        partition.journal = FollowedJournal(self.log.views.fetch)
        listed = await list_partition(self.log, partition)
        contents = await self._restored(partition, placement, _whole(listed))
        await self.refresh()
        after = self.state.placement(topic.topic_id, index)
        if after is None or (after.leader, after.epoch) != (placement.leader, placement.epoch):
            return
        if not self._has_room(partition.partition_id):
            return  # others have come meanwhile
        take_restored(partition, _without_producers(contents))
        if len(_whole(listed)) == len(listed):
            partition.lost_before = max(partition.lost_before, placement.decided_offset)
        if stream is not None and not all(follow_object(partition, followed) for followed in tuple(stream.objects)):
            stream.begin_anew()
            stream = None
        if partition.partition_id in self._known:
            self._drop(partition.partition_id)
        self._known[partition.partition_id] = _Known(partition, placement.leader, looked_at, stream)
        while len(self._known) > KEPT_MAX_COUNT:
            self._drop(next(iter(self._known)))

    def _has_room(self, partition_id: PartitionId) -> bool:
        if partition_id in self._known or len(self._known) < KEPT_MAX_COUNT:
            return True
        return next(iter(self._known.values())).used_at + IDLE_SECONDS < trio.current_time()

    async def _restored(
        self, partition: Partition, placement: Placement, listed: Sequence[ListedSegment]
    ) -> RestoredPartition:
        store = _ReadOnlyStore(self.log.views.fetch)
        restorer = Restorer(
            store=store,
            examiner=Examiner(store=store),
            checkpoint={},
            log_start_offset=lambda _partition_id: partition.log_start_offset,
        )
        return await restorer.restore_partition(partition.partition_id, listed, begun=begun(placement))


def _whole(listed: Sequence[ListedSegment]) -> Sequence[ListedSegment]:
    """Return the segments before the first one whose upload is under way, as it has no `.index` yet."""
    first = min((segment.key.base_offset for segment in listed if not segment.has_index), default=None)
    return [segment for segment in listed if first is None or segment.key.base_offset < first]


def _without_producers(contents: RestoredPartition) -> RestoredPartition:
    """Leave out producers: no producer writes here, and led partitions need the room."""
    end = contents.end
    return contents if end is None else attrs.evolve(contents, end=attrs.evolve(end, producers=(), kept_in={}))


def _has(known: _Known, offset: int, committed: bool) -> bool:
    """Tell whether an offset can be read, or is the end of a followed tail."""
    partition = known.partition
    if known.stream is not None:
        return offset <= partition.high_watermark
    return offset < (partition.last_stable_offset if committed else partition.flushed_offset)


def _is_long(known: _Known) -> bool:
    """Tell whether most of a followed tail is in segments by now, so that the partition is to be listed again."""
    is_long = len(known.partition.tail.batches) > TAIL_MAX_COUNT
    return is_long and trio.current_time() > known.looked_at + TAIL_LEAST_SECONDS


TAIL_LOOK_LEAST_SECONDS = 0.05  # from one look at a stream to the next, when something came
TAIL_LOOK_MOST_SECONDS = 0.25  # when nothing comes for long: 4 GETs a second are 4 $ a month
TAIL_LOOK_GROWTH = 1.25
TAIL_RETRY_SECONDS = 1.0
CONTENTS_MAX_BYTES = 64 << 20  # of the latest objects; older ones are read from the bucket


@attrs.define(eq=False, repr=False)
class _Followed:
    stream: FollowedStream
    pause_seconds: float = TAIL_LOOK_LEAST_SECONDS
    is_watched: bool = False  # a task looks at it again and again


@attrs.define(eq=False, kw_only=True, repr=False)
class Tails:
    """Follows the streams of partitions that `following` reads. `run` it."""

    following: Following
    contents: Contents = attrs.field(
        default=attrs.Factory(lambda self: Contents(CONTENTS_MAX_BYTES, self.following.spill), takes_self=True),
        init=False,
    )
    _followed: dict[int, _Followed] = attrs.field(factory=dict, init=False)  # by incarnation
    _waiting: dict[PartitionId, set[FetchWaiter]] = attrs.field(factory=dict, init=False)
    _more: Signal = attrs.field(factory=Signal, init=False)

    def stream(self, incarnation: int) -> FollowedStream:
        followed = self._followed.get(incarnation)
        if followed is None:
            self._followed = {number: kept for number, kept in self._followed.items() if self.following.serves(number)}
            followed = self._followed[incarnation] = _Followed(self._new(incarnation))
        return followed.stream

    def _new(self, incarnation: int) -> FollowedStream:
        stream = FollowedStream(
            store=self.following.log.views.fetch,
            namespace=self.following.log.namespace,
            incarnation=incarnation,
            contents=self.contents,
            on_object=lambda followed: self._take(stream, followed),
            on_lost=self.following.lose,
        )
        return stream

    def _take(self, stream: FollowedStream, followed: FollowedObject) -> None:
        self.following.take(stream, followed)
        for partition_id, batches in followed.batches.items():
            size_bytes = sum(batch.length_bytes for batch in batches)
            for waiter in self._waiting.get(partition_id, ()):
                if waiter.committed_only:
                    waiter.event.set()
                else:
                    waiter.became_readable(size_bytes)

    @contextmanager
    def watching(self, partition_id: PartitionId, waiter: FetchWaiter) -> Iterator[None]:
        """Wake a fetch when more of this partition can be read, or its leader has changed."""
        waiters = self._waiting.setdefault(partition_id, set())
        waiters.add(waiter)
        self._more.set()
        try:
            yield
        finally:
            waiters.discard(waiter)
            if not waiters:
                self._waiting.pop(partition_id, None)

    def wake(self, partition_id: PartitionId) -> None:
        for waiter in self._waiting.get(partition_id, ()):
            waiter.event.set()

    def watched(self) -> Iterator[PartitionId]:
        yield from tuple(self._waiting)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                await self._more.wait()
                self._more.clear()
                for followed in self._wanted():
                    if not followed.is_watched:
                        followed.is_watched = True
                        nursery.start_soon(self._watch, followed)

    def _wanted(self) -> list[_Followed]:
        streams = {
            stream.incarnation
            for partition_id in self._waiting
            if (stream := self.following.stream_of(partition_id)) is not None
        }
        return [followed for incarnation in streams if (followed := self._followed.get(incarnation)) is not None]

    async def _watch(self, followed: _Followed) -> None:
        stream = followed.stream
        try:
            await trio.sleep_until(stream.looked_at + followed.pause_seconds)
            while not stream.has_ended and followed in self._wanted():
                number = stream.next_number
                try:
                    await stream.catch_up()
                except (StoreError, DamagedObject) as exc:
                    logger.warning("the stream of incarnation %d can't be read: %s", stream.incarnation, exc)
                    self.following.lose(stream)  # waiting fetches are sent to the leader
                    await trio.sleep(TAIL_RETRY_SECONDS)
                longer = min(followed.pause_seconds * TAIL_LOOK_GROWTH, TAIL_LOOK_MOST_SECONDS)
                followed.pause_seconds = longer if stream.next_number == number else TAIL_LOOK_LEAST_SECONDS
                await trio.sleep(followed.pause_seconds)
        finally:
            followed.is_watched = False
