"""A broker whose disk somebody fills to the last byte: a real file system, a real process, librdkafka as the client.

Where a small file system can't be mounted, `tests/api/produce/test_full_disk.py` and
`tests/log/wal/test_local_files.py` say the same.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.devtools.external.clients import DEADLINE_SECONDS, wait_until
from tests.devtools.processes.process import BrokerProcess, broker_process

SIZE = "64m"
FILE_OPTIONS = ("--wal-segment-bytes", "4MiB")
COMMITS_MAX_COUNT = 400  # each for another group, a page each: files of the log that flushes free are used again


@attrs.frozen
class SmallDisk:
    """A file system, and a file that fills it."""

    directory: Path

    @property
    def filler(self) -> Path:
        return self.directory / "filler"

    def fill(self) -> None:
        """Leave no byte."""
        descriptor = os.open(self.filler, os.O_RDWR | os.O_CREAT)
        try:
            while True:
                found = os.statvfs(self.directory)
                if not found.f_bavail:
                    return
                os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, found.f_bavail * found.f_frsize)
        finally:
            os.close(descriptor)

    def empty(self) -> None:
        self.filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(directory)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount to make a small file system with")
    if mounted.returncode:
        pytest.skip(f"a small file system can't be mounted here, which takes root: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


ANOTHER = pytest.param("the store on another disk", marks=pytest.mark.faults)  # half a minute each


@pytest.fixture(params=[ANOTHER, "the store on the same disk"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, disk: SmallDisk) -> Iterator[BrokerProcess]:
    store = () if "same" in request.param else ("--store", f"file://{tmp_path / 'store'}")
    with broker_process(*FILE_OPTIONS, *store, directory=disk.directory / "broker") as running:
        yield running


def create(broker: BrokerProcess, name: str) -> KafkaError | None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    try:
        admin.create_topics([NewTopic(name, 1)])[name].result(2 * DEADLINE_SECONDS)
    except KafkaException as exc:
        return exc.args[0]
    return None


def produce(broker: BrokerProcess, value: str) -> None:
    failures: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("t", value, on_delivery=lambda error, _: error and failures.append(error))
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert not failures


def commit(broker: BrokerProcess, group: str, offset: int) -> KafkaError | None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    except KafkaException as exc:
        return exc.args[0]
    finally:
        consumer.close()
    return None


def committed(broker: BrokerProcess, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition("t", 0)], timeout=DEADLINE_SECONDS)
    consumer.close()
    return found.offset


def values(broker: BrokerProcess, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    found = consumer.consume(count, timeout=DEADLINE_SECONDS)
    consumer.close()
    return [message.value().decode() for message in found]


@pytest.mark.timeout(300)  # several brokers ask a bucket that is full for half a minute
def test_a_full_disk_ends_no_broker_and_loses_nothing(broker: BrokerProcess, disk: SmallDisk) -> None:
    """An offset commit ended it, and then it could not start, and advised to remove the metadata."""
    assert create(broker, "t") is None
    for value in "abc":
        produce(broker, value)
    assert commit(broker, "before", 2) is None
    disk.fill()

    groups: list[str] = []
    for number in range(COMMITS_MAX_COUNT):
        refused = commit(broker, f"group-{number}", number)
        if refused is not None:
            break
        groups.append(f"group-{number}")
    assert refused is None or refused.code() == KafkaError.COORDINATOR_NOT_AVAILABLE
    too_many = create(broker, "u")
    if len(broker.broker_ids) == 1:  # what several share is in the bucket, which may have room
        assert too_many is not None
        assert too_many.code() == KafkaError.KAFKA_STORAGE_ERROR
        assert "free some space" in too_many.str()
    assert values(broker, 3) == [*"abc"]
    assert broker.returncode is None

    for _ in range(2):
        broker.kill()
        disk.fill()
        broker.start()
        assert values(broker, 3) == [*"abc"]
        assert committed(broker, "before") == 2
        assert [committed(broker, group) for group in groups[-3:]] == [*range(len(groups))][-3:]

    disk.empty()
    produce(broker, "d")
    assert commit(broker, "after", 4) is None
    wait_until(lambda: create(broker, "v") is None, "each broker to have noticed that there is room")
    broker.restart(kill=True)
    assert values(broker, 4) == [*"abcd"]
    assert (committed(broker, "before"), committed(broker, "after")) == (2, 4)
    assert broker.stop() == 0
    assert "remove" not in broker.log
