"""The log: all partitions of this broker, and what they share.

    chunk pool    memory of everything that is not in the bucket yet
    WAL           one for all partitions, on disk or in the bucket; None under `segment` durability
    flusher       takes tails to the bucket
    spiller       frees memory by means of the WAL when the bucket does not take enough; under `wal` only
    reader        memory tail, else one ranged GET
    deleter       objects of segments that have left the log
    merger        makes large segments of small ones in the background
    checkpointer  manifests in the bucket, which only make the next start shorter
    compactor     keeps the latest record of each key, of topics that want it

`restore` and `replay` bring the partitions back after a start, in this order: what the bucket holds, then what only the
WAL holds. Neither waits for the pool: replayed batches stay in the WAL's files until they are flushed or fetched.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Container, Iterable, Mapping, Sequence
from contextlib import aclosing

import attrs
import trio

from kafscale.errors import DamagedObject, StoreError
from kafscale.formats.wal_entries import WalEntry, WalFile
from kafscale.log.bucket.listing import ListedSegment, PartitionId, list_segments
from kafscale.log.bucket.restore import RestoredPartition, Restorer, RestoreStatistics
from kafscale.log.deletion import Deleter
from kafscale.log.flush.flusher import Flusher
from kafscale.log.flush.spilling import Spiller
from kafscale.log.manifest_checkpoint import ManifestCheckpointer, find_manifests
from kafscale.log.partition.chunks import ChunkPool
from kafscale.log.partition.log_config import LogConfig
from kafscale.log.partition.partition import Partition, Placed, Traffic
from kafscale.log.partition.tail import TailBatch
from kafscale.log.read.reader import LogReader
from kafscale.log.rewrite.compaction import Compactor
from kafscale.log.rewrite.merger import Merger
from kafscale.log.wal.local_wal import KEPT_PREFIX, Wal
from kafscale.log.wal.s3_replay import EarlierLog
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.metrics import CounterFamily, Metrics
from kafscale.store.opening.views import StoreViews
from kafscale.store.paths import parse_segment_key, topic_name_prefix, topic_prefix, version_1_topic_id
from kafscale.store.versions import VersionWriter
from kafscale.wire.records import parse_header

logger = logging.getLogger(__name__)

PROGRESS_EVERY_SECONDS = 1.0
REPLAYED_POOL_FRACTION = 0.5  # of the pool for what the log in the bucket held; the rest is for new batches


@attrs.frozen(kw_only=True)
class TopicSpec:
    """What the log must know of a topic to hold its partitions."""

    name: str
    topic_id: bytes
    partition_count: int
    config: LogConfig
    log_start_offsets: Mapping[int, int]


@attrs.frozen(eq=False)
class TrafficMetrics:
    """What went in and out, by topic."""

    bytes_in: CounterFamily
    records_in: CounterFamily
    bytes_out: CounterFamily
    records_out: CounterFamily

    @classmethod
    def register(cls, metrics: Metrics) -> TrafficMetrics:
        return cls(
            metrics.counter("kafscale_topic_bytes_in_total", "Bytes of record batches appended.", "topic"),
            metrics.counter("kafscale_topic_records_in_total", "Records appended.", "topic"),
            metrics.counter("kafscale_topic_bytes_out_total", "Bytes of record batches fetched.", "topic"),
            metrics.counter("kafscale_topic_records_out_total", "Records fetched.", "topic"),
        )

    def of_topic(self, name: str) -> Traffic:
        return Traffic(
            self.bytes_in.of(name), self.records_in.of(name), self.bytes_out.of(name), self.records_out.of(name)
        )

    def forget_topic(self, name: str) -> None:
        for family in (self.bytes_in, self.records_in, self.bytes_out, self.records_out):
            family.remove(name)


@attrs.define(eq=False, kw_only=True)
class Log:
    """All partitions. Topics come and go by `open_topic`, `close_topic` and `delete_objects`."""

    views: StoreViews
    namespace: str
    leader_epoch: int
    segment_bytes: int
    pool: ChunkPool
    wal: Wal | S3Wal | None
    flusher: Flusher
    reader: LogReader
    deleter: Deleter
    merger: Merger
    compactor: Compactor
    traffic: TrafficMetrics
    manifest_checkpointer: ManifestCheckpointer = attrs.field(init=False)
    restored: RestoreStatistics = attrs.field(factory=RestoreStatistics, init=False)
    superseded: Counter[WalFile] = attrs.field(factory=Counter, init=False)  # batches that were not replayed, by file
    spiller: Spiller | None = attrs.field(default=None, init=False)
    partitions: dict[PartitionId, Partition] = attrs.field(factory=dict, init=False)
    by_name: dict[str, list[Partition]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        writer = VersionWriter(
            store=self.views.background, namespace=self.namespace, kind="manifests", epoch=self.leader_epoch
        )
        self.manifest_checkpointer = ManifestCheckpointer(writer=writer, partitions=self.partitions.values)

    def partition(self, topic_id: bytes, index: int) -> Partition | None:
        return self.partitions.get((topic_id, index))

    def partition_named(self, topic: str, index: int) -> Partition | None:
        """By the name of the topic, as older clients produce and fetch."""
        partitions = self.by_name.get(topic)
        return partitions[index] if partitions is not None and 0 <= index < len(partitions) else None

    # ---- topics -----------------------------------------------------------------------------------------------

    def open_topic(self, spec: TopicSpec) -> None:
        """Create the partitions of a topic that are not there yet; those that are get its configuration."""
        partitions = self.by_name.setdefault(spec.name, [])
        for partition in partitions:
            partition.config = spec.config
        for index in range(len(partitions), spec.partition_count):
            partition = Partition(
                topic=spec.name,
                topic_id=spec.topic_id,
                index=index,
                leader_epoch=self.leader_epoch,
                config=spec.config,
                namespace=self.namespace,
                segment_bytes=self.segment_bytes,
                pool=self.pool,
                wal=self.wal,
                on_dirty=self.flusher.mark,
                on_flushed=self.merger.note,
                traffic=self.traffic.of_topic(spec.name),
            )
            partition.log_start_offset = spec.log_start_offsets.get(index, 0)
            partitions.append(partition)
            self.partitions[spec.topic_id, index] = partition

    def close_topic(self, name: str) -> Sequence[Partition]:
        """Forget a topic's partitions; waiting fetches and produces of them are answered."""
        partitions = self.by_name.pop(name, [])
        for partition in partitions:
            del self.partitions[partition.topic_id, partition.index]
            self.flusher.forget(partition)
            partition.close()
        self.traffic.forget_topic(name)
        return partitions

    async def delete_objects(self, name: str, topic_id: bytes) -> None:
        """Delete everything that a topic has in the bucket. What can't be deleted now is logged, and stays."""
        await self.flusher.wait_ended(topic_id)  # an upload that is under way would leave its objects behind
        deleted = 0
        try:
            async with aclosing(self._list_topic(name, topic_id)) as pages:
                async for keys in pages:
                    await self.views.background.delete(keys)
                    deleted += len(keys)
        except StoreError as exc:
            logger.error("deleting the objects of topic %s stopped after %d of them: %s", name, deleted, exc)
        else:
            logger.info("deleted topic %s and its %d objects", name, deleted)

    async def _list_topic(self, name: str, topic_id: bytes) -> AsyncGenerator[Sequence[str], None]:
        """The keys of a topic, page by page; with those of version 1, if the topic was adopted with such segments."""
        async with aclosing(
            self.views.background.list(topic_prefix(name, topic_id, namespace=self.namespace))
        ) as pages:
            async for page in pages:
                yield [info.key for info in page]
        if topic_id == version_1_topic_id(name, namespace=self.namespace):
            async with aclosing(self.views.background.list(topic_name_prefix(name, namespace=self.namespace))) as pages:
                async for page in pages:
                    keys = [parse_segment_key(info.key) for info in page]
                    if of_version_1 := [key.key for key in keys if key is not None and key.version == 1]:
                        yield of_version_1

    # ---- start ------------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Give every open partition what the bucket holds of it. Raises StartupError, StoreError."""
        store = self.views.fetch  # the whole limit: nobody else is there yet, and everybody waits
        began = trio.current_time()
        checkpoint = await find_manifests(store, self.namespace, self.manifest_checkpointer.writer)
        restorer = Restorer(
            store=store,
            examiner=self.reader.examiner,
            checkpoint=checkpoint,
            log_start_offset=lambda partition_id: self.partitions[partition_id].log_start_offset,
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
        _report_unknown(listed, self.partitions)
        wanted = {
            partition_id: listed.get(partition_id, ())
            for partition_id in self.partitions
            if partition_id in listed or partition_id in checkpoint
        }
        done = _Progress(f"restoring partitions: %d of {len(wanted)}")
        for partition_id, contents in (await restorer.restore(wanted, done.report)).items():
            self._take_restored(self.partitions[partition_id], contents)
        self.restored.seconds = trio.current_time() - began
        logger.info(
            "restored %d partitions in %.1f s: %d objects listed, %d segments known by the checkpoint, %d footers read",
            len(wanted),
            self.restored.seconds,
            self.restored.listed_object_count,
            self.restored.vouched_segment_count,
            self.restored.footer_read_count,
        )

    def _take_restored(self, partition: Partition, contents: RestoredPartition) -> None:
        partition.restore(contents.segments, contents.end, lost_before=contents.lost_before)
        partition.quarantined.update(contents.quarantined)
        if not contents.segments or contents.lost_before:
            return  # it has been said what is missing
        first_offset = contents.segments[0].base_offset
        if first_offset > partition.log_start_offset:
            logger.error(
                "%s begins at offset %d, and the bucket's first segment of it at %d: objects are missing",
                partition,
                partition.log_start_offset,
                first_offset,
            )

    async def replay(self, earlier: EarlierLog | None = None) -> None:
        """Bring back what the WAL has and no segment has. Raises DamagedObject, StoreError.

        `earlier` is what the log in the bucket held at the start: needed under `s3-wal` only.
        """
        now_ms = time.time_ns() // 1_000_000
        if isinstance(self.wal, Wal):
            progress = _Progress("replaying the write-ahead log: %d entries")
            await self.wal.replay(
                lambda entry: self._replay_entry(entry, now_ms),
                on_progress=lambda done: progress.report(done.entry_count),
            )
            await self._keep_superseded(self.wal)
        elif self.wal is not None:
            assert earlier is not None
            await self.wal.replay(earlier, lambda entry: self._replay_entry(entry, now_ms))
        for partition in self.partitions.values():
            partition.skip_missing()

    async def _keep_superseded(self, wal: Wal) -> None:
        """What only this data directory has, of offsets that another broker has written since, is left to the user."""
        for file in tuple(self.superseded):
            if not await wal.keep_copy(file):
                del self.superseded[file]  # an earlier start has kept it and said so
        if self.superseded:
            logger.error(
                "%d record batches that were acknowledged here are not in the log: another broker has taken over and "
                "written the same partitions; they are kept in %s of %s: see `kafscale inspect --batches`",
                self.superseded.total(),
                ", ".join(f"{KEPT_PREFIX}{file.name}" for file in self.superseded),
                wal.disk.location,
            )

    def _replay_entry(self, entry: WalEntry, now_ms: int) -> bool:
        """Put an entry back into its partition's tail; False if it is in the bucket, or its topic is deleted."""
        partition = self.partitions.get((entry.topic_id, entry.partition))
        if partition is None:
            return False
        if partition.has_superseded(entry):
            assert entry.file is not None
            self.superseded[entry.file] += 1
            return False
        if entry.base_offset < partition.next_offset:
            return False
        missing_before = max(partition.log_start_offset, partition.lost_before)
        if not partition.tail.batches and partition.next_offset < entry.base_offset <= missing_before:
            partition.skip_to(entry.base_offset)
        if entry.base_offset > partition.next_offset:
            raise DamagedObject(
                f"{partition}: the write-ahead log goes on at offset {entry.base_offset}, and the bucket ends before "
                f"{partition.next_offset}; objects are missing from the bucket: bring back those whose keys begin with "
                f"{partition.objects_prefix}, or start with an empty --data-dir to go on without what only this "
                "write-ahead log holds"
            )
        data = memoryview(entry.data)
        partition.replay(entry, parse_header(data), now_ms, placed=self._place_replayed(partition, data))
        return True

    def _place_replayed(self, partition: Partition, data: memoryview) -> Placed | None:
        """Keep what was just read from the bucket, which costs a GET a batch to read again, while the pool has room."""
        if not isinstance(self.wal, S3Wal) or self.pool.used_bytes > self.pool.size_bytes * REPLAYED_POOL_FRACTION:
            return None
        return partition.place_nowait(data)

    # ---- while running ----------------------------------------------------------------------------------------

    def on_durable(self, entries: Iterable[WalEntry]) -> None:
        """These entries are synced to disk, in this order: high watermarks move."""
        ends: dict[Partition, int] = {}
        sizes: dict[Partition, int] = {}
        for batch in entries:
            assert isinstance(batch, TailBatch)
            batch.became_durable()
            partition = batch.owner
            if partition.closed:
                partition.release(batch)
            else:
                ends[partition] = batch.last_offset + 1
                sizes[partition] = sizes.get(partition, 0) + batch.size_bytes
        for partition, end_offset in ends.items():
            partition.on_durable(end_offset, sizes[partition])

    @property
    def is_full(self) -> bool:
        """Whether the write-ahead log has no room on the disk, so that nothing should be appended now."""
        return isinstance(self.wal, Wal) and self.wal.is_full

    async def wait_for_room(self) -> None:
        """Wait while it is full."""
        if isinstance(self.wal, Wal):
            await self.wal.wait_for_room()

    def quarantined_count(self) -> int:
        """Segments in the bucket that are damaged and not read."""
        return sum(len(partition.quarantined) for partition in self.partitions.values())

    def producer_ids(self) -> Iterable[int]:
        """Of all idempotent producers that any partition remembers."""
        return (producer_id for partition in self.partitions.values() for producer_id in partition.producers.producers)

    def tail_bytes(self) -> int:
        """Bytes that are in no segment yet."""
        return sum(partition.tail.size_bytes for partition in self.partitions.values())


def _report_unknown(listed: Mapping[PartitionId, Sequence[ListedSegment]], known: Container[PartitionId]) -> None:
    unknown = {segments[0].key.topic for partition_id, segments in listed.items() if partition_id not in known}
    if unknown:
        names = ", ".join(sorted(unknown)[:10])
        logger.warning(
            "the bucket holds segments of %d deleted or unknown topics: %s; `kafscale adopt` registers them",
            len(unknown),
            names,
        )


@attrs.define(eq=False)
class _Progress:
    """Says how far a long step has come, once a second."""

    message: str
    _next_at: float = attrs.field(factory=lambda: trio.current_time() + PROGRESS_EVERY_SECONDS, init=False)

    def report(self, count: int) -> None:
        if trio.current_time() >= self._next_at:
            logger.info(self.message, count)
            self._next_at = trio.current_time() + PROGRESS_EVERY_SECONDS
