"""Rows of a result as text, CSV, JSON or Parquet, and the progress of reading them.

Spark makes the text of each value, as a CAST to STRING does. UTF-8 bytes are shown as text, others as 0x… in
hexadecimal. In JSON other bytes are base64 in a field that ends in `_base64`, as `kafscale consume` writes them.

Progress: a task reads a part whose size was planned, and Spark tells how many tasks of a stage are done. A stage
belongs to the scan with as many tasks, so a later stage with as many counts too, never past the whole. Stages with
other numbers, as of a LIMIT that takes a few tasks at a time, do not count.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.spark.bucket.splits import BrokerRange, GivenRange, LogRange, Split, SplitRange
from kafscale.spark.sql.failures import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def explained(spark: SparkSession, text: str) -> DataFrame:
    """Return Spark's plan of `EXPLAIN …`, and a line for each read of a topic, without running it."""
    session: Any = spark._jsparkSession
    gateway: Any = spark._jvm
    state = session.sessionState()
    with spark_errors():
        shown = [row[0] for row in spark.sql(text).collect()]
        query = state.sqlParser().parsePlan(text).logicalPlan()
        skip = gateway.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
        lines = map(_line, reads_of(state.executePlan(query, skip).optimizedPlan()))
        return spark.createDataFrame([("\n".join([*shown, *lines, ""]),)], "plan STRING")


def reads_of(plan: Any) -> Iterator[Sequence[Split]]:
    """Yield the splits of each scan of a topic in Spark's optimized plan, planned now if need be."""
    for tasks in _scans(plan):
        yield [split for splits in tasks for split in splits]


def _scans(plan: Any) -> Iterator[Sequence[Sequence[Split]]]:
    from kafscale.spark.source.source import SplitPartition

    if plan.getClass().getSimpleName() == "DataSourceV2ScanRelation":
        planned = [
            pickle.loads(bytes(partition.pickedPartition()))
            for partition in plan.scan().toBatch().planInputPartitions()
            if partition.getClass().getSimpleName() == "PythonInputPartition"
        ]
        yield [partition.splits for partition in planned if isinstance(partition, SplitPartition)]
    for further in (plan.children(), plan.subqueries()):
        for index in range(further.size()):
            yield from _scans(further.apply(index))


def _line(splits: Sequence[Split]) -> str:
    ranges = [range_ for split in splits for range_ in split.ranges]
    segments = {range_.key for range_ in ranges if isinstance(range_, SplitRange)}
    has_log = any(isinstance(range_, LogRange | GivenRange) for range_ in ranges)
    size_bytes = sum(split.size_bytes for split in splits)
    topics = ", ".join(sorted({split.topic for split in splits})) or "nothing"
    behind = " and the log behind them" if has_log else ""
    fetched = sum(range_.end_offset - range_.start_offset for range_ in ranges if isinstance(range_, BrokerRange))
    behind += f", and about {fetched:,} records from brokers" if fetched else ""
    return f"Reads {topics}: {size_bytes:,} bytes of {len(segments)} segments{behind}"


QUIET_SECONDS = 1.0  # of a statement, which has no bar before; to plan it once more takes some hundredths
LOOK_SECONDS = 0.25

Report = Callable[[int, int], None]
"""Told how many bytes of how many are read."""


@attrs.define(eq=False)
class Reads:
    """The scans of a statement: the bytes of each task."""

    scans: Sequence[Sequence[int]]
    _running: dict[int, int] = attrs.field(factory=dict, init=False)  # stages of scans, and the bytes of their tasks
    _ended_bytes: int = attrs.field(default=0, init=False)

    @property
    def total_bytes(self) -> int:
        return sum(map(sum, self.scans))

    def note(self, stages: Mapping[int, tuple[int, int]]) -> int:
        """Take the running stages, with their numbers of tasks and finished tasks; return the bytes read.

        A stage that ran before and does not run any more has finished.
        """
        sizes = {len(tasks): sum(tasks) for tasks in self.scans}
        self._ended_bytes += sum(size for stage, size in self._running.items() if stage not in stages)
        self._running = {stage: sizes[count] for stage, (count, _) in stages.items() if count in sizes}
        read_bytes = self._ended_bytes
        for stage, size in self._running.items():
            count, done_count = stages[stage]
            read_bytes += size * done_count // count
        return min(self.total_bytes, read_bytes)


