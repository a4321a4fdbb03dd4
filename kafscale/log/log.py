"""All partitions of this broker, and the parts that they share.

After a start, `restore` brings back what the bucket holds, then `replay` what only the journal holds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import aclosing

import attrs
import trio

from kafscale.errors import DamagedObject, StoreError
from kafscale.formats.manifest import ListedSegment, PartitionId
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.bucket.deletion import BuriedTopic, Deleter
from kafscale.log.bucket.listing import list_segments
from kafscale.log.bucket.manifest_keeper import ManifestCheckpointer
from kafscale.log.bucket.restore import RestoredPartition, Restorer, RestoreStatistics
from kafscale.log.flush.flusher import Flusher, Spiller
from kafscale.log.partition.chunks import ChunkPool
from kafscale.log.partition.log_config import LogConfig
from kafscale.log.partition.partition import Partition, Traffic
from kafscale.log.partition.producers import ProducerBudget
from kafscale.log.read.reader import LogReader
from kafscale.log.replaying import NotOpen, Replay, RestoreBefore
from kafscale.log.rewrite.compaction import Compactor
from kafscale.log.rewrite.merger import Merger
from kafscale.log.wal.journal import Journal, KeptAside
from kafscale.metrics import CounterFamily, Measured, Metrics
from kafscale.store.guarded import guarded
from kafscale.store.opening.views import StoreViews
from kafscale.store.paths import parse_segment_key, topic_name_prefix, topic_prefix, version_1_topic_id
from kafscale.store.version_writer import VersionWriter
from kafscale.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION

logger = logging.getLogger(__name__)

PROGRESS_EVERY_SECONDS = 1.0
# Of one partition, which files of the write-ahead log may have had: as many as a damaged last segment is taken to have.
LOST_OFFSETS_COUNT = 1 << 31
OPENING_SECONDS = 1.0  # longer than what clients had under way to a partition takes to be refused


async def _restore_nothing(_partition_id: PartitionId, _begun: EpochStart) -> None:
    await trio.lowlevel.checkpoint()


@attrs.frozen(kw_only=True)
class TopicSpec:
    """A topic as the log needs it. `leader_epochs` has the partitions that are led here.

    Records below `lost_offsets` may have been lost with files of the local log.
    """

    name: str
    topic_id: bytes
    partition_count: int
    config: LogConfig
    log_start_offsets: Mapping[int, int]
    leader_epochs: Mapping[int, int]
    lost_offsets: Mapping[int, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class TrafficMetrics:
    families: Sequence[CounterFamily]  # in the order of the fields of Traffic

    @classmethod
    def register(cls, metrics: Metrics) -> TrafficMetrics:
        told = {
            "kafscale_topic_appended_bytes_total": "Bytes of record batches appended.",
            "kafscale_topic_appended_records_total": "Records appended.",
            "kafscale_topic_fetched_bytes_total": "Bytes of record batches fetched.",
            "kafscale_topic_fetched_records_total": "Records fetched.",
        }
        return cls([metrics.counter(name, help, "topic") for name, help in told.items()])

    def of_topic(self, name: str) -> Traffic:
        return Traffic(*(family.of(name) for family in self.families))

    def forget_topic(self, name: str) -> None:
        for family in self.families:
            family.remove(name)


@attrs.define(eq=False, kw_only=True, repr=False)
class Log:
    """All partitions that this broker leads.

    `broker_epoch` is in the keys that this start of the broker writes for all partitions. `by_name` has each existing
    topic, with None for a partition that is not led here. `moving` partitions are on their way in or out: they exist in
    memory, hidden from clients. The callbacks in `on_opened` and `on_withdrawn` get each partition that begins or ends
    to be served; one that is withdrawn and then closed twice.
    """

    views: StoreViews
    namespace: str
    broker_epoch: int
    segment_bytes: int
    pool: ChunkPool
    journal: Journal
    flusher: Flusher
    reader: LogReader
    deleter: Deleter
    merger: Merger
    compactor: Compactor
    producer_budget: ProducerBudget
    traffic: TrafficMetrics
    spiller: Spiller | None
    partitions: dict[PartitionId, Partition]
    leads_all: bool = True  # this broker leads every partition of the namespace
    manifest_checkpointer: ManifestCheckpointer = attrs.field(init=False)
    restored: RestoreStatistics = attrs.field(factory=RestoreStatistics, init=False)
    kept: KeptAside = attrs.field(factory=KeptAside, init=False)  # batches that this start could not put back
    by_name: dict[str, list[Partition | None]] = attrs.field(factory=dict, init=False)
    moving: dict[PartitionId, Partition] = attrs.field(factory=dict, init=False)
    on_opened: list[Callable[[Partition], None]] = attrs.field(factory=list, init=False)
    on_withdrawn: list[Callable[[Partition], None]] = attrs.field(factory=list, init=False)
    _restore_before: RestoreBefore = attrs.field(default=_restore_nothing, init=False)

    def __attrs_post_init__(self) -> None:
        writer = VersionWriter(
            store=self.views.background, namespace=self.namespace, kind="manifests", epoch=self.broker_epoch
        )
        self.manifest_checkpointer = ManifestCheckpointer(
            writer=writer, partitions=self.partitions.values, is_kept=self.leads_all
        )

    def register(self, metrics: Metrics) -> None:
        parts: list[Measured] = [self.pool, self.flusher, self.reader, self.deleter, self.merger, self.compactor]
        parts += [self.producer_budget, self.restored, self.manifest_checkpointer]
        parts += [] if self.spiller is None else [self.spiller]
        for part in parts:
            part.register(metrics)
        metrics.gauge("kafscale_partitions", "Partitions open on this broker.", lambda: len(self.partitions))
        help = "Batches of the WAL not replayed because another broker wrote their offsets."
        metrics.gauge("kafscale_superseded_batches", help, self.kept.superseded.total)
        help = "Batches of the WAL not replayed because the metadata does not know their topics."
        metrics.gauge("kafscale_unknown_topic_batches", help, self.kept.unknown.total)
        metrics.gauge("kafscale_tail_bytes", "Bytes of record batches that are not in the bucket yet.", self.tail_bytes)
        help = "Damaged segments that are not read."
        metrics.gauge("kafscale_quarantined_segments", help, self.quarantined_count)
        help = "Unread segments that a broker wrote after another one had taken over."
        metrics.gauge("kafscale_late_segments", help, self.late_count)

    def partition(self, topic_id: bytes, index: int) -> Partition | None:
        return self.partitions.get((topic_id, index))

    def partition_named(self, topic: str, index: int) -> Partition | None:
        """Return a partition by its topic's name, as older clients produce and fetch."""
        partitions = self.by_name.get(topic)
        return partitions[index] if partitions is not None and 0 <= index < len(partitions) else None

    # ---- topics -----------------------------------------------------------------------------------------------

    def open_topic(self, spec: TopicSpec) -> None:
        """Open new partitions of a topic that are led here, empty; the existing ones get its config."""
        partitions = self.by_name.setdefault(spec.name, [])
        for partition in (*partitions, *self._moving_of(spec.name)):
            if partition is not None:
                partition.config = spec.config
        for index in range(len(partitions), spec.partition_count):
            partitions.append(None)
            if index in spec.leader_epochs:
                self.open_partition(self.new_partition(spec, index))

    def close_topic(self, name: str) -> Sequence[Partition]:
        """Forget a deleted topic's partitions; their waiting requests are answered."""
        partitions = [partition for partition in self.by_name.pop(name, []) if partition is not None]
        for partition in (*partitions, *self._moving_of(name)):
            self.close_partition(partition, UNKNOWN_TOPIC_OR_PARTITION)
        self.traffic.forget_topic(name)
        return partitions

    def _moving_of(self, topic: str) -> Sequence[Partition]:
        return [partition for partition in self.moving.values() if partition.topic == topic]

    # ---- one partition ----------------------------------------------------------------------------------------

    def new_partition(self, spec: TopicSpec, index: int) -> Partition:
        """Make an empty partition, which clients reach after `open_partition`."""
        partition = Partition(
            topic=spec.name,
            topic_id=spec.topic_id,
            index=index,
            leader_epoch=spec.leader_epochs[index],
            config=spec.config,
            namespace=self.namespace,
            segment_bytes=self.segment_bytes,
            pool=self.pool,
            journal=self.journal,
            on_dirty=self.flusher.mark,
            on_flushed=self.merger.note,
            producer_budget=self.producer_budget,
            traffic=self.traffic.of_topic(spec.name),
        )
        partition.log_start_offset = spec.log_start_offsets.get(index, 0)
        partition.lost_offset = spec.lost_offsets.get(index, 0)
        return partition

    def open_partition(self, partition: Partition) -> None:
        """Serve a partition of an open topic from now on."""
        assert not partition.closed
        partition.is_leaving = False
        now = trio.current_time()
        if partition.opened_at is None:  # otherwise it is served again
            partition.opened_at = now
        partition.producers.open(now + OPENING_SECONDS, partition.next_offset)
        self.moving.pop(partition.partition_id, None)
        self.by_name[partition.topic][partition.index] = partition
        self.partitions[partition.partition_id] = partition
        for tell in self.on_opened:
            tell(partition)

    def withdraw_partition(self, partition: Partition) -> None:
        """Hide a partition from clients. Its waiting fetches are answered; appended batches become durable."""
        self.moving[partition.partition_id] = partition
        self.by_name[partition.topic][partition.index] = None
        del self.partitions[partition.partition_id]
        self._tell_withdrawn(partition)
        partition.wake_waiters()

    def _tell_withdrawn(self, partition: Partition) -> None:
        for tell in self.on_withdrawn:
            tell(partition)

    def delete_records(self, partition_id: PartitionId, before_offset: int) -> None:
        """Move the log start of a partition, which may be moving."""
        partition = self.partitions.get(partition_id) or self.moving.get(partition_id)
        if partition is not None:
            partition.delete_records(before_offset)

    def close_partition(self, partition: Partition, error: int) -> None:
        """Forget a partition; requests that still hold it get `error`."""
        self.moving.pop(partition.partition_id, None)
        if self.partitions.pop(partition.partition_id, None) is not None:
            row = self.by_name.get(partition.topic)
            if row is not None:
                row[partition.index] = None
        self._tell_withdrawn(partition)
        self.flusher.forget(partition)
        self.merger.forget(partition)
        partition.close(error)

    async def delete_objects(self, topic: BuriedTopic) -> None:
        """Delete a topic's objects; those that can't be deleted are logged, and stay. Raises Fenced."""
        await self.flusher.wait_ended(topic.topic_id)  # an upload that is under way would leave its objects behind
        deleted = 0
        try:
            async with aclosing(self._list_topic(topic.name, topic.topic_id)) as pages:
                async for keys in pages:
                    await guarded(self.views.background).delete_in_turn([keys], topic.decided)
                    deleted += len(keys)
        except StoreError as exc:
            logger.error("deleting the objects of topic %s stopped after %d of them: %s", topic.name, deleted, exc)
        else:
            logger.info("deleted topic %s and its %d objects", topic.name, deleted)

    async def _list_topic(self, name: str, topic_id: bytes) -> AsyncGenerator[Sequence[str], None]:
        """Yield pages of a topic's keys, with those of version 1 if it was adopted with such segments."""
        own = topic_prefix(name, topic_id, namespace=self.namespace)
        is_adopted = topic_id == version_1_topic_id(name, namespace=self.namespace)
        for prefix in (own, topic_name_prefix(name, namespace=self.namespace)) if is_adopted else (own,):
            async with aclosing(self.views.background.list(prefix)) as pages:
                async for page in pages:
                    keys = [info.key for info in page if prefix is own or _is_version_1(info.key)]
                    if keys:
                        yield keys

    # ---- start ------------------------------------------------------------------------------------------------

    async def restore(self, begun: Callable[[PartitionId], Sequence[EpochStart]] = lambda partition_id: ()) -> None:
        """Restore every open partition; `begun` is as for `resolve`. Raises StartupError, StoreError."""
        store = self.views.fetch  # the whole limit: no client is connected yet
        began = trio.current_time()
        checkpoint = await self.manifest_checkpointer.find(store)
        restorer = Restorer(
            store=store,
            examiner=self.reader.examiner,
            checkpoint=checkpoint,
            log_start_offset=lambda partition_id: self.partitions[partition_id].log_start_offset,
            begun=begun,
            statistics=self.restored,
        )
        progress = _Progress("listing the bucket: %d objects")

        def on_listed(count: int) -> None:
            self.restored.listed_object_count = count
            progress.report(count)

        listed = await list_segments(
            store,
            self.namespace,
            on_listed,
            prefixes=[partition.objects_prefix for partition in self.partitions.values()],
        )
        if self.leads_all:
            _report_unknown(listed, self.partitions)
        wanted = {
            partition_id: listed.get(partition_id, ())
            for partition_id in self.partitions
            if partition_id in listed or partition_id in checkpoint
        }
        done = _Progress("restoring partitions: %d of %d", (len(wanted),))
        for partition_id, contents in (await restorer.restore(wanted, done.report)).items():
            take_restored(self.partitions[partition_id], contents)

        async def restore_before(partition_id: PartitionId, begun: EpochStart) -> None:
            contents = await restorer.restore_partition(partition_id, wanted[partition_id], begun=[begun])
            take_restored(self.partitions[partition_id], contents)

        self._restore_before = restore_before
        self.restored.seconds = trio.current_time() - began
        logger.info(
            "restored %d partitions in %.1f s: %d objects listed, %d segments known by the checkpoint, %d footers read",
            len(wanted),
            self.restored.seconds,
            self.restored.listed_object_count,
            self.restored.vouched_segment_count,
            self.restored.footer_read_count,
        )

    async def replay(
        self,
        not_open: NotOpen | None = None,
        is_deleted: Callable[[PartitionId], Awaitable[bool]] | None = None,
    ) -> None:
        """Replay what the journal has and no segment has.

        Where segments are missing, `is_deleted` tells whether another broker has deleted them with their topic. Raises
        DamagedObject, StorageFailed, StoreError, Fenced.
        """
        replay = Replay(
            journal=self.journal,
            pool=self.pool,
            partitions=self.partitions,
            restore_before=self._restore_before,
            kept=self.kept,
            not_open=not_open or NotOpen(),
        )
        progress = _Progress("replaying the write-ahead log: %d entries")
        too_early: dict[PartitionId, _TooEarly] = {}

        def handle(entry: WalEntry) -> bool:
            partition_id = entry.topic_id, entry.partition
            try:
                return replay.handle(entry)
            except DamagedObject as exc:
                too_early.setdefault(partition_id, _TooEarly(exc)).last_offset = entry.base_offset
                return False

        await self.journal.replay(handle, on_progress=progress.report)
        for partition_id, entries in too_early.items():
            has_come = self.partitions[partition_id].next_offset > entries.last_offset
            if not has_come and (is_deleted is None or not await is_deleted(partition_id)):
                raise entries.damage
        await replay.finish()
        self._restore_before = _restore_nothing
        await self.journal.keep_aside(self.kept)
        for partition in self.partitions.values():
            partition.skip_missing()

    def skip_lost(self) -> Mapping[PartitionId, int]:
        """Move all partitions past what the local log may have lost; return their new ends, to be persisted."""
        for partition in self.partitions.values():
            partition.lost_offset = partition.next_offset + LOST_OFFSETS_COUNT
            partition.skip_missing()
        return {partition_id: partition.lost_offset for partition_id, partition in self.partitions.items()}

    # ---- while running ----------------------------------------------------------------------------------------

    def quarantined_count(self) -> int:
        return sum(len(partition.quarantined) for partition in self.partitions.values())

    def late_count(self) -> int:
        return sum(len(partition.late) for partition in self.partitions.values())

    def producer_ids(self) -> Iterable[int]:
        return (producer_id for partition in self.partitions.values() for producer_id in partition.producers.producers)

    def tail_bytes(self) -> int:
        return sum(partition.tail.size_bytes for partition in self.partitions.values())


