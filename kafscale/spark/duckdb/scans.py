"""A topic, or its totals, as a data set of Arrow, whose scans read only what a statement needs.

DuckDB gives its conditions as an expression of Arrow. Arrow itself is asked what that excludes, as it decides which
files of a data set to open: could a row with these offsets satisfy it? Bisection finds where the answer changes. So
every condition that Arrow understands bounds the read, and any other leaves out nothing.

Totals: footers tell nearly all of `count(*)`, and of `min` and `max` of `offset` and `timestamp`, under conditions on
offsets, partitions and times alone. Then a SELECT reads the topic's totals, a few rows for each partition, and counts
become sums. Its other expressions may use `partition` and `topic`; any other sends the SELECT to records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from kafscale.spark.bucket.decode import COLUMN_TYPES
from kafscale.spark.bucket.splits import FIRST_MS, LAST_MS, Period, Split
from kafscale.spark.bucket.totals import GROUPS, NEVER_NULL, FooterTotals, Totals, told_by_footers, totals_of
from kafscale.spark.duckdb.expressions import Expressions
from kafscale.spark.duckdb.functions import AGGREGATES, OPERATORS, timestamp_of
from kafscale.spark.duckdb.kinds import INTEGERS, Expression, NotAlike, TooMuch, TypedColumn, ValueKind
from kafscale.spark.duckdb.parser import ParsedNode
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions
from kafscale.spark.source.planning import SWAPPED, Planner, QueryBounds, check_size, read_records, topic_of_subject
from kafscale.spark.sql.answers import Report
from kafscale.spark.values.decoder import DECODED, Decoding
from kafscale.spark.values.options import ValueOptions

OFFSET_LAST = (1 << 62) - 1
TIME_LAST_US = (1 << 62) - 1
MICROSECONDS_PER_MS = 1000

_FORMAT, _FILES = ds.ParquetFileFormat(), LocalFileSystem()


@attrs.frozen(kw_only=True)
class Condition:
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

    report: called with the bytes read and planned, for Spark too. is_planned: there was a scan.
    """

    max_bytes: int | None = None
    report: Report | None = None
    is_planned: bool = False
    planned_bytes: int = 0
    read_bytes: int = 0
    failure: BaseException | None = None

    def plan(self, size_bytes: int) -> None:
        self.is_planned = True
        self.planned_bytes += size_bytes
        self._tell()
        if self.max_bytes is not None and self.planned_bytes > self.max_bytes:
            raise TooMuch(
                f"it would read {self.planned_bytes:,} bytes or more, and --duckdb-max-bytes is {self.max_bytes:,}"
            )

    def note(self, size_bytes: int) -> None:
        self.read_bytes += size_bytes
        self._tell()

    def _tell(self) -> None:
        if self.report is not None:
            self.report(self.read_bytes, self.planned_bytes)

    def guarded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
        """Raises ConfigError, RegistryError, UnknownSchema."""
        options, values = ReadOptions.of(given), ValueOptions.parse(given.values)
        given.warn_of_ignored()
        decoding = None if values is None else Decoding.of(values, topic_of_subject(values, options.subscription))
        return cls(options=options, limits=BatchOptions.of(given), decoding=decoding)

    @property
    def types(self) -> Mapping[str, pa.DataType]:
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
    """A data set for DuckDB: it has a schema, and makes scanners. Errors are raised to DuckDB, and kept."""

    def __init__(self, read: TopicRead, reading: ScanReading) -> None:
        self._read = read
        self._reading = reading

    @property
    def schema(self) -> pa.Schema:
        return self._read.schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> ds.Scanner:
        """Plan a scan."""
        try:
            condition = None if filter is None else Condition(expression=filter, schema=self.schema)
            names = [
                name
                for name in self.schema.names
                if columns is None or name in columns or (condition is not None and condition.names(name))
            ]
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


COUNT, FIRST_OFFSET, LAST_OFFSET = "count", "first_offset", "last_offset"
FIRST_TIME, LAST_TIME = "first_time", "last_time"
EXTREMES: Mapping[tuple[str, str], str] = {
    ("min", "offset"): FIRST_OFFSET,
    ("max", "offset"): LAST_OFFSET,
    ("min", "timestamp"): FIRST_TIME,
    ("max", "timestamp"): LAST_TIME,
    ("min", "partition"): "partition",
    ("max", "partition"): "partition",
}


def grouping_columns(columns: Sequence[TypedColumn]) -> Sequence[TypedColumn]:
    return [column for column in columns if _name(column.sql) in GROUPS]


def _name(sql: str) -> str:
    """Return the topic's column that a column of a relation is; a field of a struct is none of them."""
    relation, point, column = sql.partition(".")
    return (column if point else relation).strip('"')


