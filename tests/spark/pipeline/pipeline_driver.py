"""`kafscale pipeline` as a process, to be killed and started again, and what its tables must have in the end.

Two mappings of one topic, into a table that grows and one that is kept by key, with bad records for both. Blocking.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import attrs

from tests.devtools.external.spark import environ_of

LOCAL_OPTIONS = (
    "--master=local[2, 4]",
    "--conf=spark.sql.shuffle.partitions=2",
    # To compile what is done to 20 records takes longer than to do it.
    "--conf=spark.sql.codegen.wholeStage=false",
    "--conf=spark.sql.codegen.factoryMode=NO_CODEGEN",
    "--conf=spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # of a JVM that lives for seconds
)
SIGN_TIMEOUT_SECONDS = 600.0  # a start takes seconds where nothing else is at work
POLL_SECONDS = 0.02
COMMANDS = {"jvm": b"org.apache.spark", "worker": b"pyspark.daemon\0pyspark.worker"}
CHUNK_COUNT = 60
KEYS = [b"k%d" % number for number in range(10)]
MAPPINGS = """
- topic: TOPIC
  table: db.TOPIC
  name: appended
  max_records: 20
  dead_letters: db.TOPIC_dead
  metadata: [partition, offset]
  value: {format: string}
- topic: TOPIC
  table: db.TOPIC_upserted
  name: upserted
  max_records: 20
  mode: upsert
  key: {format: string, column: id}
  metadata: [offset]
  dead_letters: db.TOPIC_dead
  value: {format: json, columns: [{name: n, type: int, required: true}]}
"""


def pipeline_command(*arguments: str | Path, options: Sequence[str] = LOCAL_OPTIONS) -> list[str]:
    """`kafscale pipeline …` for Popen."""
    return [sys.executable, "-m", "kafscale", "pipeline", *map(str, arguments), *options]


@attrs.define(eq=False)
class PipelineDriver:
    """`kafscale pipeline run`, in a process group of its own: its JVM and its local workers are in it."""

    log: Path
    options: Sequence[str] = LOCAL_OPTIONS
    pipeline: Path | None = None  # that it was started with last
    _process: subprocess.Popen[bytes] | None = None

    def start(self, pipeline: Path) -> None:
        """Waits for nothing."""
        self.pipeline = pipeline
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                pipeline_command("run", pipeline, options=self.options),
                env=environ_of(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Tell whether its Python is alive."""
        return self._process is not None and self._process.poll() is None

    def await_(self, what: Callable[[], bool], poll_seconds: float = POLL_SECONDS) -> None:
        """Look again and again whether it is so. Raises AssertionError when the driver has ended, or it takes long."""
        deadline = time.monotonic() + SIGN_TIMEOUT_SECONDS
        while not what():
            if not self.is_running or time.monotonic() > deadline:
                raise AssertionError(f"the driver has ended, or does not go on:\n{self.log.read_text()[-4000:]}")
            time.sleep(poll_seconds)

    def kill(self, victim: str) -> bool:
        """SIGKILL to `everything`, its `python`, its `jvm` or a `worker`. Whether there was one."""
        assert self._process is not None
        if victim == "everything":
            self.end()
            return True
        found = [self._process.pid] if victim == "python" else self._found(COMMANDS[victim])
        if victim == "jvm":  # not what it forks, nor Spark's launcher: they look the same for an instant
            found = [pid for pid in found if parent_of(pid) == self._process.pid]
        if not found:
            return False
        with suppress(ProcessLookupError):
            os.kill(random.choice(found), signal.SIGKILL)
        if victim != "worker":
            self._process.wait(SIGN_TIMEOUT_SECONDS)  # without its JVM it ends by itself
        return True

    def _found(self, command: bytes) -> list[int]:
        assert self._process is not None
        return [pid for pid, found in group_of(self._process.pid) if command in found]

    def end(self) -> None:
        """Kill all that there is of it, as a power cut does."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + SIGN_TIMEOUT_SECONDS
        while any(command for _, command in group_of(self._process.pid)) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self._process = None


def group_of(group: int) -> list[tuple[int, bytes]]:
    """Processes of a group, with their command lines; that of one which has ended is empty."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if os.getpgid(int(entry.name)) == group:
                    found.append((int(entry.name), (entry / "cmdline").read_bytes()))
    return found


def parent_of(process: int) -> int | None:
    """Return which process has started it; None if it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def batches_in(checkpoints: Path, folder: str) -> set[Path]:
    """`offsets` has the batches that were planned so far, `commits` those that are done."""
    return {path for path in checkpoints.glob(f"*/{folder}/*") if path.name.isdecimal()}


class Expected:
    """Produced records, and the rows that tables must have."""

    def __init__(self) -> None:
        self.good: set[tuple[int, int]] = set()
        self.bad: set[tuple[int, int]] = set()
        self.rows: dict[str, int] = {}
        self.ends = [0, 0]

    def chunk(self, dice: random.Random) -> list[tuple[int, bytes, bytes | None]]:
        """Records of partition, key and value, of which some are tombstones and some are bad for both mappings."""
        records: list[tuple[int, bytes, bytes | None]] = []
        for _ in range(CHUNK_COUNT):
            number = dice.randrange(len(KEYS))
            partition, offset = number % 2, self.ends[number % 2]
            self.ends[partition] += 1
            n, kind = dice.randrange(1000), dice.random()
            if kind < 0.1:
                records.append((partition, KEYS[number], b"\xff"))
                self.bad.add((partition, offset))
                continue
            self.good.add((partition, offset))
            if kind < 0.3:
                records.append((partition, KEYS[number], None))
                self.rows.pop(KEYS[number].decode(), None)
            else:
                records.append((partition, KEYS[number], json.dumps({"n": n}).encode()))
                self.rows[KEYS[number].decode()] = n
        return records
