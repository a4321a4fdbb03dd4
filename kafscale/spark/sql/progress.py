"""The reads of a query as its source has planned them: for EXPLAIN, and as progress while Spark runs it.

A task reads a part whose size was planned, and Spark's status tells how many tasks of a stage are done. A stage belongs
to the scan with as many tasks, so a later stage with as many counts too, never past the whole. Stages with other
numbers, as of a LIMIT that takes a few tasks at a time, do not count.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.spark.bucket.splits import BrokerRange, GivenRange, LogRange, Split, SplitRange
from kafscale.spark.sql.failures import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def explained(spark: SparkSession, text: str) -> DataFrame:
    """Return Spark's plan of `EXPLAIN …`, and a line for each read of a topic, without running it.

    Raises QueryError.
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
    """Yield the splits of each scan of a topic in Spark's optimized plan, planned now if need be."""
    for tasks in _scans(plan):
        yield [split for splits in tasks for split in splits]


def tasks_of(plan: Any) -> Iterator[Sequence[int]]:
    """Yield the bytes of each task, for each scan."""
    for tasks in _scans(plan):
        yield [sum(split.size_bytes for split in splits) for splits in tasks]


def _scans(plan: Any) -> Iterator[Sequence[Sequence[Split]]]:
    from kafscale.spark.source.source import SplitPartition

    if plan.getClass().getSimpleName() == "DataSourceV2ScanRelation":
        planned = [_unpickled(partition) for partition in plan.scan().toBatch().planInputPartitions()]
        yield [partition.splits for partition in planned if isinstance(partition, SplitPartition)]
    for further in (plan.children(), plan.subqueries()):
        for index in range(further.size()):
            yield from _scans(further.apply(index))


def _unpickled(partition: Any) -> Any:
    """Return None for a partition of another source than one in Python."""
    if partition.getClass().getSimpleName() != "PythonInputPartition":
        return None
    return pickle.loads(bytes(partition.pickedPartition()))


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
        """Take the running stages, with the number of their tasks and finished tasks; return the bytes read.

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
    """Report the progress of the block, which runs a frame's queries; nothing if it is short, or without `report`."""
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
        return  # the caller reports the error of the statement, or of Spark


def _stages(tracker: Any) -> Mapping[int, tuple[int, int]]:
    found = {stage: tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()}
    return {stage: (info.numTasks, info.numCompletedTasks) for stage, info in found.items() if info is not None}
