"""Measure the bytes of each topic in the bucket, the part that is no longer read, and the unflushed part of the WAL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing

import attrs

from kafscale.concurrency.nurseries import for_each
from kafscale.errors import DamagedObject, NotFound
from kafscale.formats.footer_reading import read_footer
from kafscale.formats.manifest import PartitionId, Segment
from kafscale.formats.resolution import assumed_ends, resolve
from kafscale.formats.segment import Footer
from kafscale.formats.wal_entries import RECORD_BATCH
from kafscale.log.bucket.restore import FOOTER_READS_MAX_COUNT
from kafscale.log.check.wal_check import WalFileCheck
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.local_replay import NAME
from kafscale.store.base import ObjectInfo, ObjectStore
from kafscale.store.paths import (
    OFFSET_MAX,
    SegmentKey,
    namespace_prefix,
    parse_numbered_key,
    parse_segment_key,
    system_namespace_prefix,
)
from kafscale.wire.batch_header import parse_header

BYTES_PER_GB = 1 << 30  # S3 bills a GB of 2^30 bytes


@attrs.define(eq=False, repr=False)
class PartitionUsage:
    segments: dict[SegmentKey, int] = attrs.field(factory=lambda: defaultdict(int), init=False)

    @property
    def last_key(self) -> SegmentKey:
        """The segment of the greatest base offset, of those that the broker of the latest epoch knew."""
        ends = assumed_ends(self.segments)
        return max((key for key in self.segments if key not in ends), key=lambda key: (key.epoch, key.generation))


@attrs.define(eq=False, kw_only=True, repr=False)
class TopicUsage:
    """The objects of one topic. `size_bytes` counts segments with their `.index`; times are of uploads.

    `deletable_bytes` are no longer read: of a deleted topic, below the log start, or covered by a merged segment. They
    are deleted after `file.delete.delay.ms`, or as orphans.
    """

    name: str
    topic_id: bytes
    segment_count: int = 0
    size_bytes: int = 0
    deletable_bytes: int = 0
    oldest_ms: int = 2**63 - 1
    newest_ms: int = -1
    partitions: dict[int, PartitionUsage] = attrs.field(factory=lambda: defaultdict(PartitionUsage), init=False)

    def add(self, key: SegmentKey, info: ObjectInfo) -> None:
        self.size_bytes += info.size_bytes
        self.partitions[key.partition].segments[key.of_kind("kfs")] += info.size_bytes
        if key.kind == "kfs":
            self.segment_count += 1
            self.oldest_ms = min(self.oldest_ms, info.modified_ms)
            self.newest_ms = max(self.newest_ms, info.modified_ms)


@attrs.frozen(kw_only=True)
class Usage:
    """All topics by name, and the broker's own objects: of its write-ahead log, and others."""

    topics: Sequence[TopicUsage]
    wal_object_count: int
    wal_bytes: int
    own_bytes: int


async def measure_usage(store: ObjectStore, namespace: str, on_progress: Callable[[int], None]) -> Usage:
    """List the namespace. `on_progress` gets the number of objects seen. Raises StoreError."""
    topics: dict[bytes, TopicUsage] = {}
    seen = 0
    async with aclosing(store.list(namespace_prefix(namespace))) as pages:
        async for page in pages:
            for info in page:
                key = parse_segment_key(info.key)
                if key is not None:
                    usage = topics.get(key.topic_id)
                    if usage is None:
                        usage = topics[key.topic_id] = TopicUsage(name=key.topic, topic_id=key.topic_id)
                    usage.add(key, info)
            seen += len(page)
            on_progress(seen)
    wal_sizes: list[int] = []
    own_bytes = 0
    async with aclosing(store.list(system_namespace_prefix(namespace))) as pages:
        async for page in pages:
            for info in page:
                key_of_own = parse_numbered_key(info.key)
                if key_of_own is not None and key_of_own.kind == "wal":
                    wal_sizes.append(info.size_bytes)
                else:
                    own_bytes += info.size_bytes
    return Usage(
        topics=sorted(topics.values(), key=lambda usage: (usage.name, usage.topic_id)),
        wal_object_count=len(wal_sizes),
        wal_bytes=sum(wal_sizes),
        own_bytes=own_bytes,
    )