def _is_version_1(key: str) -> bool:
    parsed = parse_segment_key(key)
    return parsed is not None and parsed.version == 1


def take_restored(partition: Partition, contents: RestoredPartition) -> None:
    partition.restore(contents.segments, contents.end, lost_before=contents.lost_before)
    partition.quarantined.update(contents.quarantined)
    for missing in contents.missing:
        key = partition.segment_key(
            missing.base_offset, epoch=missing.epoch, generation=missing.generation, version=missing.version
        )
        partition.missing[key] = missing.last_offset
    partition.set_aside(contents.late)
    if not contents.segments or contents.lost_before:
        return  # it has been said what is missing
    first_offset = contents.segments[0].base_offset
    if first_offset > max(partition.log_start_offset, partition.lost_offset):
        logger.error(
            "%s begins at offset %d, and the bucket's first segment of it at %d: objects are missing",
            partition,
            partition.log_start_offset,
            first_offset,
        )


def _report_unknown(listed: Mapping[PartitionId, Sequence[ListedSegment]], known: Container[PartitionId]) -> None:
    unknown = {segments[0].key.topic for partition_id, segments in listed.items() if partition_id not in known}
    if unknown:
        names = ", ".join(sorted(unknown)[:10])
        logger.warning(
            "the bucket holds segments of %d deleted or unknown topics: %s; `kafscale adopt` registers them",
            len(unknown),
            names,
        )