@contextmanager
def told(frame: DataFrame, report: Report | None) -> Iterator[None]:
    """Report the progress of the block, which runs a frame's queries, unless it is short."""
    if report is None:
        yield
        return
    is_over = Event()
    watcher = Thread(target=_watch, args=[frame, report, is_over], name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _watch(frame: DataFrame, report: Report, is_over: Event) -> None:
    from py4j.protocol import Py4JError

    if is_over.wait(QUIET_SECONDS):
        return
    tracker = frame.sparkSession.sparkContext.statusTracker()
    try:
        plan: Any = frame._jdf.queryExecution().optimizedPlan()
        reads = Reads([[sum(split.size_bytes for split in splits) for splits in tasks] for tasks in _scans(plan)])
        while reads.total_bytes and not is_over.wait(LOOK_SECONDS):
            report(reads.note(_stages(tracker)), reads.total_bytes)
    except (Py4JError, OSError):
        return  # the caller reports the error of the statement, or of Spark


def _stages(tracker: Any) -> Mapping[int, tuple[int, int]]:
    found = {stage: tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()}
    return {stage: (info.numTasks, info.numCompletedTasks) for stage, info in found.items() if info is not None}


_TO_QUOTE = re.compile(r'[",\r\n]')


@attrs.frozen(kw_only=True)
class Cells:
    """The first rows of a result. None is NULL."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | None]]
    has_more: bool


@attrs.frozen(eq=False, repr=False)
class SparkAnswer:
    """A DataFrame's rows, given once in one form; each method runs its query, and reports its progress.

    Methods raise QueryError, StoreError. A command has no columns.
    """

    frame: DataFrame
    report: Report | None = None

    @property
    def columns(self) -> Sequence[str]:
        columns: Sequence[str] = self.frame.columns
        return columns

    def first_cells(self, max_rows: int) -> Cells:
        with told(self.frame, self.report), spark_errors():
            rows = [tuple(row) for row in _texts(self.frame).limit(max_rows + 1).collect()]
            return Cells(columns=self.columns, rows=rows[:max_rows], has_more=len(rows) > max_rows)

    def csv_lines(self) -> Iterator[str]:
        """Yield CSV, first the names; NULL is empty, an empty string is quoted. Holds few rows."""
        with told(self.frame, self.report), spark_errors():
            yield csv_line(self.columns)
            for row in _texts(self.frame).toLocalIterator(prefetchPartitions=True):
                yield csv_line(row)

    def json_lines(self) -> Iterator[str]:
        """Yield an object for each row, without NULLs. A repeated name gets a number. Holds few rows."""
        from pyspark.sql.functions import struct, to_json

        with told(self.frame, self.report), spark_errors():
            named = self.frame.toDF(*unique(self.columns))
            fields = [field for name, type_ in named.dtypes for field in _json_fields(named, name, type_)]
            for row in named.select(to_json(struct(*fields))).toLocalIterator(prefetchPartitions=True):
                yield row[0] + "\n"

    def write_parquet(self, path: str) -> None:
        """Write a new directory of files. A repeated name gets a number."""
        with told(self.frame, self.report), spark_errors():
            self.frame.toDF(*unique(self.columns)).write.mode("errorifexists").parquet(path)

    def close(self) -> None:
        """Do nothing; DuckDB has rows to release."""


def unique(names: Sequence[str]) -> Sequence[str]:
    """Return the names with `_2` and so on behind repeated ones; case does not tell names apart."""
    taken: set[str] = {name.lower() for name in names}
    used: set[str] = set()
    found = []
    for name in names:
        number, chosen = 2, name
        while chosen.lower() in used or (chosen != name and chosen.lower() in taken):
            number, chosen = number + 1, f"{name}_{number}"
        used.add(chosen.lower())
        found.append(chosen)
    return found


def _texts(frame: DataFrame) -> DataFrame:
    """Cast all columns to text, by position, as names may repeat."""
    types = [type_ for _, type_ in frame.dtypes]
    numbered = frame.toDF(*(f"c{index}" for index in range(len(types))))
    return numbered.select(*(_text(numbered[f"c{index}"], type_) for index, type_ in enumerate(types)))


def _text(column: Column, type_: str) -> Column:
    from pyspark.sql.functions import concat, hex, is_valid_utf8, lit, when

    text = column.cast("string")
    if type_ != "binary":
        return text
    return when(is_valid_utf8(text), text).otherwise(concat(lit("0x"), hex(column)))


def _json_fields(frame: DataFrame, name: str, type_: str) -> Sequence[Column]:
    from pyspark.sql.functions import base64, is_valid_utf8, when

    column = frame[f"`{name.replace('`', '``')}`"]
    if type_ != "binary":
        return [column.alias(name)]
    text = column.cast("string")
    return [
        when(is_valid_utf8(text), text).alias(name),
        when(~is_valid_utf8(text), base64(column)).alias(f"{name}_base64"),
    ]


def csv_line(cells: Sequence[str | None]) -> str:
    """Follow RFC 4180; the csv module of older Pythons can't tell NULL from an empty string."""
    return ",".join(map(_csv_cell, cells)) + "\n"


def _csv_cell(text: str | None) -> str:
    if text is None:
        return ""
    return '"' + text.replace('"', '""') + '"' if not text or _TO_QUOTE.search(text) else text
