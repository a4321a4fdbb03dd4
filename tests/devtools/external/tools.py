"""Programs of others that run during a test, with their output until now; Go programs of `tests/clients/go`."""

from __future__ import annotations

import atexit
import json
import signal
import subprocess
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from tests.devtools.external.clients import DEADLINE_SECONDS, wait_until

RUN_TIMEOUT_SECONDS = 90.0


@attrs.define(eq=False, kw_only=True)
class RunningTool:
    """A tool that runs, the lines that it has printed until now, and the objects among them."""

    process: subprocess.Popen[str]
    lines: list[str] = attrs.field(factory=list)
    events: list[dict[str, Any]] = attrs.field(factory=list)
    _reader: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line)
                if line.startswith("{"):
                    self.events.append(json.loads(line))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["name"] == name]

    def wait_until(self, condition: Callable[[], object], what: str, *, seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until the events meet the condition. Raises AssertionError past the deadline."""
        wait_until(condition, what, seconds=seconds)

    def wait(self) -> int:
        code = self.process.wait(RUN_TIMEOUT_SECONDS)
        self._reader.join(DEADLINE_SECONDS)
        return code

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def __enter__(self) -> RunningTool:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.wait()


SOURCE = Path(__file__).parents[2] / "clients" / "go"
BUILD_TIMEOUT_SECONDS = 900.0  # the first build may wait for downloads


@cache
def go_program(name: str) -> Path:
    directory = TemporaryDirectory(prefix="kafscale-go-")
    atexit.register(directory.cleanup)
    program = Path(directory.name) / name
    subprocess.run(
        ["go", "build", "-o", str(program), f"./{name}"], cwd=SOURCE, check=True, timeout=BUILD_TIMEOUT_SECONDS
    )
    return program
