"""The totals of a topic as a data set of Arrow: of footers where these tell, and of records where they do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.dataset as ds

from kafscale.spark.bucket.decode import COLUMN_TYPES
from kafscale.spark.bucket.totals import Told, Totals, told_by_footers, totals_of
from kafscale.spark.quick.scans import Reading, TopicRead
from kafscale.spark.quick.totals import COUNT, FIRST_OFFSET, FIRST_TIME, LAST_OFFSET, LAST_TIME
from kafscale.spark.source.bounds import Bounds
from kafscale.spark.source.planning import Planner, check_size

SCHEMA = pa.schema(
    [
        ("partition", COLUMN_TYPES["partition"]),
        ("topic", COLUMN_TYPES["topic"]),
        (COUNT, pa.int64()),
        (FIRST_OFFSET, COLUMN_TYPES["offset"]),
        (LAST_OFFSET, COLUMN_TYPES["offset"]),
        (FIRST_TIME, COLUMN_TYPES["timestamp"]),
        (LAST_TIME, COLUMN_TYPES["timestamp"]),
    ]
)


class TotalsDataset(ds.Dataset):
    """What DuckDB takes for a data set. Each row is of some records of a partition, which are within the bounds."""

    def __init__(self, read: TopicRead, bounds: Bounds, reading: Reading) -> None:
        self._read = read
        self._bounds = bounds
        self._reading = reading

    @property
    def schema(self) -> pa.Schema:
        """Return the schema that DuckDB sees."""
        return SCHEMA

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> ds.Scanner:
        """Plan what is to be read. Errors are told to DuckDB, and kept."""
        with_first, with_last = (
            columns is None or name in columns or name in str(filter) for name in (FIRST_TIME, LAST_TIME)
        )
        try:
            told = self._plan(with_first)
            self._reading.plan(sum(split.size_bytes for split in told.left))
        except BaseException as exc:
            self._reading.failure = exc
            raise
        batches = pa.RecordBatchReader.from_batches(
            SCHEMA, self._reading.guarded(self._rows(told, with_first or with_last))
        )
        return ds.Scanner.from_batches(batches, columns=columns, filter=filter)

    def _plan(self, with_first_time: bool) -> Told:
        limits = self._read.limits
        with closing(Planner.of(self._read.options)) as planner:
            splits = planner.given(planner.batch(attrs.evolve(limits, max_scan_bytes=None), self._bounds))
            told = told_by_footers(planner.catalog, splits, with_first_time=with_first_time)
        check_size(told.left, limits.max_scan_bytes)
        return told

    def _rows(self, told: Told, with_times: bool) -> Iterator[pa.RecordBatch]:
        yield _batch(told.totals)
        columns = ["offset", "timestamp"] if with_times else ["offset"]
        with closing(Planner.of(self._read.options)) as planner:
            for split in told.left:
                for records in planner.reader(columns).read_all([split]):
                    found = totals_of(split, records)
                    if found is not None:
                        yield _batch([found])
                self._reading.note(split.size_bytes)


def _batch(totals: Sequence[Totals]) -> pa.RecordBatch:
    columns = [
        [each.partition for each in totals],
        [each.topic for each in totals],
        [each.count for each in totals],
        [each.first_offset for each in totals],
        [each.last_offset for each in totals],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=False)]
    times = [_times(each.first_ms for each in totals), _times(each.last_ms for each in totals)]
    return pa.RecordBatch.from_arrays([*arrays, *times], schema=SCHEMA)


def _times(times_ms: Iterable[int | None]) -> pa.Array:
    values = [None if each is None else each * 1000 for each in times_ms]
    return pa.array(values, pa.int64()).cast(COLUMN_TYPES["timestamp"])
