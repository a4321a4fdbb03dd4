"""Plans splits from offsets: ranges of objects, cut at batches, in splits of about one size.

A range is of a segment or, behind the last segment, of an object of the write-ahead log or of brokers. A split has
ranges of one partition, in order of offset. Splits of a partition follow one another without a gap.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

import attrs

from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN, Segment
from kafscale.formats.segment import Footer
from kafscale.formats.transactions import AbortedTransaction
from kafscale.spark.bucket.aborted import ReadOutcomes, outcomes_between, shared_out
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.store.paths import NumberedKey, SegmentKey

SPLIT_BYTES = (
    64 << 20
)  # as Spark's own files: spark.sql.files.maxPartitionBytes is 128 MiB, of which half is one segment

BROKER_PIECE_BYTES = 1 << 20  # about: what brokers have is cut at any offset

TASK_BYTES = 16 << 20  # read in some tenths of a second; to start a task in a Python worker takes some hundredths

FIRST_MS = -(1 << 63)
LAST_MS = (1 << 63) - 1


@attrs.frozen(kw_only=True)
class Period:
    """Milliseconds since 1970; both are included. Records without a timestamp have -1."""

    first_ms: int = FIRST_MS
    last_ms: int = LAST_MS

    @classmethod
    def compared(cls, operator: str, microseconds: int) -> Period:
        """Return the times, in whole milliseconds, for which a comparison (`=`, `<`, `<=`, `>`, `>=`) is true."""
        first_ms, last_ms = FIRST_MS, LAST_MS
        if operator in (">", ">=", "="):
            first_ms = microseconds // 1000 + 1 if operator == ">" else -(-microseconds // 1000)
        if operator in ("<", "<=", "="):
            last_ms = -(-microseconds // 1000) - 1 if operator == "<" else microseconds // 1000
        return cls(first_ms=max(FIRST_MS, first_ms), last_ms=min(LAST_MS, last_ms))

    @property
    def is_bounded(self) -> bool:
        return self != ALWAYS

    def without_others(self, other: Period) -> Period:
        """Return the times within both periods."""
        return Period(first_ms=max(self.first_ms, other.first_ms), last_ms=min(self.last_ms, other.last_ms))

    def with_others(self, other: Period) -> Period:
        """Return the times in either period, or between them."""
        return Period(first_ms=min(self.first_ms, other.first_ms), last_ms=max(self.last_ms, other.last_ms))


ALWAYS = Period()


@attrs.frozen
class SplitRange:
    """Whole batches of one segment: bytes `start` to `end`, with offsets `start_offset` to `end_offset`."""

    key: SegmentKey
    start: int
    end: int
    start_offset: int
    end_offset: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    @property
    def topic_id(self) -> bytes:
        return self.key.topic_id


@attrs.frozen
class LogRange:
    """Batches of one partition in an object of the write-ahead log.

    places: the position and length of each batch, as others stand between them.
    """

    key: NumberedKey
    topic_id: bytes
    salt: int
    places: Sequence[tuple[int, int]]
    start_offset: int
    end_offset: int
    size_bytes: int = attrs.field(init=False)  # kept, as a plan asks for it many times of each

    @size_bytes.default
    def _size_bytes(self) -> int:
        return sum(length_bytes for _, length_bytes in self.places)


@attrs.frozen
class GivenRange:
    """Batches of one partition in the write-ahead log that were read for the plan, with their bytes."""

    key: NumberedKey  # of the first of the objects
    last_key: NumberedKey
    topic_id: bytes
    data: bytes = attrs.field(repr=False)
    start_offset: int
    end_offset: int

    @property
    def size_bytes(self) -> int:
        return len(self.data)


@attrs.frozen
class BrokerRange:
    """Offsets behind the last segment, which brokers have. Its size is an estimate."""

    topic_id: bytes
    start_offset: int
    end_offset: int
    size_bytes: int


AnyRange = SplitRange | LogRange | GivenRange | BrokerRange


@attrs.frozen(kw_only=True)
class Split:
    """The records that one task reads: these offsets (the end exclusive) and times, in these ranges.

    Records of `aborted` transactions are left out.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    ranges: Sequence[AnyRange]
    period: Period = ALWAYS
    aborted: Sequence[AbortedTransaction] = ()

    @property
    def size_bytes(self) -> int:
        return sum(range_.size_bytes for range_ in self.ranges)


@attrs.frozen(kw_only=True)
class Extent:
    """Wanted offsets of a partition, the end exclusive, and times."""

    log: PartitionLog
    start_offset: int
    end_offset: int
    period: Period = ALWAYS

    @property
    def count(self) -> int:
        return self.end_offset - self.start_offset


