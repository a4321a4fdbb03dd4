"""A broker that is suspended (SIGSTOP) while another one takes over its bucket, and then goes on.

Which of its tasks goes on first is chance; tests/cluster/test_superseded_deletions.py chooses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from kafscale.client.admin import NewTopic, create_topic, delete_topic
from kafscale.client.client import connect
from kafscale.client.consumer import Consumer
from kafscale.client.producer import Producer
from kafscale.config import Address
from kafscale.wire.records import Record
from tests.devtools.process import BrokerProcess

TOPIC = "orders"
DEADLINE_SECONDS = 30.0
DELAY_MS = 2000  # from the answer to a deletion until the objects go


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def create(address: Address) -> None:
    async with connect(address) as client:
        configs = {"file.delete.delay.ms": str(DELAY_MS), "retention.ms": "-1"}
        await create_topic(client, NewTopic(name=TOPIC, partition_count=1, configs=configs))


async def delete(address: Address) -> None:
    async with connect(address) as client:
        await delete_topic(client, TOPIC)


async def produce(address: Address, value: bytes) -> None:
    async with connect(address) as client:
        await Producer(client=client, topic=TOPIC).send([Record(key=None, value=value, timestamp_ms=1)])


async def consume(address: Address) -> list[bytes | None]:
    async with connect(address) as client:
        consumer = Consumer(client=client, topic=TOPIC, positions={0: 0})
        found: list[bytes | None] = []
        while len(found) < 2:
            found += [each.record.value for each in await consumer.poll()]
        return found


@pytest.mark.faults
def test_a_suspended_broker_does_not_delete_the_segments_of_its_successors_topic(
    tmp_path: Path,
) -> None:
    """The deletion was acknowledged, and in no checkpoint yet, when the first broker was suspended."""
    bucket = tmp_path / "bucket"
    options = ("--store", f"file:{bucket}", "--flush-interval", "100ms")

    def segments_count() -> int:
        return len(list(bucket.rglob("*.kfs")))

    older = BrokerProcess(directory=tmp_path / "older", options=options)
    newer = BrokerProcess(directory=tmp_path / "newer", options=options)
    with older:
        trio.run(create, older.kafka)
        trio.run(produce, older.kafka, b"a")
        older.restart()  # the topic is in a checkpoint, and the record in a segment
        trio.run(delete, older.kafka)
        older.suspend()
        with newer:
            trio.run(produce, newer.kafka, b"b")
            wait_until(lambda: segments_count() == 2)
            older.resume()
            wait_until(lambda: older.returncode is not None)
            assert older.returncode == 1
            assert "has been superseded" in older.log
            assert segments_count() == 2
            assert trio.run(consume, newer.kafka) == [b"a", b"b"]
