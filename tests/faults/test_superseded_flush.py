"""A broker that is suspended (SIGSTOP) while another one takes over its bucket, and then flushes what it had."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio

from kafscale.client.admin import NewTopic, create_topic
from kafscale.client.client import connect
from kafscale.client.consumer import Consumer
from kafscale.client.producer import Producer
from kafscale.config import Address
from kafscale.wire.records import Record
from tests.devtools.process import BrokerProcess

pytestmark = pytest.mark.faults

TOPIC = "orders"
DEADLINE_SECONDS = 30.0
OLDER, NEWER = [b"a3", b"a4"], [b"b3", b"b4", b"b5"]
SHARED = [b"a0", b"a1", b"a2"]
# As if it had been suspended again each time between its look at the claim and what it did then.
BLIND = (
    "import kafscale.cluster.controller.claim as claim; claim.WATCH_SECONDS = claim.LATELY_SECONDS = 1e9;"
    "from kafscale.cli.main import main; main()"
)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def create(address: Address) -> None:
    async with connect(address) as client:
        await create_topic(client, NewTopic(name=TOPIC, partition_count=1))


async def produce(address: Address, values: Sequence[bytes]) -> None:
    async with connect(address) as client:
        for value in values:
            await Producer(client=client, topic=TOPIC).send([Record(key=None, value=value, timestamp_ms=1)])


async def consume(address: Address, count: int) -> list[bytes | None]:
    async with connect(address) as client:
        consumer = Consumer(client=client, topic=TOPIC, positions={0: 0})
        found: list[bytes | None] = []
        while len(found) < count:
            found += [each.record.value for each in await consumer.poll()]
        return found


def test_a_suspended_brokers_late_flush_changes_nothing_for_its_successor(tmp_path: Path) -> None:
    """The older one does not look at the claim before it uploads: safety must not rest on that."""
    bucket = tmp_path / "bucket"
    options = ("--store", f"file:{bucket}", "--flush-interval", "500ms")

    def segments_count() -> int:
        return len(list(bucket.rglob("*.kfs")))

    older = BrokerProcess(directory=tmp_path / "older", options=options, program=("-c", BLIND))
    newer = BrokerProcess(directory=tmp_path / "newer", options=options)
    with older:
        trio.run(create, older.kafka)
        trio.run(produce, older.kafka, SHARED)
        wait_until(lambda: segments_count() > 0)
        older.stop()
        older.start()  # with all of this in the bucket
        before = segments_count()
        trio.run(produce, older.kafka, OLDER)
        older.suspend()
        assert segments_count() == before
        with newer:
            trio.run(produce, newer.kafka, NEWER)
            older.resume()
            wait_until(lambda: segments_count() >= before + 2)
            assert trio.run(consume, newer.kafka, 6) == [*SHARED, *NEWER]
            newer.restart(kill=True)
            assert trio.run(consume, newer.kafka, 6) == [*SHARED, *NEWER]
            assert newer.log.count("is not read: its broker wrote it after another one had taken over") == 1
    told = subprocess.run(
        [sys.executable, "-m", "kafscale", "verify", "--store", f"file:{bucket}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "nobody reads its offsets 3 to 4" in told.stdout


def test_a_suspended_broker_that_was_superseded_flushes_nothing_when_it_goes_on(tmp_path: Path) -> None:
    options = ("--store", f"file:{tmp_path / 'bucket'}", "--flush-interval", "500ms")
    older = BrokerProcess(directory=tmp_path / "older", options=options)
    newer = BrokerProcess(directory=tmp_path / "newer", options=options)
    with older:
        trio.run(create, older.kafka)
        older.restart()  # the topic is in a checkpoint
        trio.run(produce, older.kafka, OLDER)
        older.suspend()
        with newer:
            trio.run(produce, newer.kafka, NEWER)
            older.resume()
            wait_until(lambda: older.returncode is not None)
            assert older.returncode == 1
            assert "has been superseded" in older.log
            assert trio.run(consume, newer.kafka, 3) == NEWER
            keys = {path.name[29:39] for path in tmp_path.rglob("*.kfs")}
            assert len(keys) <= 1  # of the newer broker's epoch
