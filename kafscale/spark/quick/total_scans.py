"""The totals of a topic as a data set of Arrow: of footers where these tell, and of records where they do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.dataset as ds

from kafscale.spark.bucket.decode import COLUMN_TYPES
from kafscale.spark.bucket.totals import Told, Totals, told_by_footers, totals_of
from kafscale.spark.quick.scans import Reading, TopicRead
from kafscale.spark.quick.totals import COUNT, FIRST_OFFSET, LAST_OFFSET, LAST_TIME
from kafscale.spark.source.bounds import Bounds
from kafscale.spark.source.planning import Planner, check_size

SCHEMA = pa.schema(
    [
        ("partition", COLUMN_TYPES["partition"]),
        ("topic", COLUMN_TYPES["topic"]),
        (COUNT, pa.int64()),
        (FIRST_OFFSET, COLUMN_TYPES["offset"]),
        (LAST_OFFSET, COLUMN_TYPES["offset"]),
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
        with_times = columns is None or LAST_TIME in columns or LAST_TIME in str(filter)
        try:
            told = self._plan()
            self._reading.plan(sum(split.size_bytes for split in told.left))
        except BaseException as exc:
            self._reading.failure = exc
            raise
        batches = pa.RecordBatchReader.from_batches(SCHEMA, self._reading.guarded(self._rows(told, with_times)))
        return ds.Scanner.from_batches(batches, columns=columns, filter=filter)

    def _plan(self) -> Told:
        limits = self._read.limits
        with closing(Planner.of(self._read.options)) as planner:
            splits = planner.batch(attrs.evolve(limits, max_scan_bytes=None), self._bounds)
            told = told_by_footers(planner.catalog, splits)
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
    times = pa.array([None if each.last_ms is None else each.last_ms * 1000 for each in totals], pa.int64())
    columns = [
        [each.partition for each in totals],
        [each.topic for each in totals],
        [each.count for each in totals],
        [each.first_offset for each in totals],
        [each.last_offset for each in totals],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=False)]
    return pa.RecordBatch.from_arrays([*arrays, times.cast(SCHEMA.field(LAST_TIME).type)], schema=SCHEMA)
