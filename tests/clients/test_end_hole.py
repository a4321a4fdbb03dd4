"""The last segment of a partition has gone from the bucket: unmodified clients come to the end, without an error."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator

import aiokafka
import pytest
import trio
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from kafscale.client.client import connect
from kafscale.client.consumer import Consumer as OwnConsumer
from kafscale.config import Settings
from kafscale.login.security import client_security
from tests.devtools.external.clients import DEADLINE_SECONDS, wait_until
from tests.devtools.processes.process import BrokerProcess, broker_process

with warnings.catch_warnings():  # it reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

TOPIC = "cut-off"
END_OFFSET = 6
LEFT = [b"0", b"1", b"2"]
FILE_BYTES = Settings().wal_segment_bytes  # a start cuts a file of the log that it replays to its entries


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """A broker whose second segment of two, with three records each, is gone from the bucket and from its log."""
    with broker_process() as process:
        for values in (LEFT, [b"3", b"4", b"5"]):
            producer = Producer({"bootstrap.servers": process.bootstrap})
            for value in values:
                producer.produce(TOPIC, value, partition=0)
            assert producer.flush(DEADLINE_SECONDS) == 0
            process.restart()  # which flushes, and writes a checkpoint of the manifests
        wait_until(
            lambda: all(path.stat().st_size == FILE_BYTES for path in process.data_dir.glob("wal/*.log")),
            "no flushed file of the log",
        )
        process.stop()
        lost = list(process.data_dir.rglob("segment-00000000000000000003-*"))
        assert len(lost) == 2
        for path in lost:
            path.unlink()
        process.start()
        assert "offsets 3 to 5 of partition 0 of topic cut-off are missing" in process.log
        yield process


def test_librdkafka_comes_to_the_end(broker):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    values = []
    try:
        while True:
            message = consumer.poll(DEADLINE_SECONDS)
            assert message is not None, "the end of the partition is never reached"
            if message.error() is not None:
                break
            values.append(message.value())
    finally:
        consumer.close()
    assert message.error().code() == KafkaError._PARTITION_EOF
    assert (values, message.offset()) == (LEFT, END_OFFSET)


def test_kafka_python_comes_to_the_end(broker):
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap)
    partition = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    assert consumer.end_offsets([partition]) == {partition: END_OFFSET}
    values = []
    for _ in range(100):
        values += [each.value for found in consumer.poll(100).values() for each in found]
        if consumer.position(partition) == END_OFFSET:
            break
    position = consumer.position(partition)
    consumer.close()
    assert (values, position) == (LEFT, END_OFFSET)


def test_aiokafka_comes_to_the_end(broker):
    async def consume() -> tuple[list[bytes], int]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap)
        partition = aiokafka.TopicPartition(TOPIC, 0)
        await consumer.start()
        try:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            values = []
            for _ in range(100):
                values += [each.value for found in (await consumer.getmany(timeout_ms=100)).values() for each in found]
                if await consumer.position(partition) == END_OFFSET:
                    break
            return values, await consumer.position(partition)
        finally:
            await consumer.stop()

    assert asyncio.run(consume()) == (LEFT, END_OFFSET)


def test_the_own_client_comes_to_the_end(broker):
    async def consume() -> tuple[list[bytes | None], int]:
        async with connect(broker.kafka, security=client_security(broker.client_settings)) as client:
            consumer = OwnConsumer(client=client, topic=TOPIC, positions={0: 0})
            values: list[bytes | None] = []
            with trio.fail_after(DEADLINE_SECONDS):
                while consumer.positions[0] < END_OFFSET:
                    values += [each.record.value for each in await consumer.poll()]
            return values, consumer.positions[0]

    assert trio.run(consume) == (LEFT, END_OFFSET)
