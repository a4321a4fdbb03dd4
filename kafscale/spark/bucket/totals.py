"""Counts records, and finds their first and last offset and time, by footers as far as possible.

A footer tells these of a row of its index without a transaction's marker: each offset of the row is a record. The rest
is read:

- rows that have a marker or may have one; without the footer's list of them, rows as small as a marker and rows with
  several batches;
- segments that compaction has written or made holes in, and segments of version 1;
- rows whose earliest time the footer lacks, if that is asked for or bounds the read;
- rows of aborted transactions;
- the write-ahead log, and records at brokers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN
from kafscale.formats.segment import Footer
from kafscale.spark.bucket.catalog import Catalog
from kafscale.spark.bucket.splits import AnyRange, BrokerRange, Split, SplitRange
from kafscale.store.paths import SegmentKey
from kafscale.wire.batch_header import MIN_TIMESTAMP_UNKNOWN
from kafscale.wire.control_records import MARKER_BATCH_MAX_BYTES

GROUPS = ("partition", "topic")  # columns that totals are told by
NEVER_NULL = (*GROUPS, "offset", "timestamp", "timestampType")


@attrs.frozen(kw_only=True)
class Totals:
    """Totals of some records of one partition. Times are None if they were not asked for."""

    topic: str
    partition: int
    count: int
    first_offset: int
    last_offset: int
    first_ms: int | None = None
    last_ms: int | None = None

    def joined(self, other: Totals) -> Totals:
        first = [time_ms for time_ms in (self.first_ms, other.first_ms) if time_ms is not None]
        last = [time_ms for time_ms in (self.last_ms, other.last_ms) if time_ms is not None]
        return attrs.evolve(
            self,
            count=self.count + other.count,
            first_offset=min(self.first_offset, other.first_offset),
            last_offset=max(self.last_offset, other.last_offset),
            first_ms=min(first, default=None),
            last_ms=max(last, default=None),
        )


@attrs.frozen
class FooterTotals:
    """Totals by footers, one for each partition, and the splits left to read."""

    totals: Sequence[Totals]
    left: Sequence[Split]


def told_by_footers(catalog: Catalog, splits: Sequence[Split], *, with_first_time: bool = False) -> FooterTotals:
    """Divide planned splits. `with_first_time`: first times are asked for."""
    footers = catalog.footers(
        {range_.key for split in splits for range_ in split.ranges if isinstance(range_, SplitRange)}
    )
    totals: dict[tuple[str, int], Totals] = {}
    left: list[Split] = []
    for split in splits:
        for part in _parts(split, footers, with_first_time):
            if isinstance(part, Split):
                _add(left, part)
                continue
            known = totals.get((part.topic, part.partition))
            totals[part.topic, part.partition] = part if known is None else known.joined(part)
    return FooterTotals(list(totals.values()), left)


def _add(left: list[Split], part: Split) -> None:
    before = left[-1] if left else None
    if (
        before is not None
        and (before.topic, before.partition, before.end_offset) == (part.topic, part.partition, part.start_offset)
        and not any(isinstance(range_, SplitRange | BrokerRange) for range_ in (before.ranges[-1], part.ranges[0]))
    ):
        left[-1] = attrs.evolve(before, end_offset=part.end_offset, ranges=[*before.ranges, *part.ranges])
    else:
        left.append(part)


def totals_of(split: Split, records: pa.RecordBatch) -> Totals | None:
    """Return the totals of records read with the columns `offset` and, if asked for, `timestamp`."""
    if not records.num_rows:
        return None
    offsets = pc.min_max(records["offset"]).as_py()
    first_ms = last_ms = None
    if "timestamp" in records.schema.names:
        times = pc.min_max(records["timestamp"].cast("int64")).as_py()
        first_ms, last_ms = times["min"] // 1000, times["max"] // 1000
    return Totals(
        topic=split.topic,
        partition=split.partition,
        count=records.num_rows,
        first_offset=offsets["min"],
        last_offset=offsets["max"],
        first_ms=first_ms,
        last_ms=last_ms,
    )


def _parts(split: Split, footers: Mapping[SegmentKey, Footer], with_first_time: bool) -> Iterator[Totals | Split]:
    starts = [split.start_offset, *(range_.start_offset for range_ in split.ranges[1:])]
    for range, first, behind in zip(split.ranges, starts, [*starts[1:], split.end_offset], strict=True):
        footer = footers.get(range.key) if isinstance(range, SplitRange) else None
        if isinstance(range, SplitRange) and footer is not None and _tells(split, footer):
            yield from _rows(split, footer, range, (first, behind), with_first_time)
        else:
            yield _left(split, range, first, behind)


def _tells(split: Split, footer: Footer) -> bool:
    identity = footer.identity
    return (
        (footer.marker_rows is not None or identity.batch_count == len(footer.index.positions))  # each row is one batch
        and footer.record_count == footer.last_offset + 1 - identity.base_offset
        and not footer.first_dirty_offset
        and identity.max_timestamp_ms != MAX_TIMESTAMP_UNKNOWN
        and not split.aborted
    )


def _rows(
    split: Split, footer: Footer, range: SplitRange, between: tuple[int, int], with_first_time: bool
) -> Iterator[Totals | Split]:
    first, behind = between
    base_offsets = np.array([*footer.index.base_offsets, footer.last_offset + 1], np.int64)
    positions = np.array([*footer.index.positions, footer.end_position], np.int64)
    first_ms = np.frombuffer(footer.index.min_timestamps_ms, np.int64)
    last_ms = np.frombuffer(footer.index.max_timestamps_ms, np.int64)
    kept = (positions[:-1] >= range.start) & (positions[:-1] < range.end)
    kept &= (base_offsets[:-1] < behind) & (base_offsets[1:] > first)
    is_part = (base_offsets[:-1] < first) | (base_offsets[1:] > behind)  # of which records has the latest time?
    has_marker = (np.diff(base_offsets) == 1) & (np.diff(positions) <= MARKER_BATCH_MAX_BYTES)  # that is, may have
    if footer.marker_rows is not None:
        has_marker[:] = False
        has_marker[list(footer.marker_rows)] = True
    unknown = is_part | has_marker | (last_ms > split.period.last_ms) | (first_ms < split.period.first_ms)
    if with_first_time:
        unknown |= first_ms == MIN_TIMESTAMP_UNKNOWN
    unknown &= kept
    known = np.flatnonzero(kept & ~unknown)
    if len(known):
        yield Totals(
            topic=split.topic,
            partition=split.partition,
            count=int(np.diff(base_offsets)[known].sum()),
            first_offset=int(base_offsets[known[0]]),
            last_offset=int(base_offsets[known[-1] + 1]) - 1,
            first_ms=int(first_ms[known].min()) if with_first_time else None,
            last_ms=int(last_ms[known].max()),
        )
    rows = np.flatnonzero(unknown)
    for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
        if len(run):
            begin, end = int(run[0]), int(run[-1]) + 1
            start, stop = int(base_offsets[begin]), int(base_offsets[end])
            here = SplitRange(range.key, int(positions[begin]), int(positions[end]), start, stop)
            yield _left(split, here, first, behind)


def _left(split: Split, range: AnyRange, first: int, behind: int) -> Split:
    return attrs.evolve(
        split,
        start_offset=max(first, min(range.start_offset, behind)),
        end_offset=min(behind, range.end_offset),
        ranges=[range],
    )
