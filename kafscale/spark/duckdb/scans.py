"""A topic as a data set of Arrow, whose scans read only the columns and the offsets that a statement needs.

DuckDB gives its conditions as an expression of Arrow. Arrow itself is asked what that excludes, as it decides which
files of a data set to open: could a row with these offsets satisfy it? Bisection finds where the answer changes. So
every condition that Arrow understands bounds the read, and any other leaves out nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from kafscale.spark.bucket.decode import COLUMN_TYPES
from kafscale.spark.bucket.splits import FIRST_MS, LAST_MS, Period, Split
from kafscale.spark.duckdb.kinds import TooMuch
from kafscale.spark.source.bounds import QueryBounds
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions
from kafscale.spark.source.planning import Planner, read_records, topic_of_subject
from kafscale.spark.sql.progress import Report
from kafscale.spark.values.decoding import DECODED, Decoding
from kafscale.spark.values.options import ValueOptions

OFFSET_LAST = (1 << 62) - 1
TIME_LAST_US = (1 << 62) - 1
MICROSECONDS_PER_MS = 1000

_FORMAT, _FILES = ds.ParquetFileFormat(), LocalFileSystem()


@attrs.frozen(kw_only=True)
class Condition:
    """An expression of Arrow on the columns of a schema."""

    expression: Any
    schema: pa.Schema

    def bounds(self, partitions: Sequence[int]) -> QueryBounds:
        """Return the bounds of rows that satisfy the condition. partitions: all that exist."""
        kept = [
            partition
            for partition in partitions
            if self._allows(pc.field("partition") == _value("partition", partition))
        ]
        start_offset, end_offset, period = None, None, Period()
        if self.names("offset"):
            lowest, highest = self._range("offset", 0, OFFSET_LAST)
            start_offset = lowest or None
            end_offset = None if highest == OFFSET_LAST else highest + 1
        if self.names("timestamp"):
            lowest, highest = self._range("timestamp", -TIME_LAST_US, TIME_LAST_US)
            period = Period(
                first_ms=FIRST_MS if lowest == -TIME_LAST_US else lowest // MICROSECONDS_PER_MS,
                last_ms=LAST_MS if highest == TIME_LAST_US else highest // MICROSECONDS_PER_MS,
            )
        return QueryBounds(
            partitions=None if len(kept) == len(partitions) else frozenset(kept),
            start_offset=start_offset,
            end_offset=end_offset,
            period=period,
        )

    def names(self, column: str) -> bool:
        """Tell whether the condition may be about a column; false is certain."""
        return column in str(self.expression)

    def _range(self, name: str, first: int, last: int) -> tuple[int, int]:
        """Return the least and the greatest value that may satisfy it; `first` twice if none does."""
        column = pc.field(name)
        if not self._allows((column >= _value(name, first)) & (column <= _value(name, last))):
            return first, first
        lowest = _turning(first, last, lambda value: self._allows(column <= _value(name, value)))
        highest = -_turning(-last, -first, lambda value: self._allows(column >= _value(name, -value)))
        return lowest, highest

    def _allows(self, guarantee: Any) -> bool:
        """Tell whether a row with this guarantee may satisfy the condition. No file is opened."""
        fragment = _FORMAT.make_fragment("nowhere", filesystem=_FILES, partition_expression=guarantee)
        dataset = ds.FileSystemDataset([fragment], self.schema, _FORMAT, _FILES)
        return next(iter(dataset.get_fragments(filter=self.expression)), None) is not None


def _turning(first: int, last: int, is_true: Callable[[int], bool]) -> int:
    """Return the least value from which on it is true; `last` if it never is."""
    while first < last:
        middle = (first + last) // 2
        if is_true(middle):
            last = middle
        else:
            first = middle + 1
    return first


def _value(name: str, value: int) -> Any:
    return pa.scalar(value, COLUMN_TYPES[name])


CHEAPEST_FIRST = ("partition", "offset", "timestamp", "timestampType", "topic", "key", "value", "headers", DECODED)


@attrs.define(kw_only=True, eq=False, repr=False)
class ScanReading:
    """The size of a statement's read, and the error of its scans, of which DuckDB passes on the text alone.

    max_bytes: None for no bound. report: called with the bytes read and planned, for Spark too. is_planned: there was a
    scan.
    """

    max_bytes: int | None = None
    report: Report | None = None
    is_planned: bool = False
    planned_bytes: int = 0
    read_bytes: int = 0
    failure: BaseException | None = None

    def plan(self, size_bytes: int) -> None:
        """Count the bytes that one more scan will read. Raises TooMuch."""
        self.is_planned = True
        self.planned_bytes += size_bytes
        self._tell()
        if self.max_bytes is not None and self.planned_bytes > self.max_bytes:
            raise TooMuch(
                f"it would read {self.planned_bytes:,} bytes or more, and --duckdb-max-bytes is {self.max_bytes:,}"
            )

    def note(self, size_bytes: int) -> None:
        """Count bytes that were read."""
        self.read_bytes += size_bytes
        self._tell()

    def _tell(self) -> None:
        if self.report is not None:
            self.report(self.read_bytes, self.planned_bytes)

    def guarded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass batches on, and keep an error."""
        try:
            yield from batches
        except Exception as exc:
            self.failure = exc
            raise


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TopicRead:
    """One reference to a topic, by the options of Spark's reader."""

    options: ReadOptions
    limits: BatchOptions
    decoding: Decoding | None

    @classmethod
    def of(cls, given: Given) -> TopicRead:
        """Read the options. Raises ConfigError, RegistryError, UnknownSchema."""
        options, values = ReadOptions.of(given), ValueOptions.parse(given.values)
        given.warn_of_ignored()
        decoding = None if values is None else Decoding.of(values, topic_of_subject(values, options.subscription))
        return cls(options=options, limits=BatchOptions.of(given), decoding=decoding)

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Return the columns and their types, in Spark's order."""
        types = {
            name: type_ for name, type_ in COLUMN_TYPES.items() if name != "headers" or self.options.include_headers
        }
        return types if self.decoding is None else {**types, DECODED: self.decoding.type}

    @property
    def schema(self) -> pa.Schema:
        """Return the columns, cheapest first: DuckDB takes the first one where it needs none."""
        return pa.schema([(name, self.types[name]) for name in CHEAPEST_FIRST if name in self.types])

    def plan(self, condition: Condition | None) -> Sequence[Split]:
        """Plan the splits of a scan. Raises ConfigError, DataLoss, StoreError."""
        with closing(Planner.of(self.options)) as planner:
            bounds = QueryBounds()
            if condition is not None:
                partitions = [partition for _, partition in planner.logs()] if condition.names("partition") else []
                bounds = condition.bounds(partitions)
            return planner.given(planner.batch(self.limits, bounds))

    def records(
        self, planned: Sequence[Split], columns: Sequence[str], reading: ScanReading
    ) -> Iterator[pa.RecordBatch]:
        """Read planned splits. Raises DataLoss, StoreError, RegistryError."""
        decoding = self.decoding if DECODED in columns else None
        with closing(Planner.of(self.options)) as planner:
            for split in planned:
                yield from read_records(planner, [split], columns, decoding)
                reading.note(split.size_bytes)


class TopicDataset(ds.Dataset):
    """A data set for DuckDB: it has a schema, and makes scanners."""

    def __init__(self, read: TopicRead, reading: ScanReading) -> None:
        self._read = read
        self._reading = reading

    @property
    def schema(self) -> pa.Schema:
        """Return the schema that DuckDB sees."""
        return self._read.schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> ds.Scanner:
        """Plan a scan. Errors are raised to DuckDB, and kept."""
        try:
            condition = None if filter is None else Condition(expression=filter, schema=self.schema)
            names = [name for name in self.schema.names if columns is None or name in columns or _has(condition, name)]
            planned = self._read.plan(condition)
            self._reading.plan(sum(split.size_bytes for split in planned))
        except BaseException as exc:
            self._reading.failure = exc
            raise
        schema = pa.schema([self.schema.field(name) for name in names])
        batches = pa.RecordBatchReader.from_batches(
            schema, self._reading.guarded(self._read.records(planned, names, self._reading))
        )
        return ds.Scanner.from_batches(batches, columns=columns, filter=filter)


def _has(condition: Condition | None, name: str) -> bool:
    return condition is not None and condition.names(name)
