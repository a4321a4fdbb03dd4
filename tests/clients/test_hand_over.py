"""Unmodified clients refresh their metadata on NOT_LEADER_OR_FOLLOWER, and go on when the partition is led again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from kafscale.broker import Broker
from kafscale.testing.background_broker import BackgroundBroker, running_broker
from tests.api.assignments import TwoBrokers, hand_over, take_over
from tests.devtools.external.clients import DEADLINE_SECONDS, poll_until
from tests.devtools.processes.cluster_load import end_of

TOPIC = "moves"
COUNT = 300
MOVES_COUNT = 3


class _Mover:
    """Closes the partition and opens it again, some times, while clients work."""

    def __init__(self, broker: BackgroundBroker) -> None:
        self.broker = broker
        self.moved_count = 0
        self._thread = threading.Thread(target=self._move)

    def _move(self) -> None:
        for epoch in range(50, 50 + MOVES_COUNT):
            time.sleep(0.3)
            self.broker._thread.call(hand_over, self._running(), TOPIC, 0)
            time.sleep(0.3)
            self.broker._thread.call(self._take_over, epoch)
            self.moved_count += 1

    async def _take_over(self, epoch: int) -> None:
        await take_over(self._running(), TOPIC, 0, epoch=epoch)

    def _running(self) -> Broker:
        return self.broker._running()

    def __enter__(self) -> _Mover:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()


@pytest.fixture
def broker() -> Iterator[BackgroundBroker]:
    with running_broker() as background:
        background.create_topic(TOPIC)
        background._thread.call(_believe, background._running())
        yield background


async def _believe(broker: Broker) -> None:
    TwoBrokers.of(broker).other_is_up = False  # or else clients connect to it


def numbers(broker: BackgroundBroker) -> list[int]:
    return [int(record.value or b"") for record in broker.records(TOPIC)]


def test_librdkafka_keeps_all_records_across_partition_moves(broker: BackgroundBroker) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1}
    )
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    failures: list[object] = []
    read: list[int] = []
    sent = 0

    def poll() -> None:
        message = consumer.poll(0.02)
        if message is not None and message.error() is None:
            read.append(int(message.value()))

    with _Mover(broker) as mover:
        while mover.moved_count < MOVES_COUNT or sent < COUNT:
            producer.produce(TOPIC, b"%d" % sent, on_delivery=lambda error, _: error and failures.append(error))
            sent += 1
            producer.poll(0)
            poll()
    assert producer.flush(DEADLINE_SECONDS) == 0
    poll_until(lambda: len(read) >= sent, poll, what=f"{sent} records are read")
    consumer.close()
    assert failures == []
    assert numbers(broker) == read == list(range(sent))


def test_librdkafka_gets_an_end_offset_during_partition_moves(broker: BackgroundBroker) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    with _Mover(broker) as mover:
        while mover.moved_count < MOVES_COUNT:
            assert end_of(consumer, confluent_kafka.TopicPartition(TOPIC, 0)) == 0
    consumer.close()


def test_kafka_python_keeps_all_records_across_partition_moves(broker: BackgroundBroker) -> None:
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", retries=100, retry_backoff_ms=50)
    consumer = kafka.KafkaConsumer(TOPIC, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    futures, read = [], []

    def poll() -> None:
        for messages in consumer.poll(timeout_ms=20).values():
            read.extend(int(message.value) for message in messages)

    with _Mover(broker) as mover:
        while mover.moved_count < MOVES_COUNT or len(futures) < COUNT:
            futures.append(producer.send(TOPIC, b"%d" % len(futures), partition=0))
            poll()
    producer.flush(DEADLINE_SECONDS)
    offsets = [future.get(DEADLINE_SECONDS).offset for future in futures]
    poll_until(lambda: len(read) >= len(futures), poll, what=f"{len(futures)} records are read")
    producer.close()
    consumer.close()
    assert sorted(offsets) == list(range(len(futures)))
    assert numbers(broker) == read == list(range(len(futures)))


def test_aiokafka_keeps_all_records_across_partition_moves(broker: BackgroundBroker) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    read: list[int] = []
    sent = 0

    async def run() -> None:
        nonlocal sent
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
        consumer = aiokafka.AIOKafkaConsumer(TOPIC, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
        await producer.start()
        await consumer.start()
        try:
            with _Mover(broker) as mover:
                while mover.moved_count < MOVES_COUNT or sent < COUNT:
                    await producer.send_and_wait(TOPIC, b"%d" % sent)
                    sent += 1
            while len(read) < sent:
                read.append(int((await asyncio.wait_for(consumer.getone(), DEADLINE_SECONDS)).value))
        finally:
            await producer.stop()
            await consumer.stop()

    asyncio.run(run())
    assert numbers(broker) == read == list(range(sent))