def plan(
    catalog: Catalog, extents: Iterable[Extent], *, min_splits: int = 0, max_records: int | None = None
) -> Sequence[Split]:
    """Plan the splits of all extents: at least `min_splits` where batches allow, at most `max_records` offsets each."""
    wanted = [extent for extent in extents if extent.start_offset < extent.end_offset]
    footers = catalog.footers(segment.key for extent in wanted for segment in _within(extent))
    pieces = [list(_pieces(extent, footers, max_records)) for extent in wanted]
    total_bytes = sum(piece.size_bytes for found in pieces for piece in found)
    split_bytes = SPLIT_BYTES if min_splits <= 1 else min(SPLIT_BYTES, math.ceil(total_bytes / min_splits))
    return [
        split
        for extent, found in zip(wanted, pieces, strict=True)
        if found
        for split in _without_aborted(catalog, extent, list(_group(extent, found, split_bytes, max_records)))
    ]


def outcomes(catalog: Catalog, extent: Extent) -> ReadOutcomes:
    """Return the transactions to leave out, if only committed records are read. Raises StoreError."""
    if not catalog.committed_only or extent.start_offset >= extent.end_offset:
        return ReadOutcomes()
    return outcomes_between(catalog, extent.log, extent.start_offset, extent.end_offset)


def _without_aborted(catalog: Catalog, extent: Extent, splits: Sequence[Split]) -> Sequence[Split]:
    aborted = outcomes(catalog, extent).aborted
    if not aborted:
        return splits
    shares = shared_out(aborted, [split.start_offset for split in splits])
    return [attrs.evolve(split, aborted=share) for split, share in zip(splits, shares, strict=True)]


def together(splits: Sequence[Split]) -> Sequence[Sequence[Split]]:
    """Group splits into tasks of about one size; small neighbours share one.

    Splits of the write-ahead log come last: an object has batches of many partitions, and each task that reads any of
    them gets it.
    """
    if sum(split.size_bytes for split in splits) <= TASK_BYTES:
        return [splits] if splits else []
    others: list[Split] = []
    logged: list[Split] = []
    for split in splits:
        (logged if _is_logged(split) else others).append(split)
    return [*_neighbours(others), *_neighbours(logged)]


def _is_logged(split: Split) -> bool:
    return isinstance(split.ranges[0], LogRange)


def _neighbours(splits: Sequence[Split]) -> Sequence[Sequence[Split]]:
    total_bytes = sum(split.size_bytes for split in splits)
    task_bytes = math.ceil(total_bytes / max(1, math.ceil(total_bytes / TASK_BYTES)))
    tasks: list[list[Split]] = []
    taken_bytes = 0
    for split in splits:
        if not tasks or taken_bytes + split.size_bytes / 2 > task_bytes:
            tasks.append([])
            taken_bytes = 0
        tasks[-1].append(split)
        taken_bytes += split.size_bytes
    return tasks


def end_within(catalog: Catalog, extent: Extent, max_bytes: int) -> int:
    """Return the end of a read of about `max_bytes` from the extent's start; it has some batches at least."""
    footers = catalog.footers(segment.key for segment in _within(extent))
    taken_bytes = 0
    for piece in _pieces(extent, footers):
        if taken_bytes and taken_bytes + piece.size_bytes > max_bytes:
            return piece.start_offset
        taken_bytes += piece.size_bytes
    return extent.end_offset


def size_bytes(catalog: Catalog, extent: Extent) -> int:
    footers = catalog.footers(segment.key for segment in _within(extent))
    return sum(piece.size_bytes for piece in _pieces(extent, footers))


def first_time_ms(catalog: Catalog, extent: Extent) -> int | None:
    """Return the latest time of the first batches of an extent, by an index; None if it is unknown."""
    footers = catalog.footers(segment.key for segment in _within(extent))
    for piece in _flushed_pieces(extent, footers):
        footer = footers[piece.key]
        is_known = footer.identity.max_timestamp_ms != MAX_TIMESTAMP_UNKNOWN
        return footer.index.max_timestamps_ms[footer.row_of(piece.start_offset)] if is_known else None
    for batch in extent.log.tail.batches:
        if batch.next_offset > extent.start_offset and batch.base_offset < extent.end_offset:
            return batch.max_timestamp_ms
    return None


def holes(catalog: Catalog, extent: Extent) -> Sequence[range]:
    """Return the offsets of an extent that no intact segment has. Offsets removed by compaction do not count."""
    footers = catalog.footers(segment.key for segment in _within(extent))
    found: list[range] = []
    next_offset = extent.start_offset
    for segment in _within(extent):
        footer = footers.get(segment.key)
        if footer is None:
            continue
        if segment.base_offset > next_offset:
            found.append(range(next_offset, segment.base_offset))
        next_offset = max(next_offset, footer.last_offset + 1)
    if extent.log.tail.batches and next_offset >= extent.log.tail.base_offset:
        next_offset = max(next_offset, extent.log.tail.last_offset + 1)
    behind = extent.log.behind
    if behind is not None and next_offset >= behind.base_offset:
        next_offset = max(next_offset, behind.end_offset)
    if next_offset < extent.end_offset:
        found.append(range(next_offset, extent.end_offset))
    return found


def _within(extent: Extent) -> Iterator[Segment]:
    for segment in extent.log.segments:
        if segment.last_offset >= extent.start_offset and segment.base_offset < extent.end_offset:
            yield segment


