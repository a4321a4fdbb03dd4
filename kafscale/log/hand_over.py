"""Release one partition to another broker, or acquire it, while the others of its topic stay as they are.

The bucket is complete when a partition has been released. The membership decides who may lead when.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.errors import DamagedObject, KafkaError, KafScaleError, StoreUnavailable
from kafscale.formats.manifest import ListedSegment, PartitionId
from kafscale.formats.manifest_checkpoint import KnownPartition, decode_manifests
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.bucket.listing import list_directories
from kafscale.log.bucket.manifest_keeper import encode_manifests
from kafscale.log.bucket.restore import Restorer
from kafscale.log.log import Log, TopicSpec, take_restored
from kafscale.log.partition.partition import Partition
from kafscale.log.replaying import Replay, RestoreBefore
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.log.wal.streams import Streams
from kafscale.store.paths import topic_name_prefix, version_1_topic_id
from kafscale.wire.error_codes import NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION

# A smaller tail uploads about as fast as an empty one, so it is flushed once instead of twice: half of the objects when
# many partitions move. Only while the store answers, as the partition has no leader during that flush.
LAST_FLUSH_BYTES = 1 << 20
LATELY_SECONDS = 1.0
LAST_FLUSH_MAX_SECONDS = 10.0  # then it is served again, and tried again later
TOLD_SEGMENTS_MAX_COUNT = 500  # of a partition, 30 KB beside the log's end: larger ones are listed

logger = logging.getLogger(__name__)


async def release_partition(log: Log, partition: Partition) -> None:
    """Flush and close an open partition, so that all of it is in the bucket.

    Appended batches are acknowledged; later ones get NOT_LEADER_OR_FOLLOWER. After a cancellation, or when this raises
    StoreUnavailable because the store has not taken the last flush in time, the partition is served as before.
    """
    assert log.partitions.get(partition.partition_id) is partition
    assert not partition.is_leaving, f"{partition} is being released already"
    partition.is_leaving = True
    try:
        await log.merger.rewriter.settle(partition)
        is_little = partition.tail.size_bytes <= LAST_FLUSH_BYTES
        if not (is_little and log.flusher.has_succeeded_within(LATELY_SECONDS)):
            await log.flusher.flush(partition)  # so that little is left for the time without a leader
        if log.journal.lacks_room and partition.flushable_offset < partition.next_offset:
            raise StoreUnavailable(f"what was appended to {partition} waits for room on the disk")
        if not partition.closed:
            log.withdraw_partition(partition)
            with trio.fail_after(LAST_FLUSH_MAX_SECONDS):
                await log.flusher.settle(partition)
    except trio.TooSlowError as exc:
        _serve_again(log, partition)
        raise StoreUnavailable(f"{partition} was not in the bucket in {LAST_FLUSH_MAX_SECONDS:g} s") from exc
    except BaseException:
        _serve_again(log, partition)
        raise
    if partition.closed:
        return  # its topic was deleted meanwhile
    log.deleter.forget(partition.partition_id)
    log.reader.forget(partition)
    log.close_partition(partition, NOT_LEADER_OR_FOLLOWER)
    logger.info("%s is handed over at offset %d", partition, partition.next_offset)


async def contents_of(partition: Partition) -> bytes:
    """Encode the state of a released partition for its next leader.

    Empty if that must read the bucket: for damaged, missing, late or very many segments.
    """
    is_whole = not (partition.quarantined or partition.missing or partition.late)
    if is_whole and partition.encoded_end and len(partition.manifest.segments) <= TOLD_SEGMENTS_MAX_COUNT:
        return b"".join(await encode_manifests([partition]))
    await trio.lowlevel.checkpoint()
    return b""


def known_from(contents: bytes, partition_id: PartitionId, end_offset: int) -> KnownPartition | None:
    """Decode `contents_of`; None unless it is of this partition and ends at the offset."""
    try:
        known = decode_manifests("what a broker has told", contents).get(partition_id)
        end = None if known is None else known.end()
    except (DamagedObject, struct.error, ValueError) as exc:
        logger.warning("ignoring malformed state of a partition from another broker: %s", exc)
        return None
    return known if end is not None and end.last_offset + 1 == end_offset else None


def _serve_again(log: Log, partition: Partition) -> None:
    if not partition.closed:
        log.open_partition(partition)
        log.merger.note(partition)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Acquisition:
    """The steps of acquiring a partition; the defaults take only what the bucket has.

    prepare: is called before anything is listed. begun: is as for `resolve`. acknowledged_before: offsets below it may
    have been acknowledged, whether or not the bucket has them. restoring: bounds how many partitions read the bucket at
    once. known: the content of the bucket as told by the last leader, which is read instead. recover: replays the rest
    of the partition; it gets a function that restores the partition as before an epoch. decide: is called with the
    result, before clients reach the partition.
    """

    prepare: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint
    begun: Sequence[EpochStart] = ()
    acknowledged_before: int = 0
    restoring: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))
    known: KnownPartition | None = None
    recover: Callable[[Partition, RestoreBefore], Awaitable[None]] | None = None
    decide: Callable[[Partition], Awaitable[None]] | None = None


async def acquire_partition(log: Log, spec: TopicSpec, index: int, how: Acquisition | None = None) -> Partition:
    """Lead a partition of an open topic from now on, with its leader epoch in `spec`. No other broker may lead it.

    Raises what the steps of `how` do, StoreError, StartupError if a newer KafScale has written what must be read,
    KafkaError UNKNOWN_TOPIC_OR_PARTITION if the topic is deleted meanwhile.
    """
    how = how or Acquisition()
    partition = log.new_partition(spec, index)
    assert partition.partition_id not in log.partitions, f"{partition} is led here already"
    assert partition.partition_id not in log.moving, f"{partition} is being released or acquired"
    log.moving[partition.partition_id] = partition
    try:
        await how.prepare()
        await _find(log, partition, how)
        if not partition.closed:
            partition.lost_before = max(partition.lost_before, how.acknowledged_before)
            partition.skip_missing()
            if how.decide is not None:
                await how.decide(partition)
    except BaseException:
        if not partition.closed:
            log.close_partition(partition, NOT_LEADER_OR_FOLLOWER)
        raise
    if partition.closed:
        raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"{partition} was deleted meanwhile")
    log.open_partition(partition)
    log.merger.note(partition)
    logger.info("%s is led with epoch %d from offset %d on", partition, partition.leader_epoch, partition.next_offset)
    return partition


async def _find(log: Log, partition: Partition, how: Acquisition) -> None:
    restorer = Restorer(
        store=log.views.fetch,
        examiner=log.reader.examiner,
        checkpoint={} if how.known is None else {partition.partition_id: how.known},
        log_start_offset=lambda partition_id: partition.log_start_offset,
    )
    async with how.restoring:
        if how.known is None:
            listed = await list_partition(log, partition)
        else:
            listed = how.known.listed(partition.segment_key(0))
        contents = await restorer.restore_partition(partition.partition_id, listed, begun=how.begun)

    async def restore_before(partition_id: PartitionId, begun: EpochStart) -> None:
        take_restored(partition, await restorer.restore_partition(partition_id, listed, begun=[begun]))

    if not partition.closed:
        take_restored(partition, contents)
        if how.recover is not None:
            await how.recover(partition, restore_before)


async def list_partition(log: Log, partition: Partition) -> Sequence[ListedSegment]:
    """List a partition in the bucket, with objects of version 1 if its topic was adopted with such."""
    prefixes = [partition.objects_prefix]
    if partition.topic_id == version_1_topic_id(partition.topic, namespace=log.namespace):
        prefixes.append(f"{topic_name_prefix(partition.topic, namespace=log.namespace)}{partition.index}/")
    return await list_directories(log.views.fetch, prefixes)


GATHER_SECONDS = 0.5  # that a pass waits for partitions which are being restored


@attrs.define(eq=False, repr=False)
class _Wanted:
    partition: Partition
    numbers: Sequence[int]
    restore_before: RestoreBefore
    failure: KafScaleError | None = None
    is_done: bool = False


@attrs.define(eq=False, kw_only=True, repr=False)
class Recovering:
    """Replays streams into partitions of a log whose journal is a stream itself."""

    log: Log
    journal: S3Wal
    streams: Streams
    pass_count: int = attrs.field(default=0, init=False)
    _waiting: list[_Wanted] = attrs.field(factory=list, init=False)
    _replaying: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _expected: set[PartitionId] = attrs.field(factory=set, init=False)
    _has_come: Signal = attrs.field(factory=Signal, init=False)

    @contextmanager
    def expecting(self, partition_id: PartitionId) -> Iterator[None]:
        """Make passes wait for a partition that the block restores, until it comes to `replay`."""
        self._expected.add(partition_id)
        try:
            yield
        finally:
            self._note_come(partition_id)

    def _note_come(self, partition_id: PartitionId) -> None:
        self._expected.discard(partition_id)
        self._has_come.wake()

    async def replay(self, partition: Partition, numbers: Sequence[int], restore_before: RestoreBefore) -> None:
        """Replay what these streams have of a restored partition, and no segment has.

        `restore_before` is as for `Replay`. Raises DamagedObject, StoreError; part of it may have been replayed then.
        """
        wanted = _Wanted(partition, numbers, restore_before)
        self._waiting.append(wanted)
        self._note_come(partition.partition_id)
        async with self._replaying:
            if not wanted.is_done:
                await self._replay_waiting(wanted.numbers)
        if wanted.failure is not None:
            raise wanted.failure

    async def _replay_waiting(self, numbers: Sequence[int]) -> None:
        with trio.move_on_after(GATHER_SECONDS):
            while self._expected:
                await self._has_come.wait()
        batch = {waiting.partition.partition_id: waiting for waiting in self._waiting if waiting.numbers == numbers}
        self._waiting = [waiting for waiting in self._waiting if waiting.numbers != numbers]
        replay = Replay(
            journal=self.journal,
            pool=self.log.pool,
            partitions={partition_id: waiting.partition for partition_id, waiting in batch.items()},
            restore_before=lambda partition_id, begun: batch[partition_id].restore_before(partition_id, begun),
            kept=self.log.kept,
        )

        def handle(entry: WalEntry) -> bool:
            wanted = batch.get((entry.topic_id, entry.partition))
            if wanted is None or wanted.failure is not None or wanted.partition.closed:
                return False
            try:
                return replay.handle(entry)
            except DamagedObject as exc:
                wanted.failure = exc  # of this partition; the others can be led
                return False

        failure: KafScaleError | None = StoreUnavailable("the replay that it waited for was given up")
        try:
            earlier = await self.streams.end({partition_id: waiting.numbers for partition_id, waiting in batch.items()})
            self.pass_count += 1
            await self.journal.recover(earlier, handle)
            await replay.finish()
            failure = None
        except KafScaleError as exc:
            failure = exc
        finally:
            replay.give_up()  # nothing, unless it has failed
            for waiting in batch.values():
                waiting.is_done = True
                waiting.failure = waiting.failure or failure
