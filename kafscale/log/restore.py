"""What the bucket holds at start: the segments of every partition, and what follows from the last footer of each.

A pair of which one half is missing is no obstacle: a `.kfs` is complete without its `.index`, which is written again
from the footer, also where it is that of another attempt; an `.index` without its `.kfs` is not looked at.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import pairwise

import attrs
import trio

from kafscale.errors import DamagedObject, StartupError
from kafscale.log.footers import encode_index, index_goes_with, read_footer
from kafscale.log.manifest import MAX_TIMESTAMP_UNKNOWN, Segment, resolve
from kafscale.log.nurseries import ungrouped
from kafscale.log.segment import Footer
from kafscale.log.upload import segment_of
from kafscale.store.base import ObjectStore
from kafscale.store.paths import SegmentKey, namespace_prefix, parse_segment_key

logger = logging.getLogger(__name__)

FOOTER_READS_MAX_COUNT = 256  # tasks; how many really run at once is the store's limiter's affair

PartitionId = tuple[bytes, int]  # topic id, partition


@attrs.frozen
class ListedSegment:
    """A `.kfs` in the bucket: its size, and whether its `.index` is there."""

    key: SegmentKey
    object_size_bytes: int
    has_index: bool


@attrs.frozen
class RestoredPartition:
    """The segments to read, and the footer of the last one; None if there is no segment."""

    segments: Sequence[Segment]
    last_footer: Footer | None


async def list_segments(
    store: ObjectStore, namespace: str, on_progress: Callable[[int], None]
) -> Mapping[PartitionId, Sequence[ListedSegment]]:
    """Every complete segment of a namespace, by partition. `on_progress` is told the number of objects seen."""
    sizes: dict[SegmentKey, int] = {}
    indexes: set[SegmentKey] = set()
    seen = 0
    async with aclosing(store.list(namespace_prefix(namespace))) as pages:
        async for page in pages:
            for info in page:
                key = parse_segment_key(info.key)
                if key is None:
                    continue
                if key.kind == "kfs":
                    sizes[key] = info.size_bytes
                else:
                    indexes.add(key.of_kind("kfs"))
            seen += len(page)
            on_progress(seen)
    orphan_count = len(indexes - sizes.keys())
    if orphan_count:
        logger.warning("%d .index objects have no .kfs; they are ignored", orphan_count)
    found: dict[PartitionId, list[ListedSegment]] = defaultdict(list)
    for key, size in sizes.items():
        found[key.topic_id, key.partition].append(ListedSegment(key, size, key in indexes))
    return found


async def restore_partition(store: ObjectStore, listed: Sequence[ListedSegment]) -> RestoredPartition:
    """Read what must be known now: the last footer, those of merged segments, and those whose `.index` is missing.

    Raises StartupError if the last segment is damaged, StoreError.
    """
    footers: dict[SegmentKey, Footer] = {}
    ordered = sorted(listed, key=lambda each: (each.key.base_offset, each.key.generation))
    last_base_offset = ordered[-1].key.base_offset
    for each in ordered:
        is_last = each.key.base_offset == last_base_offset
        if each.key.generation or not each.has_index or is_last:
            footers[each.key] = await _read_footer(store, each.key)
        # A flush that was killed can have left the .index of an earlier attempt, of other batches than the .kfs has.
        if not each.has_index or (is_last and not await index_goes_with(store, each.key, footers[each.key])):
            await _rebuild_index(store, each.key, footers[each.key])
    segments = resolve(_segments(ordered, footers))
    last_segment = max(segments, key=lambda segment: segment.last_offset)
    return RestoredPartition(segments, footers[last_segment.key])


def _segments(ordered: Sequence[ListedSegment], footers: Mapping[SegmentKey, Footer]) -> Iterable[Segment]:
    """What a flush wrote ends before the next base offset of any generation, so its footer need not be read now."""
    base_offsets = sorted({each.key.base_offset for each in ordered})
    ends = {base_offset: following - 1 for base_offset, following in pairwise(base_offsets)}
    for each in ordered:
        if each.key in footers:
            yield segment_of(each.key, footers[each.key])
        else:
            yield Segment(
                key=each.key,
                last_offset=ends[each.key.base_offset],
                size_bytes=each.object_size_bytes,
                max_timestamp_ms=MAX_TIMESTAMP_UNKNOWN,
            )


async def _read_footer(store: ObjectStore, key: SegmentKey) -> Footer:
    try:
        return await read_footer(store, key)
    except DamagedObject as exc:
        raise StartupError(f"{exc}; restore this object, or move it and its .index away to go on without it") from exc


async def _rebuild_index(store: ObjectStore, key: SegmentKey, footer: Footer) -> None:
    logger.warning("%s has no .index that goes with it; writing it again", key.key)
    await store.put(key.of_kind("index").key, [encode_index(footer)])


async def restore_partitions(
    store: ObjectStore, listed: Mapping[PartitionId, Sequence[ListedSegment]], on_progress: Callable[[int], None]
) -> Mapping[PartitionId, RestoredPartition]:
    """`restore_partition` for each, many at once. `on_progress` is told the number of partitions done."""
    restored: dict[PartitionId, RestoredPartition] = {}
    waiting = iter(listed.items())

    async def work() -> None:
        for partition_id, segments in waiting:
            restored[partition_id] = await restore_partition(store, segments)
            on_progress(len(restored))

    with ungrouped():
        async with trio.open_nursery() as nursery:
            for _ in range(min(FOOTER_READS_MAX_COUNT, len(listed))):
                nursery.start_soon(work)
    return restored
