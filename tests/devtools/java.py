"""Kafka's own Java tools against a broker, and what they print."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import attrs

from tests.devtools.clients import DEADLINE_SECONDS, wait_until
from tests.devtools.process import interruptible

RUN_TIMEOUT_SECONDS = 90.0
JVM_FLAGS = (
    "-XX:TieredStopAtLevel=1",  # a tool runs for a second: the second compiler would only compete with the broker
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


@attrs.frozen(kw_only=True)
class JavaTools:
    """Runs tools by their class, the package org.apache.kafka.tools left out. Java 17 must be on the PATH."""

    bootstrap: str
    class_path: str

    def __call__(self, tool: str, *arguments: str, send: str | None = None) -> str:
        """Return what the tool wrote to stdout. Raises AssertionError with all it wrote unless it exits with 0."""
        done = subprocess.run(
            self._command(tool, arguments),
            input=send,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, tool: str, *arguments: str) -> RunningTool:
        """Let a tool run that prints a JSON object a line."""
        process = subprocess.Popen(
            self._command(tool, arguments),
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=interruptible,
        )
        return RunningTool(process=process)

    def source(self, file: str) -> str:
        """Return what a program of a single source file wrote to stdout."""
        command = ["java", *JVM_FLAGS, "-cp", self.class_path, file]
        return subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_SECONDS, check=True).stdout

    def _command(self, tool: str, arguments: tuple[str, ...]) -> list[str]:
        name = tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"
        connect = ["--bootstrap-server", self.bootstrap]
        if tool == "ProducerPerformance":
            connect = ["--producer-props", f"bootstrap.servers={self.bootstrap}"]
        return ["java", *JVM_FLAGS, "-cp", self.class_path, name, *connect, *arguments]


@attrs.define(eq=False, kw_only=True)
class RunningTool:
    """A tool that runs, and the objects that it has printed until now."""

    process: subprocess.Popen[str]
    events: list[dict[str, Any]] = attrs.field(factory=list)
    _reader: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.events.extend(json.loads(line) for line in lines if line.startswith("{"))

    def named(self, name: str) -> list[dict[str, Any]]:
        """The events of this name, oldest first."""
        return [event for event in self.events if event["name"] == name]

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for what the events show. Raises AssertionError past the deadline."""
        wait_until(condition, what)

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        code = self.process.wait(RUN_TIMEOUT_SECONDS)
        self._reader.join(DEADLINE_SECONDS)
        return code

    def stop(self) -> int:
        """End it as Ctrl-C does, and return its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def __enter__(self) -> RunningTool:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.wait()
