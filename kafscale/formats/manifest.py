"""The list of a partition's segments, without those that newer ones cover.

A flush writes generation 0; merging and compaction write higher ones. Of two objects the one of the later leader epoch
is newer, and of the same epoch that of the higher generation. The newest complete one wins over what it covers. Late
segments of earlier epochs are removed before, by `kafscale.formats.resolution`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby, pairwise
from operator import attrgetter

import attrs
from crc32c import crc32c

from kafscale.formats.segment import Footer
from kafscale.store.paths import SegmentKey

_base_offset = attrgetter("base_offset")
_last_offset = attrgetter("last_offset")
_order = attrgetter("base_offset", "epoch", "generation")
_rank = attrgetter("epoch", "generation")

PartitionId = tuple[bytes, int]  # topic id, partition

MAX_TIMESTAMP_UNKNOWN = 2**63 - 1  # the footer has not been read yet: any timestamp may be in there
FINGERPRINT_UNKNOWN = 0
STABLE_END_UNKNOWN = -1  # the footer has not been read yet
ABORTED_COUNT_UNKNOWN = -1  # alike


def fingerprint(object_size_bytes: int, etag: str) -> int:
    """Return 8 bytes that identify listed content: the lower half of the size, and a hash of the ETag."""
    return (object_size_bytes & 0xFFFF_FFFF) << 32 | crc32c(etag.encode())


@attrs.frozen
class ListedSegment:
    """A `.kfs` in the bucket, its size, and the size of its `.index` or None. `fingerprint` is as in Segment."""

    key: SegmentKey
    object_size_bytes: int
    index_size_bytes: int | None
    fingerprint: int

    @property
    def has_index(self) -> bool:
        return self.index_size_bytes is not None


@attrs.frozen(kw_only=True)
class Segment:
    """One segment in the bucket: the key of its `.kfs`, its last offset (inclusive), and sizes in bytes.

    `size_bytes` counts the record batches; before the footer is read, footer and header too. `max_timestamp_ms` is -1
    without timestamps, MAX_TIMESTAMP_UNKNOWN before the footer is read. `first_dirty_offset` is that of `Footer`. By
    the `fingerprint` of the `.kfs` a later start recognises it, unless FINGERPRINT_UNKNOWN. `stable_end` is the begin
    of the oldest transaction that is open at its end, or its end; `aborted_count` counts aborted ones in its footer.
    """

    key: SegmentKey
    last_offset: int
    size_bytes: int
    max_timestamp_ms: int
    first_dirty_offset: int = 0
    fingerprint: int = FINGERPRINT_UNKNOWN
    stable_end: int = STABLE_END_UNKNOWN
    aborted_count: int = ABORTED_COUNT_UNKNOWN

    @property
    def base_offset(self) -> int:
        return self.key.base_offset

    @property
    def epoch(self) -> int:
        return self.key.epoch

    @property
    def generation(self) -> int:
        return self.key.generation

    @property
    def rank(self) -> tuple[int, int]:
        """Epoch and generation: the greater one is newer."""
        return self.key.epoch, self.key.generation

    @property
    def kfs_key(self) -> str:
        return self.key.key

    @property
    def index_key(self) -> str:
        return self.key.of_kind("index").key


def segment_of(key: SegmentKey, footer: Footer, *, fingerprint: int = FINGERPRINT_UNKNOWN) -> Segment:
    """Make a segment from its footer; `fingerprint` is that of its `.kfs`, if known."""
    return Segment(
        key=key,
        last_offset=footer.last_offset,
        size_bytes=footer.identity.body_bytes,
        max_timestamp_ms=footer.identity.max_timestamp_ms,
        first_dirty_offset=footer.first_dirty_offset,
        fingerprint=fingerprint,
        stable_end=footer.stable_end,
        aborted_count=len(footer.aborted),
    )


def without_covered(segments: Iterable[Segment]) -> Sequence[Segment]:
    """Return the segments in order of offset, without those that newer ones cover.

    A segment that newer ones cover in part is left out too if older ones hold the rest: it is the leftover of an
    interrupted attempt whose sources still exist. Others that overlap are kept; readers prefer the larger base offset,
    then the newer one.

    A flushed segment that begins within a newer merged one and ends behind it is left out: merges take whole segments,
    so it arrived late, after the segment at its key had been merged and deleted.
    """
    ordered = sorted(segments, key=_order)
    if all(before.last_offset < after.key.base_offset for before, after in pairwise(ordered)):
        return ordered  # as nearly always; it takes a third of the time
    late = _late_flushes(ordered)
    ordered = [segment for segment in ordered if segment.key not in late]
    kept: list[Segment] = []
    covered = OffsetRanges()
    newest_first = sorted(sorted(ordered, key=_base_offset), key=_rank, reverse=True)
    for _, equally_new in groupby(newest_first, key=_rank):
        newer = covered.copy()
        for segment in equally_new:
            first, last = segment.base_offset, segment.last_offset
            if covered.hold(first, last) or (newer.meet(first, last) and _is_left_over(segment, newer, ordered)):
                continue
            kept.append(segment)
            covered.add(first, last)
    return sorted(kept, key=_order)


def _late_flushes(ordered: Sequence[Segment]) -> set[SegmentKey]:
    flushes = [segment for segment in ordered if not segment.generation]
    late: set[SegmentKey] = set()
    for merged in ordered:
        if merged.generation:
            start = bisect_left(flushes, merged.base_offset, key=_base_offset)
            end = bisect_right(flushes, merged.last_offset, key=_base_offset)
            late.update(
                flush.key
                for flush in flushes[start:end]
                if flush.last_offset > merged.last_offset and flush.epoch <= merged.epoch
            )
    return late


def _is_left_over(segment: Segment, newer: OffsetRanges, others: Iterable[Segment]) -> bool:
    held = newer.copy()
    for other in others:
        if other.rank < segment.rank:
            held.add(other.base_offset, other.last_offset)
    return held.hold(segment.base_offset, segment.last_offset)


@attrs.define(eq=False, repr=False)
class OffsetRanges:
    """A set of offsets, as ordered ranges (both ends inclusive), of which no two overlap or touch."""

    _firsts: list[int] = attrs.field(factory=list)
    _lasts: list[int] = attrs.field(factory=list)

    def copy(self) -> OffsetRanges:
        return OffsetRanges(self._firsts[:], self._lasts[:])

    def meet(self, first: int, last: int) -> bool:
        index = bisect_right(self._firsts, last) - 1
        return index >= 0 and self._lasts[index] >= first

    def hold(self, first: int, last: int) -> bool:
        index = bisect_right(self._firsts, first) - 1
        return index >= 0 and self._lasts[index] >= last

    def add(self, first: int, last: int) -> None:
        start = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        if start < end:
            first = min(first, self._firsts[start])
            last = max(last, self._lasts[end - 1])
        self._firsts[start:end] = [first]
        self._lasts[start:end] = [last]


@attrs.define(eq=False, repr=False)
class Manifest:
    """The segments of one partition that are read, in order of offset."""

    segments: list[Segment] = attrs.field(factory=list)
    size_bytes: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.size_bytes = sum(segment.size_bytes for segment in self.segments)

    def add(self, segment: Segment) -> None:
        assert not self.segments or segment.base_offset > self.segments[-1].last_offset
        self.segments.append(segment)
        self.size_bytes += segment.size_bytes

    def find(self, offset: int) -> Segment | None:
        """Return the segment that holds `offset`, or the first one after it: offsets may be compacted away."""
        following = bisect_right(self.segments, offset, key=_base_offset)
        for index in range(following - 1, -1, -1):  # goes on to a second one only in a hole, or where two overlap
            if self.segments[index].last_offset >= offset:
                return self.segments[index]
        return self.segments[following] if following < len(self.segments) else None

    def refers_to(self, key: SegmentKey) -> bool:
        return self._index_of(key) is not None

    def _index_of(self, key: SegmentKey) -> int | None:
        index = bisect_left(self.segments, key.base_offset, key=_base_offset)
        while index < len(self.segments) and self.segments[index].base_offset == key.base_offset:
            if self.segments[index].key == key:
                return index
            index += 1
        return None

    def covers(self, key: SegmentKey, last: int) -> bool:
        """Tell whether newer segments hold all offsets of the one with this key, which ends with `last`."""
        first, rank = key.base_offset, (key.epoch, key.generation)
        newer = OffsetRanges()
        for segment in self.segments:
            if segment.base_offset <= last and segment.last_offset >= first and segment.rank > rank:
                newer.add(segment.base_offset, segment.last_offset)
        return newer.hold(first, last)

    def take_below(self, offset: int) -> Sequence[Segment]:
        """Remove and return the segments that end before `offset`, except for the one that ends last.

        A restart needs the producers and leader epochs in that one's footer.
        """
        newest = max(self.segments, key=_last_offset, default=None)
        taken = [segment for segment in self.segments if segment.last_offset < offset and segment is not newest]
        if taken:
            self.segments = [segment for segment in self.segments if segment.last_offset >= offset or segment is newest]
            self.size_bytes -= sum(segment.size_bytes for segment in taken)
        return taken

    def remove(self, segment: Segment) -> bool:
        """Leave a segment out; False if it was not in here."""
        index = self._index_of(segment.key)
        if index is None:
            return False
        self._exchange({index}, [])
        return True

    def key_before(self, base_offset: int) -> SegmentKey | None:
        index = bisect_left(self.segments, base_offset, key=_base_offset)
        return self.segments[index - 1].key if index else None

    def replace(self, sources: Sequence[Segment], merged: Segment) -> None:
        """Read `merged` instead of these older segments, all of whose offsets it covers."""
        assert sources, merged
        assert all(source.generation < merged.generation for source in sources), (sources, merged)
        assert all(source.rank < merged.rank for source in sources), (sources, merged)
        assert merged.base_offset <= min(map(_base_offset, sources)), (sources, merged)
        assert merged.last_offset >= max(map(_last_offset, sources)), (sources, merged)
        indexes = {index for source in sources if (index := self._index_of(source.key)) is not None}
        assert len(indexes) == len(sources), (sources, self.segments)
        self._exchange(indexes, [merged])

    def _exchange(self, indexes: Collection[int], added: Iterable[Segment]) -> None:
        """Replace segments in a copy of the list, since others may be iterating over it.

        No step looks at each segment: for 100,000 of them that would take 50 ms.
        """
        kept = self.segments.copy()
        first, end = min(indexes), max(indexes) + 1
        self.size_bytes -= sum(kept[index].size_bytes for index in indexes)
        kept[first:end] = [kept[index] for index in range(first, end) if index not in indexes]
        for segment in added:
            insort(kept, segment, key=_order)
            self.size_bytes += segment.size_bytes
        self.segments = kept

    def learn_timestamp(self, known: Segment) -> None:
        """Set the `max_timestamp_ms` of `known`, whose footer has been read."""
        index = self._index_of(known.key)
        if index is not None:
            self.segments[index] = attrs.evolve(self.segments[index], max_timestamp_ms=known.max_timestamp_ms)
