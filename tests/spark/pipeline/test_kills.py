"""The pipeline as a process, killed at random moments and started again: what is in the tables then, against what was
produced.

Killed are the whole driver with its JVM and workers (a power cut), the driver's Python alone, the JVM alone (which is
the executor too), and Python workers, whose tasks Spark tries again.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import attrs
import pytest

from kafscale.testing.spark import REPOSITORY

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(7200),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

KILL_COUNT = int(os.environ.get("KAFSCALE_TEST_KILLS", "30"))
SEED = int(os.environ.get("KAFSCALE_TEST_SEED", "1"))
KINDS = ("everything", "python", "jvm", "worker", "worker", "worker")
CHUNK_COUNT = 60
KEYS = [b"k%d" % number for number in range(10)]
SIGN_TIMEOUT_SECONDS = 600.0  # of life; a start takes seconds where nothing else is at work
MOMENT_SECONDS = 4.0  # within which the kill falls after a batch was planned

OPTIONS = (
    "--master=local[2, 4]",
    "--conf=spark.sql.shuffle.partitions=2",
    "--conf=spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # of a JVM that lives for seconds
)
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


@attrs.define(eq=False)
class Driver:
    """`kafscale pipeline run`, in a process group of its own."""

    pipeline: Path
    log: Path
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kafscale", "pipeline", "run", str(self.pipeline), *OPTIONS],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self, kind: str) -> bool:
        """Whether there was something of that kind."""
        if kind == "everything":
            self.end()
            return True
        victims = self._processes(kind)
        for pid in victims[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if kind == "python":
            self.process.wait()
            self._process = None  # its JVM may live on for a moment: what the lock is for
        elif kind == "jvm" and victims:
            self.process.wait(SIGN_TIMEOUT_SECONDS)
        return bool(victims)

    def end(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _processes(self, kind: str) -> list[int]:
        """Of one kind, in random order."""
        if kind == "python":
            return [self.process.pid]
        wanted = b"org.apache.spark" if kind == "jvm" else b"pyspark.daemon\0pyspark.worker"
        found = [pid for pid, command in group_of(self.process.pid) if wanted in command]
        random.shuffle(found)
        return found


def group_of(group: int) -> list[tuple[int, bytes]]:
    """Processes of a group, with their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if os.getpgid(int(entry.name)) == group:
                    found.append((int(entry.name), (entry / "cmdline").read_bytes()))
    return found


def planned(checkpoints: Path) -> set[Path]:
    """The batches that were planned so far."""
    return {path for path in checkpoints.glob("*/offsets/*") if path.name.isdecimal()}


def await_sign(driver: Driver, checkpoints: Path, before: set[Path]) -> None:
    """Until a batch is planned that was not before."""
    deadline = time.monotonic() + SIGN_TIMEOUT_SECONDS
    while planned(checkpoints) <= before:
        assert driver.is_running, f"it ended by itself:\n{driver.log.read_text()[-4000:]}"
        assert time.monotonic() < deadline, f"no batch was begun:\n{driver.log.read_text()[-4000:]}"
        time.sleep(0.02)


class Expected:
    """What was produced."""

    def __init__(self) -> None:
        self.good: set[tuple[int, int]] = set()
        self.bad: set[tuple[int, int]] = set()
        self.rows: dict[str, int] = {}
        self.ends = [0, 0]

    def chunk(self, dice: random.Random) -> list[tuple[int, bytes, bytes | None]]:
        """Records, of which some are tombstones and some are bad for both mappings."""
        records = []
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


def test_each_record_is_in_the_tables_once_whatever_is_killed_when(
    warehouse, broker, topic, produce, tmp_path, request
):
    from kafscale.testing.spark import store_of

    dice, expected, killed = random.Random(SEED), Expected(), []
    checkpoints, mappings = tmp_path / "checkpoints", MAPPINGS.replace("TOPIC", topic)
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(
        f'source: {{store: "{store_of(broker)}"}}\n'
        f'catalog: {{type: hadoop, warehouse: "{warehouse}"}}\n'
        f'checkpoints: "{checkpoints}"\ntrigger: 100ms\nmappings:{mappings}'
    )
    driver = Driver(pipeline, tmp_path / "driver.log")
    try:
        while len(killed) < KILL_COUNT:
            before = planned(checkpoints)
            produce(topic, expected.chunk(dice))
            if not driver.is_running:
                driver.end()
                driver.start()
            await_sign(driver, checkpoints, before)
            time.sleep(dice.random() * MOMENT_SECONDS)
            kind = dice.choice(KINDS)
            if driver.is_running and driver.kill(kind):
                killed.append(kind)
    finally:
        driver.end()
    lake = request.getfixturevalue("lake")
    lake.checkpoints = checkpoints
    lake.run(mappings.replace("max_records: 20", "max_records: 1000"))  # what is left, in few batches
    check(lake, topic, expected)
    print({kind: killed.count(kind) for kind in KINDS})


def check(lake, topic: str, expected: Expected) -> None:
    """The tables against what was produced, and their snapshots against each other."""
    assert lake.rows(f"db.{topic}", "partition, offset") == sorted(expected.good, key=repr)
    dead = lake.rows(f"db.{topic}_dead", "mapping, partition, offset")
    assert dead == sorted(((name, *place) for name in ("appended", "upserted") for place in expected.bad), key=repr)
    assert dict(lake.rows(f"db.{topic}_upserted", "id, n")) == expected.rows
    for table in (topic, f"{topic}_upserted"):
        batches = [int(each["kafscale.batch-id"]) for each in lake.summaries(f"db.{table}")]
        assert batches == list(range(len(batches)))
        ends = json.loads(lake.summaries(f"db.{table}")[-1]["kafscale.offsets"])
        assert ends == {topic: {str(partition): end for partition, end in enumerate(expected.ends)}}
