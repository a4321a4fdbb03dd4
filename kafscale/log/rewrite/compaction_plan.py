"""Choose the part of a partition to compact, decide if it is dirty enough, and cut it into pieces, by Kafka's rules.

    log start ... clean ... | first dirty offset ... cleanable ... | end offset ... not cleanable yet ... | tail

The end is the first segment with a record younger than `min.compaction.lag.ms`, else the end of the segments; and no
later than the last stable offset, since the outcome of an open transaction is unknown.

A partition is worth it when more than `min.cleanable.dirty.ratio` of its bytes up to there are dirty, or when its first
dirty record is older than `max.compaction.lag.ms` (KIP-58, KIP-354).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import attrs

from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN, Manifest, Segment
from kafscale.log.partition.log_config import INT64_MAX
from kafscale.log.partition.partition import Partition
from kafscale.log.read.footers import Footers

_base_offset = attrgetter("base_offset")


@attrs.frozen(kw_only=True)
class CleanablePart:
    """The part of a partition that can be compacted now. The end is exclusive; sizes are in bytes."""

    partition: Partition
    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        """Return how much of what would be read is dirty, from 0 to 1."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    @property
    def is_worth_it(self) -> bool:
        """Tell whether the topic's configs ask for it now."""
        wanted = self.dirty_ratio > self.partition.config.min_cleanable_dirty_ratio
        return self.dirty_bytes > 0 and (wanted or self.is_overdue)


def first_dirty_offset(partition: Partition) -> int:
    """Return how far the partition is compacted: every segment that compaction wrote tells how far it was then."""
    clean_to = max((segment.first_dirty_offset for segment in partition.manifest.segments), default=0)
    return max(clean_to, partition.log_start_offset)


async def find_cleanable(partition: Partition, footers: Footers, now_ms: int) -> CleanablePart:
    """Raises NotFound, DamagedObject, StoreError: timestamps that are not known yet are read."""
    first_dirty = first_dirty_offset(partition)
    segments = list(partition.manifest.segments)
    dirty = [segment for segment in segments if segment.last_offset >= first_dirty]
    end_offset = max((segment.last_offset + 1 for segment in segments), default=0)
    is_overdue = False
    if dirty and (young := await _first_young(partition, dirty, footers, now_ms)) is not None:
        end_offset = young.base_offset
    end_offset = min(end_offset, partition.last_stable_offset)
    if end_offset <= first_dirty:
        dirty = []
    if dirty and partition.config.max_compaction_lag_ms < INT64_MAX:
        is_overdue = await _is_overdue(partition, dirty[0], footers, now_ms)
    return CleanablePart(
        partition=partition,
        first_dirty_offset=first_dirty,
        end_offset=end_offset,
        clean_bytes=sum(segment.size_bytes for segment in segments if segment.last_offset < first_dirty),
        dirty_bytes=sum(segment.size_bytes for segment in dirty if segment.base_offset < end_offset),
        is_overdue=is_overdue,
    )


async def _first_young(partition: Partition, dirty: Iterable[Segment], footers: Footers, now_ms: int) -> Segment | None:
    lag_ms = partition.config.min_compaction_lag_ms
    if not lag_ms:
        return None
    for segment in dirty:
        latest_ms = segment.max_timestamp_ms
        if latest_ms == MAX_TIMESTAMP_UNKNOWN:
            latest_ms = (await footers.get_with_timestamps(segment)).identity.max_timestamp_ms
            partition.manifest.learn_timestamp(attrs.evolve(segment, max_timestamp_ms=latest_ms))
        if latest_ms > now_ms - lag_ms:
            return segment
    return None


async def _is_overdue(partition: Partition, segment: Segment, footers: Footers, now_ms: int) -> bool:
    """Tell by the timestamp of the first dirty batches whether compaction is overdue.

    Kafka too tells the age of a segment by its first batch.
    """
    footer = await footers.get_with_timestamps(segment)
    row = footer.row_of(max(first_dirty_offset(partition), segment.base_offset))
    first_ms = footer.index.max_timestamps_ms[row]
    return 0 < first_ms < now_ms - partition.config.max_compaction_lag_ms


@attrs.frozen
class Stretch:
    """The batches of a segment that begin at or after one offset and before another."""

    segment: Segment
    start_offset: int
    stop_offset: int


def stretches(segments: Sequence[Segment], start_offset: int) -> Iterator[Stretch]:
    """Iterate over what a reader would read of these segments, from `start_offset` on: each offset in one segment only.

    Segments overlap after a crash at an unlucky moment. Where they don't, each is a stretch.
    """
    manifest = Manifest(list(segments))
    offset = start_offset
    while (segment := manifest.find(offset)) is not None:
        offset = max(offset, segment.base_offset)
        following = bisect_right(segments, offset, key=_base_offset)
        stop_offset = segment.last_offset + 1
        if following < len(segments):
            stop_offset = min(stop_offset, segments[following].base_offset)
        yield Stretch(segment, offset, stop_offset)
        offset = stop_offset


def groups(segments: Sequence[Segment], target_bytes: int) -> Iterator[Sequence[Segment]]:
    """Neighbours that together are at most as large as the target, or one that is larger; overlapping ones together.

    Segments on both sides of a gap are never joined: the new segment would cover the missing offsets, whose segment may
    only be quarantined.
    """
    group: list[Segment] = []
    size_bytes, last_offset = 0, -1
    for segment in segments:
        is_full = segment.base_offset > last_offset and size_bytes + segment.size_bytes > target_bytes
        if group and (is_full or segment.base_offset > last_offset + 1):
            yield group
            group, size_bytes = [], 0
        group.append(segment)
        size_bytes += segment.size_bytes
        last_offset = max(last_offset, segment.last_offset)
    if group:
        yield group
