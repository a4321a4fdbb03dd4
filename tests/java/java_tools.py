"""Kafka's own Java tools against a broker, and what they print."""

from __future__ import annotations

import atexit
import re
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from tests.devtools.external.tools import RUN_TIMEOUT_SECONDS, RunningTool
from tests.devtools.processes.process import interruptible

JVM_FLAGS = (
    "-XX:TieredStopAtLevel=1",  # a tool runs for a second: the second compiler would only compete with the broker
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
BROKER_LIST_TOOLS = ("ReplicaVerificationTool", "TransactionalMessageCopier")  # what they call the bootstrap servers
UNREACHABLE = "127.0.0.1:1"


@cache
def class_archive(class_path: str) -> Path:
    """Return an archive of the classes that a consumer loads, in the form that a JVM has them in memory.

    With it a tool takes 0.6 s of CPU until it has ended, and 1.0 s without. It is there until the tests end.
    """
    directory = TemporaryDirectory(prefix="kafscale-java-")
    atexit.register(directory.cleanup)
    archive = Path(directory.name) / "classes.jsa"
    consumer = ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", UNREACHABLE]
    command = ["java", *JVM_FLAGS, f"-XX:ArchiveClassesAtExit={archive}", "-cp", class_path, *consumer]
    until = ["--topic", "none", "--timeout-ms", "1"]
    subprocess.run([*command, *until], capture_output=True, timeout=RUN_TIMEOUT_SECONDS, check=True)
    return archive


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
        """Let a tool run that prints a line now and then."""
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
        elif tool in BROKER_LIST_TOOLS:
            connect = ["--broker-list", self.bootstrap]
        elif tool == "ClusterTool":  # whose commands each have an option of their own for it
            command, *others = arguments
            connect, arguments = [command, *connect], tuple(others)
        archive = f"-XX:SharedArchiveFile={class_archive(self.class_path)}"
        return ["java", *JVM_FLAGS, archive, "-cp", self.class_path, name, *connect, *arguments]


def table(text: str, first_column: str) -> list[dict[str, str]]:
    """Return the rows of the last table that a tool printed, by column."""
    lines = [re.split(r"\s{2,}|\t", line.strip()) for line in text.splitlines() if line.strip()]
    begin = max(index for index, line in enumerate(lines) if line[0].split()[0] == first_column)
    columns = " ".join(lines[begin]).split()
    return [dict(zip(columns, " ".join(line).split(), strict=False)) for line in lines[begin + 1 :]]