@attrs.define(eq=False, repr=False)
class _TooEarly:
    """Entries of one partition whose offsets were not the next ones.

    That is `damage`, unless the log has them again behind those that come before them, as after `kafscale adopt`.
    """

    damage: DamagedObject
    last_offset: int = attrs.field(default=0, init=False)  # the base offset of the last one


@attrs.define(eq=False, repr=False)
class _Progress:
    message: str
    totals: Sequence[int] = ()
    _next_at: float = attrs.field(factory=lambda: trio.current_time() + PROGRESS_EVERY_SECONDS, init=False)

    def report(self, count: int) -> None:
        if trio.current_time() >= self._next_at:
            logger.info(self.message, count, *self.totals)
            self._next_at = trio.current_time() + PROGRESS_EVERY_SECONDS


PRODUCER_EXPIRATION_CHECK_SECONDS = 600.0  # Kafka: producer.id.expiration.check.interval.ms, the same
PARTITIONS_PER_STEP_COUNT = 1_000  # then others may run


async def expire_producers(log: Log) -> None:
    """Forget idempotent producers that were silent for `producer.id.expiration.ms` (KIP-854), until cancelled."""
    while True:
        await trio.sleep(PRODUCER_EXPIRATION_CHECK_SECONDS)
        now_ms = time.time_ns() // 1_000_000
        for count, partition in enumerate(list(log.partitions.values()), start=1):
            partition.producers.expire(now_ms - partition.config.producer_id_expiration_ms)
            if not count % PARTITIONS_PER_STEP_COUNT:
                await trio.lowlevel.checkpoint()
