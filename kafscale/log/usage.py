"""What each topic takes in the bucket, from a listing alone; and what a write-ahead log has that is not there yet.

It changes nothing and can run beside a live broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing

import attrs

from kafscale.errors import DamagedObject
from kafscale.log.disk import Disk
from kafscale.log.footers import read_footer
from kafscale.log.listing import PartitionId
from kafscale.log.nurseries import for_each
from kafscale.log.restore import FOOTER_READS_MAX_COUNT
from kafscale.log.wal_check import WalFileCheck
from kafscale.log.wal_format import RECORD_BATCH
from kafscale.log.wal_replay import NAME
from kafscale.store.base import ObjectInfo, ObjectStore
from kafscale.store.paths import SegmentKey, namespace_prefix, parse_segment_key, system_prefix
from kafscale.wire.records import parse_header

BYTES_PER_GB = 1 << 30  # S3 bills a GB of 2^30 bytes


@attrs.define(eq=False, kw_only=True)
class TopicUsage:
    """The objects of one topic. `size_bytes` counts those of segments with their `.index`; times are of uploads.

    `last_keys` has the segment of the greatest base offset of each partition.
    """

    name: str
    topic_id: bytes
    segment_count: int = 0
    size_bytes: int = 0
    oldest_ms: int = 2**63 - 1
    newest_ms: int = -1
    last_keys: dict[int, SegmentKey] = attrs.field(factory=dict)

    def add(self, key: SegmentKey, info: ObjectInfo) -> None:
        """Count an object."""
        self.size_bytes += info.size_bytes
        if key.kind != "kfs":
            return
        self.segment_count += 1
        self.oldest_ms = min(self.oldest_ms, info.modified_ms)
        self.newest_ms = max(self.newest_ms, info.modified_ms)
        last = self.last_keys.get(key.partition)
        if last is None or last.base_offset <= key.base_offset:
            self.last_keys[key.partition] = key


@attrs.frozen(kw_only=True)
class Usage:
    """All topics, in order of name, and the objects of the write-ahead log in the bucket (`s3-wal`)."""

    topics: Sequence[TopicUsage]
    wal_object_count: int
    wal_bytes: int


async def measure_usage(store: ObjectStore, namespace: str, on_progress: Callable[[int], None]) -> Usage:
    """List the namespace. `on_progress` is told the number of objects seen. Raises StoreError."""
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
    async with aclosing(store.list(system_prefix("wal", namespace=namespace))) as pages:
        async for page in pages:
            wal_sizes += [info.size_bytes for info in page]
    return Usage(
        topics=sorted(topics.values(), key=lambda usage: (usage.name, usage.topic_id)),
        wal_object_count=len(wal_sizes),
        wal_bytes=sum(wal_sizes),
    )


async def pending_bytes(store: ObjectStore, usage: Usage, disk: Disk) -> Mapping[bytes, int]:
    """By topic id, the bytes of batches that a local write-ahead log has and no segment. Raises StoreError, OSError.

    Beside a live broker it is what was so a moment ago.
    """
    sizes = await _logged_batches(disk)
    last_keys = {(topic.topic_id, index): key for topic in usage.topics for index, key in topic.last_keys.items()}
    pending: dict[bytes, int] = defaultdict(int)

    async def add(partition_id: PartitionId) -> None:
        end_offset, key = 0, last_keys.get(partition_id)
        if key is not None:
            try:
                end_offset = (await read_footer(store, key)).last_offset + 1
            except DamagedObject:
                end_offset = key.base_offset
        pending[partition_id[0]] += sum(size for offset, size in sizes[partition_id].items() if offset >= end_offset)

    await for_each(list(sizes), add, tasks_count=min(FOOTER_READS_MAX_COUNT, len(sizes)))
    return pending


async def _logged_batches(disk: Disk) -> Mapping[PartitionId, Mapping[int, int]]:
    """Of each partition in the log: base offset to size in bytes. A file that is deleted meanwhile is in the bucket."""
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