@attrs.frozen(kw_only=True)
class TotalExpressions(Expressions):
    """Expressions of a SELECT of totals; `of_records` are those of the same SELECT of records."""

    of_records: Expressions
    sql: str
    calls: list[str]

    def of(self, node: ParsedNode) -> Expression:
        if node.type == "COLUMN_REF":
            self._check_column(node.raw("column_names"))
        name = node.text("function_name").lower()
        if node.type != "FUNCTION" or name not in ("count_star", *AGGREGATES):
            return super().of(node)
        told = self.of_records.of(node)
        if node.has("distinct"):
            raise NotAlike("totals do not tell values apart")
        sql = self._count() if name == "count_star" else self._call_of(name, node)
        self.calls.append(name)
        return attrs.evolve(told, sql=sql)

    def _check_column(self, parts: Sequence[str]) -> None:
        if self.scope.results_first and len(parts) == 1 and parts[0].lower() in self.scope.results:
            return
        found = list(self.of_records.scope.columns(parts))
        if any(_name(expression.sql) not in GROUPS for expression in found):
            raise NotAlike("totals have no such column")

    def _call_of(self, name: str, node: ParsedNode) -> str:
        [argument] = node.nodes("arguments")
        inner = argument.node("expression")
        if name == "count" and inner.type == "VALUE_CONSTANT" and self.of_records.of(inner).kind is not ValueKind.NULL:
            return self._count()
        if inner.type != "COLUMN_REF":
            raise NotAlike("totals are of columns")
        column = _name(self.of_records.of(inner).sql)
        if name == "count" and column in NEVER_NULL:
            return self._count()
        total = EXTREMES.get((name, column))
        if total is None:
            raise NotAlike(f"totals have no {name} of {column}")
        return f'{name}({self.sql}."{total}")'

    def _count(self) -> str:
        return f'CAST(coalesce(sum({self.sql}."{COUNT}"), 0) AS BIGINT)'


def exact_bounds(node: ParsedNode, expressions: Expressions) -> QueryBounds:
    """Return the bounds that equal a condition. Raises NotAlike if none do."""
    if node.type == "CONJUNCTION_AND":
        bounds = QueryBounds()
        for child in node.only("children").nodes("children"):
            bounds = bounds.within(exact_bounds(child, expressions))
        return bounds
    if node.type == "COMPARE_BETWEEN":
        node.only("input", "lower", "upper")
        value = node.node("input")
        above = _compared(">=", expressions.of(value), expressions.of(node.node("lower")))
        return above.within(_compared("<=", expressions.of(value), expressions.of(node.node("upper"))))
    operator = OPERATORS.get(node.type)
    if operator not in SWAPPED:
        raise NotAlike("totals are bounded by comparisons alone")
    left, right = (expressions.of(node.only("left", "right").node(side)) for side in ("left", "right"))
    if right.literal is None:
        return _compared(SWAPPED[operator], right, left)
    return _compared(operator, left, right)


def _compared(operator: str, value: Expression, constant: Expression) -> QueryBounds:
    column, literal = _name(value.sql), constant.literal
    if value.literal is not None or literal is None or value.name is None or "." not in value.sql:
        raise NotAlike("totals are bounded by columns and constants alone")
    if column == "timestamp" and value.kind is ValueKind.TIMESTAMP:
        if constant.kind is ValueKind.STRING:
            literal = timestamp_of(str(literal)).literal
        elif constant.kind is not ValueKind.TIMESTAMP:
            raise NotAlike(f"a time is compared with {constant.kind}")
        assert isinstance(literal, int)
        return QueryBounds(period=Period.compared(operator, literal))
    if column not in ("offset", "partition") or constant.kind not in INTEGERS or not isinstance(literal, int):
        raise NotAlike("totals are bounded by offsets, partitions and times alone")
    if column == "partition":
        if operator != "=":
            raise NotAlike("totals are bounded by single partitions alone")
        return QueryBounds(partitions=frozenset([literal]))
    return QueryBounds.of_offset(operator, literal)


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
    """A data set of totals for DuckDB. Each row is of some records of a partition within the bounds."""

    def __init__(self, read: TopicRead, bounds: QueryBounds, reading: ScanReading) -> None:
        self._read = read
        self._bounds = bounds
        self._reading = reading

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> ds.Scanner:
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

    def _plan(self, with_first_time: bool) -> FooterTotals:
        limits = self._read.limits
        with closing(Planner.of(self._read.options)) as planner:
            splits = planner.given(planner.batch(attrs.evolve(limits, max_scan_bytes=None), self._bounds))
            told = told_by_footers(planner.catalog, splits, with_first_time=with_first_time)
        check_size(told.left, limits.max_scan_bytes)
        return told

    def _rows(self, told: FooterTotals, with_times: bool) -> Iterator[pa.RecordBatch]:
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
        [total.partition for total in totals],
        [total.topic for total in totals],
        [total.count for total in totals],
        [total.first_offset for total in totals],
        [total.last_offset for total in totals],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=False)]
    times = [_times(total.first_ms for total in totals), _times(total.last_ms for total in totals)]
    return pa.RecordBatch.from_arrays([*arrays, *times], schema=SCHEMA)


def _times(times_ms: Iterable[int | None]) -> pa.Array:
    values = [None if time_ms is None else time_ms * 1000 for time_ms in times_ms]
    return pa.array(values, pa.int64()).cast(COLUMN_TYPES["timestamp"])
