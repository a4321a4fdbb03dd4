"""How much of what a statement reads its tasks have read, while Spark answers it.

A task reads its part of a topic, whose size was planned, and Spark's status tells how many of a stage's tasks are done.
Which scan a stage is of is told by how many tasks it has, so a stage behind a scan that has as many counts, too: never
past the whole. Stages of other numbers, as of a LIMIT that takes a few tasks at a time, do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.spark.sql.estimates import tasks_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
