"""The page on backups can be followed: its commands are run as they are written while a producer sends records.

Directories stand for the places of the page. What was acknowledged before a copy began is there
after the restore, once and at its offset, and no new record gets an offset of these.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.devtools.external.s3_processes import free_port
from tests.docs.blocks import blocks_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "back-up-and-restore.md").read_text()
SECTIONS = {
    part.partition("\n")[0]: [text for language, text in blocks_of(part) if language] for part in PAGE.split("\n## ")
}
PARTITION_COUNT = 4
LEAST_COUNT = 500  # acknowledged records before a copy
PADDING = "x" * 1000
PAUSE_SECONDS = 0.001
UNDER_WAY_COUNT = 200
TIMEOUT_SECONDS = 240.0
# So that segments are flushed, merged and deleted, and log files used again, while the copy is made.
BUSY = {
    "KAFSCALE_FLUSH_INTERVAL": "1s",
    "KAFSCALE_FLUSH_OBJECTS_PER_MINUTE": "10000",
    "KAFSCALE_WAL_SEGMENT_BYTES": "1MiB",
    "KAFSCALE_SEGMENT_MERGE_BYTES": "1MiB",
    "KAFSCALE_CONSOLE": "none",
}


@attrs.frozen
class Acknowledged:
    partition: int
    offset: int
    key: str


@attrs.define(eq=False)
class Load:
    """Sends records until the block ends, and notes the acknowledged ones."""

    bootstrap: str
    acknowledged: list[Acknowledged] = attrs.field(factory=list, init=False)
    failures: list[str] = attrs.field(factory=list, init=False)
    _stopping: threading.Event = attrs.field(factory=threading.Event, init=False)
    _thread: threading.Thread = attrs.field(init=False)

    def __enter__(self) -> Load:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic("orders", PARTITION_COUNT)])["orders"].result(60)
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def wait(self, count: int) -> None:
        """Wait until this number of further records is acknowledged."""
        wanted, until = len(self.acknowledged) + count, time.monotonic() + TIMEOUT_SECONDS
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < until, f"{len(self.acknowledged)} of {wanted} acknowledged; {self.failures[:3]}"
            time.sleep(0.05)

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 2})
        number = 0
        while not self._stopping.is_set():
            if len(producer) < UNDER_WAY_COUNT:
                partition = number % PARTITION_COUNT
                producer.produce("orders", PADDING, str(number), partition, on_delivery=self._delivered)
                number += 1
            producer.poll(0)
            time.sleep(PAUSE_SECONDS)
        producer.flush(60)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append(Acknowledged(message.partition(), message.offset(), message.key().decode()))
        else:
            self.failures.append(str(error))


@attrs.define(eq=False)
class Place:
    """Runs the page's commands. `places` is what stands for a place of it."""

    directory: Path
    environ: dict[str, str]
    places: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def of(cls, directory: Path, more: Mapping[str, str], places: Mapping[str, str]) -> Place:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("KAFSCALE_", "AWS_"))}
        kafka, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
        addresses = {"KAFSCALE_LISTEN": kafka, "KAFSCALE_ADMIN_LISTEN": admin, "KAFSCALE_BOOTSTRAP": kafka}
        programs = os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])
        return cls(directory, {**environ, **addresses, **BUSY, **more, "PATH": programs}, places)

    @property
    def bootstrap(self) -> str:
        return self.environ["KAFSCALE_BOOTSTRAP"]

    def here(self, text: str) -> str:
        for written, place in self.places.items():
            text = text.replace(written, place)
        return text

    def run(self, script: str, **more: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.here(script)],
            cwd=self.directory,
            env={**self.environ, **more},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    @contextmanager
    def serving(self, command: str) -> Iterator[subprocess.Popen[str]]:
        """Run a broker by its command; it is killed at the end."""
        log = self.directory / "serve.log"
        with log.open("ab") as written:
            process = subprocess.Popen(
                shlex.split(self.here(command)),
                cwd=self.directory,
                env=self.environ,
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
            )
        with process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("kafscale is ready"), log.read_text()[-3000:]
                yield process
            finally:
                process.kill()


def check(bootstrap: str, before: list[Acknowledged]) -> None:
    """Check a restored broker: it has all these records, and gives none of their offsets to new ones."""
    assert len(before) >= LEAST_COUNT
    found: dict[str, list[Acknowledged]] = {}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "enable.partition.eof": True})
    for partition in range(PARTITION_COUNT):
        consumer.assign([TopicPartition("orders", partition, 0)])
        while (message := consumer.poll(60)) is not None and message.error() is None:
            key = message.key().decode()
            found.setdefault(key, []).append(Acknowledged(partition, message.offset(), key))
        assert message is not None
        assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
    consumer.close()
    assert [each for each in before if found.get(each.key) != [each]] == []
    assert [key for key, places in found.items() if len(places) > 1] == []
    new: list[tuple[int, int]] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(10 * PARTITION_COUNT):
        note = lambda error, message: new.append((message.partition(), message.offset()))  # noqa: E731
        producer.produce("orders", "new", f"new {number}", number % PARTITION_COUNT, on_delivery=note)
    assert producer.flush(60) == 0
    taken = {(each.partition, each.offset) for places in found.values() for each in places}
    assert len({*new} - taken) == 10 * PARTITION_COUNT
    print(f"{len(before)} acknowledged before the copy, {len(found)} records after the restore")


def commit_group(bootstrap: str, before: list[Acknowledged]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
    ends = {each.partition: each.offset + 1 for each in before}
    consumer.commit(offsets=[TopicPartition("orders", *end) for end in ends.items()], asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("restart", ["after a stop of the copy", "from the copy"])
def test_a_copy_of_a_stopped_process_has_what_was_acknowledged_before_it(restart: str, tmp_path: Path) -> None:
    copy, reset = SECTIONS["Copy a data directory"]
    (tmp_path / "backup").mkdir()
    places = {"/var/lib": str(tmp_path), "/backup": str(tmp_path / "backup")}
    place = Place.of(tmp_path, {}, places)
    serve = "kafscale serve --data-dir /var/lib/kafscale"
    with place.serving(serve) as process, Load(place.bootstrap) as load:
        load.wait(3 * LEAST_COUNT)
        before = [*load.acknowledged]
        commit_group(place.bootstrap, before)
        place.run(copy, BROKER=str(process.pid))
        load.wait(3 * LEAST_COUNT)
        assert load.failures == []
        if restart != "from the copy":
            before = [*load.acknowledged]
    if restart == "from the copy":
        shutil.rmtree(tmp_path / "kafscale")
        (tmp_path / "backup" / "kafscale").rename(tmp_path / "kafscale")
    with place.serving(serve):
        assert "orders" in place.run(reset)
        check(place.bootstrap, before)
    assert "not whole" not in (tmp_path / "serve.log").read_text()
    place.run("kafscale verify --data-dir /var/lib/kafscale")