def _pieces(extent: Extent, footers: Mapping[SegmentKey, Footer], max_records: int | None = None) -> Iterator[AnyRange]:
    yield from _flushed_pieces(extent, footers)
    for batch in extent.log.tail.batches:
        is_within = batch.next_offset > extent.start_offset and batch.base_offset < extent.end_offset
        if is_within and batch.max_timestamp_ms >= extent.period.first_ms:
            assert extent.log.topic_id is not None
            place = (batch.position, batch.length_bytes)
            yield LogRange(batch.key, extent.log.topic_id, batch.salt, (place,), batch.base_offset, batch.next_offset)

    yield from _broker_pieces(extent, max_records)


def _broker_pieces(extent: Extent, max_records: int | None) -> Iterator[BrokerRange]:
    behind, topic_id = extent.log.behind, extent.log.topic_id
    if behind is None:
        return
    assert topic_id is not None
    end_offset = min(extent.end_offset, behind.end_offset)
    step = max(1, BROKER_PIECE_BYTES // behind.record_bytes)
    step = step if max_records is None else min(step, max_records)
    for start in range(max(extent.start_offset, behind.base_offset), end_offset, step):
        until = min(start + step, end_offset)
        yield BrokerRange(topic_id, start, until, (until - start) * behind.record_bytes)


def _flushed_pieces(extent: Extent, footers: Mapping[SegmentKey, Footer]) -> Iterator[SplitRange]:
    segments = list(_within(extent))
    for segment, following in zip_longest(segments, segments[1:]):
        footer = footers.get(segment.key)
        if footer is None:
            continue
        end_offset = extent.end_offset if following is None else min(extent.end_offset, following.base_offset)
        for row in range(footer.row_of(extent.start_offset), bisect_left(footer.index.base_offsets, end_offset)):
            start_offset, next_offset = footer.row_offset(row), footer.row_offset(row + 1)
            if next_offset > extent.start_offset and _has_times_of(footer, row, extent.period):
                yield SplitRange(
                    segment.key, footer.row_start(row), footer.row_start(row + 1), start_offset, next_offset
                )


def _has_times_of(footer: Footer, row: int, period: Period) -> bool:
    is_known = footer.identity.max_timestamp_ms != MAX_TIMESTAMP_UNKNOWN
    if is_known and footer.index.max_timestamps_ms[row] < period.first_ms:
        return False
    return footer.index.min_timestamps_ms[row] <= period.last_ms


def _group(extent: Extent, pieces: Sequence[AnyRange], split_bytes: int, max_records: int | None) -> Iterator[Split]:
    cuts = [0]
    taken_bytes, start_offset = 0, extent.start_offset
    for index, piece in enumerate(pieces):
        too_many = max_records is not None and piece.start_offset - start_offset >= max_records
        log_begins = isinstance(piece, LogRange) and not isinstance(pieces[index - 1], LogRange)
        if index > cuts[-1] and (taken_bytes + piece.size_bytes > split_bytes or too_many or log_begins):
            cuts.append(index)
            taken_bytes, start_offset = 0, piece.start_offset
        taken_bytes += piece.size_bytes
    for first, behind in zip(cuts, [*cuts[1:], len(pieces)], strict=True):
        yield Split(
            topic=extent.log.topic,
            partition=extent.log.partition,
            start_offset=extent.start_offset if not first else pieces[first].start_offset,
            end_offset=extent.end_offset if behind == len(pieces) else pieces[behind].start_offset,
            ranges=_joined(pieces[first:behind]),
            period=extent.period,
        )


def _joined(pieces: Sequence[AnyRange]) -> Sequence[AnyRange]:
    joined: list[AnyRange] = []
    first = 0
    for index, (piece, following) in enumerate(zip_longest(pieces, pieces[1:])):
        if not _goes_on(piece, following):
            joined.append(_one_of(pieces[first : index + 1]))
            first = index + 1
    return joined


def _goes_on(piece: AnyRange, following: AnyRange | None) -> bool:
    if isinstance(piece, SplitRange) and isinstance(following, SplitRange):
        return following.key == piece.key and following.start == piece.end
    if isinstance(piece, LogRange) and isinstance(following, LogRange):
        return following.key == piece.key
    return isinstance(piece, BrokerRange) and isinstance(following, BrokerRange)


def _one_of(pieces: Sequence[AnyRange]) -> AnyRange:
    begin, last = pieces[0], pieces[-1]
    if begin is last:
        return begin
    if isinstance(begin, SplitRange):
        assert isinstance(last, SplitRange)
        return SplitRange(begin.key, begin.start, last.end, begin.start_offset, last.end_offset)
    if isinstance(begin, BrokerRange):
        size_bytes = sum(piece.size_bytes for piece in pieces)
        return BrokerRange(begin.topic_id, begin.start_offset, last.end_offset, size_bytes)
    assert isinstance(begin, LogRange)
    places = [place for piece in pieces if isinstance(piece, LogRange) for place in piece.places]
    return attrs.evolve(begin, places=tuple(places), end_offset=last.end_offset)
