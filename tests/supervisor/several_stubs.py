"""A supervisor of two stubs as a process of its own, and what is asked of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import attrs

from kafscale.config import Address
from tests.devtools.processes.process import _first_line, interruptible

START_TIMEOUT_SECONDS = 60.0
TIMEOUT_SECONDS = 20.0
STUBS = str(Path(__file__).with_name("supervised_stubs.py"))


@attrs.define(eq=False, kw_only=True)
class SeveralStubs:
    """`options` are those of `kafscale serve`."""

    directory: Path
    options: Sequence[str] = ()
    environ: Mapping[str, str] = attrs.field(factory=dict)
    ready: str = attrs.field(default="", init=False)
    process: subprocess.Popen[str] = attrs.field(init=False)

    def __enter__(self) -> Self:
        self.directory.mkdir(exist_ok=True)
        listen = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAFSCALE_")}
        with (self.directory / "log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, STUBS, "2", "--data-dir", str(self.directory / "data"), *listen, *self.options],
                env={**inherited, **self.environ},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=interruptible,
                process_group=0,
            )
        self.ready = _first_line(self.process, time.monotonic() + START_TIMEOUT_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def kafka(self) -> list[Address]:
        return [Address.parse(each) for each in self.ready.split()[4].split(",")]

    @property
    def admin(self) -> Address:
        return Address.parse(self.ready.split()[6])

    def pid_of(self, broker_id: int) -> int:
        """The process of that broker which was ready last."""
        return int(re.findall(rf"broker {broker_id} is ready, as process (\d+)", self.log)[-1])

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.admin}{path}", method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()

    def end(self, *numbers: signal.Signals) -> int:
        for number in numbers:
            self.process.send_signal(number)
        return self.process.wait(TIMEOUT_SECONDS)