# ---- what is going to be deleted -------------------------------------------------------------------------------------


async def find_deletable(store: ObjectStore, topic: TopicUsage, log_start_offsets: Mapping[int, int]) -> None:
    """Measure the part of an existing topic that is no longer read. Raises StoreError."""

    async def look(item: tuple[int, PartitionUsage]) -> None:
        index, partition = item
        segments, footers = await _segments(store, partition)
        resolution = resolve(segments, {key: footer.epochs for key, footer in footers.items()})
        read = {
            segment.key for segment in resolution.segments if segment.last_offset >= log_start_offsets.get(index, 0)
        }
        read |= {partition.last_key, *resolution.late}
        topic.deletable_bytes += sum(segment.size_bytes for segment in segments if segment.key not in read)

    tasks_count = min(FOOTER_READS_MAX_COUNT, len(topic.partitions))
    await for_each(topic.partitions.items(), look, tasks_count=tasks_count)


async def _segments(
    store: ObjectStore, partition: PartitionUsage
) -> tuple[Sequence[Segment], Mapping[SegmentKey, Footer]]:
    """Return the segments with their ends, reading the footers of merged and last ones."""
    ends = assumed_ends(partition.segments)
    segments: list[Segment] = []
    footers: dict[SegmentKey, Footer] = {}
    for key, size_bytes in partition.segments.items():
        last_offset = ends.get(key, OFFSET_MAX)
        if key.generation or key not in ends:
            try:
                footers[key] = await read_footer(store, key)
            except (DamagedObject, NotFound):
                continue  # quarantined: it covers nothing, and is kept
            last_offset = footers[key].last_offset
        segments.append(Segment(key=key, last_offset=last_offset, size_bytes=size_bytes, max_timestamp_ms=-1))
    return segments, footers


# ---- what is not in the bucket yet -----------------------------------------------------------------------------------


async def pending_bytes(store: ObjectStore, usage: Usage, disk: Disk) -> Mapping[bytes, int]:
    """Return, by topic id, the bytes of batches in a local log and in no segment. Raises StoreError, OSError.

    With a live broker it is as of a moment ago.
    """
    sizes = await _logged_batches(disk)
    last_keys = {
        (topic.topic_id, index): partition.last_key
        for topic in usage.topics
        for index, partition in topic.partitions.items()
    }
    pending: dict[bytes, int] = defaultdict(int)

    async def add(partition_id: PartitionId) -> None:
        end_offset, key = 0, last_keys.get(partition_id)
        if key is not None:
            try:
                end_offset = (await read_footer(store, key)).last_offset + 1
            except (DamagedObject, NotFound):  # merged, or deleted, since it was listed
                end_offset = key.base_offset
        pending[partition_id[0]] += sum(size for offset, size in sizes[partition_id].items() if offset >= end_offset)

    await for_each(list(sizes), add, tasks_count=min(FOOTER_READS_MAX_COUNT, len(sizes)))
    return pending


async def _logged_batches(disk: Disk) -> Mapping[PartitionId, Mapping[int, int]]:
    """Return, by partition and base offset, the sizes of batches in the log. A deleted file is in the bucket."""
    sizes: dict[PartitionId, dict[int, int]] = defaultdict(dict)
    for name, size in sorted((await disk.list()).items()):
        if not NAME.fullmatch(name):
            continue
        try:
            content = await disk.read(name, 0, size)
        except FileNotFoundError:
            continue
        for checked in WalFileCheck(name=name, content=content, check_batch=parse_header).entries():
            entry = checked.entry
            if entry.kind == RECORD_BATCH:
                sizes[entry.topic_id, entry.partition][entry.base_offset] = len(entry.data)
    return sizes
