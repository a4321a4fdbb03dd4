"""What a query reads of the bucket, as its source has planned it: EXPLAIN says so below Spark's plan."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.spark.bucket.splits import BrokerRange, GivenRange, LogRange, Range, Split
from kafscale.spark.sql.failures import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def explained(spark: SparkSession, text: str) -> DataFrame:
    """Return Spark's plan of `EXPLAIN …`, and a line for each read of a topic.

    Nothing is executed. Raises QueryError.
    """
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
    """Iterate over what each scan of a topic in Spark's optimized plan reads.

    Has the source plan, if it did not yet.
    """
    for tasks in _scans(plan):
        yield [split for splits in tasks for split in splits]


def tasks_of(plan: Any) -> Iterator[Sequence[int]]:
    """Iterate over the scans likewise: of each the bytes that its tasks read, one by one."""
    for tasks in _scans(plan):
        yield [sum(split.size_bytes for split in splits) for splits in tasks]


def _scans(plan: Any) -> Iterator[Sequence[Sequence[Split]]]:
    from kafscale.spark.source.source import SplitPartition

    if plan.getClass().getSimpleName() == "DataSourceV2ScanRelation":
        planned = [_unpickled(each) for each in plan.scan().toBatch().planInputPartitions()]
        yield [each.splits for each in planned if isinstance(each, SplitPartition)]
    for further in (plan.children(), plan.subqueries()):
        for index in range(further.size()):
            yield from _scans(further.apply(index))


def _unpickled(partition: Any) -> Any:
    """None of what is not of a source in Python."""
    if partition.getClass().getSimpleName() != "PythonInputPartition":
        return None
    return pickle.loads(bytes(partition.pickedPartition()))


def _line(splits: Sequence[Split]) -> str:
    ranges = [each for split in splits for each in split.ranges]
    segments = {each.key for each in ranges if isinstance(each, Range)}
    has_log = any(isinstance(each, LogRange | GivenRange) for each in ranges)
    size_bytes = sum(split.size_bytes for split in splits)
    topics = ", ".join(sorted({split.topic for split in splits})) or "nothing"
    behind = " and the log behind them" if has_log else ""
    fetched = sum(each.end_offset - each.start_offset for each in ranges if isinstance(each, BrokerRange))
    behind += f", and about {fetched:,} records from brokers" if fetched else ""
    return f"Reads {topics}: {size_bytes:,} bytes of {len(segments)} segments{behind}"


QUIET_SECONDS = 1.0  # of a statement, which has no bar before; to plan it once more takes some hundredths
LOOK_SECONDS = 0.25

Report = Callable[[int, int], None]
"""Told how many bytes of how many are read."""


@attrs.define(eq=False)
class Reads:
    """What the scans of a statement read: of each the bytes of its tasks."""

    scans: Sequence[Sequence[int]]
    _running: dict[int, int] = attrs.field(factory=dict, init=False)  # stages of scans, and the bytes of their tasks
    _ended_bytes: int = attrs.field(default=0, init=False)

    @property
    def total_bytes(self) -> int:
        return sum(map(sum, self.scans))

    def note(self, stages: Mapping[int, tuple[int, int]]) -> int:
        """Take the stages that run, each with how many tasks it has and how many are done; return what is read.

        A stage that ran and runs no more has been done.
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
    """Report how far the block is, which runs queries of a frame; nothing of a short one, or without `report`."""
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
        reads = Reads(list(tasks_of(plan)))
        while reads.total_bytes and not is_over.wait(LOOK_SECONDS):
            report(reads.note(_stages(tracker)), reads.total_bytes)
    except (Py4JError, OSError):
        return  # what is wrong with the statement, or with Spark, is told by who runs it


def _stages(tracker: Any) -> Mapping[int, tuple[int, int]]:
    found = {stage: tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()}
    return {stage: (info.numTasks, info.numCompletedTasks) for stage, info in found.items() if info is not None}
