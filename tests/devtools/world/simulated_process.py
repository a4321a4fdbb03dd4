"""Processes in one run of trio: their tasks, their wall clocks, and suspensions as by SIGSTOP.

`PROCESS.set(process)` in the first of its tasks puts their child tasks into the process too. While it is suspended,
data from others waits for it, and it notices passed deadlines when it goes on.
"""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from typing import Any, cast

import attrs
import pytest
import trio
from trio._core import _run as _trio_run

from kafscale.concurrency import clocks


@attrs.define(eq=False)
class Process:
    name: str = "a process"
    clock_skew_ns: int = 0
    is_suspended: bool = attrs.field(default=False, init=False)
    _held: list[trio.lowlevel.Task] = attrs.field(factory=list, init=False)

    def suspend(self) -> None:
        """Let none of its tasks run from the next turn of the scheduler on."""
        if self.is_suspended:
            return
        self.is_suspended = True
        runner = _trio_run.GLOBAL_RUN_CONTEXT.runner
        if not isinstance(runner.runq, _RunQueue):  # which costs more than trio's own, so only while it is needed
            runner.runq = cast(Any, _RunQueue(runner.runq))
        cast(_RunQueue, runner.runq).suspended_count += 1

    def resume(self) -> None:
        if not self.is_suspended:
            return
        self.is_suspended = False
        held, self._held = self._held, []
        runner = _trio_run.GLOBAL_RUN_CONTEXT.runner
        queue = cast(_RunQueue, runner.runq)
        queue.extend(held)
        queue.suspended_count -= 1
        if not queue.suspended_count:
            runner.runq = deque(queue)

    def hold(self, task: trio.lowlevel.Task) -> None:
        self._held.append(task)


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


class _RunQueue(deque[trio.lowlevel.Task]):
    """The tasks that are to run next, without those of suspended processes."""

    suspended_count = 0

    def append(self, task: trio.lowlevel.Task) -> None:
        process = task.context.get(PROCESS)
        if process is not None and process.is_suspended:
            process.hold(task)
        else:
            super().append(task)


def clock_skew_ns() -> int:
    """Return how far the wall clock of the calling process is ahead."""
    process = PROCESS.get()
    return 0 if process is None else process.clock_skew_ns


def suspend_machine(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Suspend all processes for this long: trio's clock has stood still."""
    patch.setattr(clocks, "_asleep", clocks._Asleep(clocks._asleep_seconds() - seconds))
