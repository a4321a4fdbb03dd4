"""Every form of compression that the broker takes is read by every client of Python; `tests/java` has Java's."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.api.produce.foreign_frames import TAKEN, VALUES, foreign_batches
from tests.devtools.external.clients import DEADLINE_SECONDS
from tests.devtools.processes.process import BrokerProcess, broker_process
from tests.process.raw_produce import error_codes_of

with warnings.catch_warnings():  # it reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer
    from kafka import TopicPartition as PythonTopicPartition

TOPIC = "foreign"
READABLE = [form for form in foreign_batches() if form.foreign.expected == TAKEN]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with broker_process() as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(DEADLINE_SECONDS)
        codes = error_codes_of(running.kafka, TOPIC, [form.batch for form in READABLE], same=True)
        assert codes == [TAKEN] * len(READABLE)
        yield running


def by_librdkafka(bootstrap: str, count: int) -> Sequence[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "any", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            values.append(message.value())
    consumer.close()
    return values


def by_kafka_python(bootstrap: str, count: int) -> Sequence[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    partition = PythonTopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(values) < count and time.monotonic() < deadline:
        values += [message.value for each in consumer.poll(500).values() for message in each]
    consumer.close()
    return values


def by_aiokafka(bootstrap: str, count: int) -> Sequence[bytes]:
    async def read() -> Sequence[bytes]:
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
            partition = AioTopicPartition(TOPIC, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            async with asyncio.timeout(DEADLINE_SECONDS):
                return [(await consumer.getone()).value for _ in range(count)]

    return asyncio.run(read())


@pytest.mark.parametrize("read", [by_librdkafka, by_kafka_python, by_aiokafka], ids=lambda read: read.__name__)
def test_clients_read_all_frames_that_the_broker_takes(
    broker: BrokerProcess, read: Callable[[str, int], Sequence[bytes]]
) -> None:
    assert len(READABLE) > 30
    assert tuple(read(broker.bootstrap, len(VALUES) * len(READABLE))) == VALUES * len(READABLE)
