"""Exactly once: a consumer's records are worked on and its offsets committed in one transaction, by three clients."""

import asyncio
import contextlib
import gc
import threading
import time
import warnings
from contextlib import closing
from random import Random

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.devtools.external.clients import DEADLINE_SECONDS
from tests.devtools.processes.process import broker_process

with warnings.catch_warnings():  # it reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka import errors as kafka_errors

PARTITION_COUNT = 3
# librdkafka 2.16 forgets its brokers when none is up, and never sends TxnOffsetCommit to a group's coordinator whose
# handle it has remembered; unless it is told to keep them. It hangs so in `send_offsets_to_transaction`, past the
# timeout that this is given, with Apache Kafka 4.1.1 as well when that is killed and started again on the same port.
QUICK = {
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
}
BATCH_COUNT = 10  # inputs of one transaction


def faults(*values):
    return pytest.param(*values, marks=pytest.mark.faults)


def create(broker, *topics):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(each, PARTITION_COUNT) for each in topics]).values():
        future.result(DEADLINE_SECONDS)


def produce_inputs(broker, topic, count):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, **QUICK})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % PARTITION_COUNT)
    assert producer.flush(DEADLINE_SECONDS) == 0


def committed_outputs(broker, topic):
    """Return all values that a consumer of committed records gets."""
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "none", "isolation.level": "read_committed", **QUICK}
    values, ended, deadline = [], set(), time.monotonic() + DEADLINE_SECONDS
    with closing(Consumer({**config, "enable.partition.eof": True, "enable.auto.commit": False})) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITION_COUNT)])
        while len(ended) < PARTITION_COUNT:
            assert time.monotonic() < deadline
            message = consumer.poll(0.1)
            if message is not None and message.error() is not None:
                ended.add(message.partition())
            elif message is not None:
                values.append(message.value())
    return values


class Worker:
    """Copies records from one topic to another, a batch in each transaction.

    After an error it begins anew, and in the middle of a transaction when it is told to, as one that has crashed.
    """

    def __init__(self, broker, source, target):
        self.broker, self.source, self.target = broker, source, target
        self.stopped, self.crashes = threading.Event(), threading.Event()
        self.transactions = 0

    def run(self):
        while not self.stopped.is_set():
            self.crashes.clear()
            with contextlib.suppress(KafkaException), closing(self._consumer()) as consumer:
                self._work(consumer, self._producer())
            gc.collect()  # a producer is closed when nobody has it

    def _consumer(self):
        return Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": self.source,
                "group.instance.id": "worker",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                **QUICK,
            }
        )

    def _producer(self):
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "transactional.id": self.source, **QUICK})
        producer.init_transactions(DEADLINE_SECONDS)
        return producer

    def _work(self, consumer, producer):
        consumer.subscribe([self.source])
        while not self.stopped.is_set():
            messages = [each for each in consumer.consume(BATCH_COUNT, 0.2) if each.error() is None]
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce(self.target, message.value(), partition=int(message.value()) % PARTITION_COUNT)
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), DEADLINE_SECONDS)
            if self.crashes.is_set():
                return
            producer.commit_transaction(DEADLINE_SECONDS)
            self.transactions += 1


@pytest.mark.parametrize(
    ("durability", "kill_count"),
    [("wal", 1), faults("wal", 15), faults("s3-wal", 15), faults("segment", 15)],
)
def test_every_input_is_once_in_the_output_though_the_broker_is_killed(name, durability, kill_count):
    random, count = Random(durability), 300 * kill_count  # so that much is left to do at each kill
    with broker_process("--durability", durability) as broker:
        source, target = f"{name}-in", f"{name}-out"
        create(broker, source, target)
        produce_inputs(broker, source, count)
        worker = Worker(broker, source, target)
        working = threading.Thread(target=worker.run)
        working.start()
        try:
            for kill in range(kill_count):
                wanted, deadline = worker.transactions + random.randrange(1, 4), time.monotonic() + DEADLINE_SECONDS
                while worker.transactions < wanted and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(random.uniform(0.0, 0.05))
                broker.kill()
                if kill % 2 == 0:
                    worker.crashes.set()
                broker.start()
            deadline = time.monotonic() + 2 * DEADLINE_SECONDS
            while len(found := committed_outputs(broker, target)) < count and time.monotonic() < deadline:
                pass
        finally:
            worker.stopped.set()
            working.join()
        assert sorted(map(int, found)) == list(range(count))
        assert len(committed_outputs(broker, target)) == count
    assert not worker.crashes.is_set(), "it was not told to begin anew"


@pytest.mark.faults  # it waits half a minute, as kafka-python does
def test_kafka_python_commits_offsets_with_its_transaction_and_is_fenced(broker, name):
    create(broker, name)
    consumer = kafka.KafkaConsumer(
        name,
        bootstrap_servers=broker.bootstrap,
        group_id=name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )

    def transactional():
        producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name, retry_backoff_ms=20)
        producer.init_transactions()
        return producer

    with closing(consumer), closing(transactional()) as producer:
        partition = kafka.TopicPartition(name, 0)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(timeout_ms=50)
        for offset, ends in ((5, producer.commit_transaction), (9, producer.abort_transaction)):
            producer.begin_transaction()
            producer.send(name, b"%d" % offset, partition=0)
            offsets = {partition: kafka.OffsetAndMetadata(offset, "", -1)}
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            ends()
        assert consumer.committed(partition) == 5
        producer.begin_transaction()
        producer.send_offsets_to_transaction({partition: kafka.OffsetAndMetadata(7, "", -1)}, consumer.group_metadata())
        with closing(transactional()):
            assert consumer.committed(partition) == 5
            with pytest.raises(kafka_errors.KafkaError):
                producer.commit_transaction()
    gc.collect()


def test_aiokafka_commits_offsets_with_its_transaction(broker, name):
    create(broker, name)

    async def run():
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name, retry_backoff_ms=20)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id=name,
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        at = AioTopicPartition(name, 0)
        async with producer, consumer, asyncio.timeout(DEADLINE_SECONDS):
            consumer.assign([at])
            async with producer.transaction():
                await producer.send_and_wait(name, b"1", partition=0)
                await producer.send_offsets_to_transaction({at: 1}, name)
            assert await consumer.committed(at) == 1
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({at: 9}, name)
            await producer.abort_transaction()
            assert await consumer.committed(at) == 1

    asyncio.run(run())
