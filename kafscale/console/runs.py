"""Commands of `kafscale` that read the bucket for a page, each as a process.

A command may take long, need much memory, or load Spark: as a process it stops no page and can be cancelled. It prints
JSON, and progress as lines of JSON to stderr. Results are bounded in bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import attrs
import trio

from kafscale.concurrency.process import Process, lines
from kafscale.process_variables import PROGRESS_VARIABLE, SUPERVISOR_VARIABLE

OUTPUT_MAX_BYTES = 4 << 20
ERRORS_MAX_COUNT = 20  # lines
RUNS_MAX_COUNT = 4  # processes at once, of all sessions


class RunState(StrEnum):
    """States of a command."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@attrs.frozen(kw_only=True)
class Progress:
    """A step and its amount done; `total` is None if it is unknown."""

    step: str
    done: int
    total: int | None


@attrs.define(eq=False, repr=False)
class Run:
    """A command with its output. `is_cut`: the output was longer than OUTPUT_MAX_BYTES, and the process was ended."""

    arguments: Sequence[str]
    label: str = ""
    former: Run | None = None  # whose output is shown until there is another one
    state: RunState = attrs.field(default=RunState.WAITING, init=False)
    progress: Progress | None = attrs.field(default=None, init=False)
    output: bytes = attrs.field(default=b"", init=False)
    errors: list[str] = attrs.field(factory=list, init=False)
    is_cut: bool = attrs.field(default=False, init=False)
    began_at: float = attrs.field(factory=time.time, init=False)
    ended_at: float | None = attrs.field(default=None, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    @property
    def seconds(self) -> float:
        return (self.ended_at or time.time()) - self.began_at

    @property
    def age_seconds(self) -> float:
        """Seconds since the end; 0 before it."""
        return 0.0 if self.ended_at is None else time.time() - self.ended_at

    @property
    def shown(self) -> Run | None:
        """Return the newest command with a result: this one, or one before it."""
        if self.state in (RunState.DONE, RunState.FAILED):
            return self
        return None if self.former is None else self.former.shown

    @property
    def failure(self) -> str:
        return self.errors[-1] if self.errors else "the command failed"

    def cancel(self) -> None:
        self._scope.cancel()

    def document(self) -> Any:
        """Return the output as JSON. Raises ValueError."""
        return json.loads(self.output)

    def rows(self) -> list[dict[str, Any]]:
        """Return the JSON objects of the output's whole lines. Raises ValueError."""
        whole = self.output.rpartition(b"\n")[0] if self.is_cut else self.output
        return [json.loads(line) for line in whole.splitlines() if line.strip()]

    async def run(self, limit: trio.CapacityLimiter) -> None:
        """Run the command once there is room."""
        if self.former is not None:
            self.former = self.former.shown  # and no longer chain
        with self._scope:
            async with limit:
                self.state = RunState.RUNNING
                try:
                    code = await self._live()
                except OSError as exc:
                    self.errors.append(f"no process can be made: {exc.strerror}")
                    code = 1
                # `verify` has its report in the output, and exit code 1 for damage.
                self.state = RunState.DONE if code == 0 or self.is_cut else RunState.FAILED
        if self._scope.cancelled_caught:
            self.state = RunState.CANCELLED
        self.ended_at = time.time()

    async def _live(self) -> int:
        command = [sys.executable, "-m", "kafscale", *self.arguments]
        own = {PROGRESS_VARIABLE: "json", SUPERVISOR_VARIABLE: str(os.getpid()), "NO_COLOR": "1"}
        process = Process.start(command, {**os.environ, **own})
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_errors, process)
                await self._read_output(process)
                return await process.wait()
        finally:
            await process.aclose()

    async def _read_output(self, process: Process) -> None:
        parts, size_bytes = [], 0
        async for part in process.output:
            parts.append(bytes(part))
            size_bytes += len(part)
            if size_bytes > OUTPUT_MAX_BYTES:
                self.is_cut = True
                process.kill()
                break
        self.output = b"".join(parts)[:OUTPUT_MAX_BYTES]

    async def _read_errors(self, process: Process) -> None:
        async for line in lines(process.errors):
            if not line.startswith('{"progress"'):
                self.errors = [*self.errors[1 - ERRORS_MAX_COUNT :], line]
                continue
            told = json.loads(line)["progress"]
            self.progress = Progress(step=told["step"], done=told["done"], total=told["total"])
