"""Transactional producers and consumers of committed records, of three clients, each as it is."""

import asyncio
import contextlib
import gc
import itertools
import threading
import time
import warnings
from contextlib import closing
from functools import wraps
from random import Random

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.devtools.external.clients import DEADLINE_SECONDS
from tests.devtools.processes.process import broker_process

with warnings.catch_warnings():  # it reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka import errors as kafka_errors

PARTITION_COUNT = 3
QUICK = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20}
MODES = pytest.mark.parametrize("durability", ["wal", "s3-wal", "segment"])


@pytest.fixture
def topic(broker, name):
    create(broker, name)
    return name


def create(broker, topic):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITION_COUNT)]).values():
        future.result(DEADLINE_SECONDS)


def confluent_producer(broker, transactional_id, **config):
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id, **QUICK, **config}
    )
    producer.init_transactions(DEADLINE_SECONDS)
    return producer


def write(producer, topic, value):
    """A value into every partition."""
    for partition in range(PARTITION_COUNT):
        producer.produce(topic, value, partition=partition)


def read(broker, topic, isolation_level="read_committed"):
    """Return the values of each partition, up to where a consumer of this level may read."""
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "none", "isolation.level": isolation_level, **QUICK}
    found = []
    with closing(Consumer({**config, "enable.partition.eof": True, "enable.auto.commit": False})) as consumer:
        for partition in range(PARTITION_COUNT):
            consumer.assign([TopicPartition(topic, partition, 0)])
            values, deadline = [], time.monotonic() + DEADLINE_SECONDS
            while True:
                assert time.monotonic() < deadline
                message = consumer.poll(0.1)
                if message is None:
                    continue
                if message.error() is not None:
                    break  # the end
                values.append(message.value())
            found.append(values)
    return found


def test_confluent_commits_and_aborts(broker, topic):
    producer = confluent_producer(broker, topic)
    for number in range(6):
        producer.begin_transaction()
        write(producer, topic, b"%d" % number)
        if number % 2:
            assert producer.flush(DEADLINE_SECONDS) == 0  # it would forget what it has not sent yet
            producer.abort_transaction(DEADLINE_SECONDS)
        else:
            producer.commit_transaction(DEADLINE_SECONDS)
    producer.begin_transaction()
    write(producer, topic, b"open")
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert read(broker, topic) == [[b"0", b"2", b"4"]] * PARTITION_COUNT
    everything = [*map(str.encode, "012345"), b"open"]
    assert read(broker, topic, "read_uncommitted") == [everything] * PARTITION_COUNT
    producer.abort_transaction(DEADLINE_SECONDS)


def test_confluent_fences_a_zombie(broker, topic):
    zombie = confluent_producer(broker, topic)
    zombie.begin_transaction()
    write(zombie, topic, b"zombie")
    assert zombie.flush(DEADLINE_SECONDS) == 0
    follower = confluent_producer(broker, topic)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(DEADLINE_SECONDS)
    assert caught.value.args[0].fatal()
    follower.begin_transaction()
    write(follower, topic, b"follower")
    follower.commit_transaction(DEADLINE_SECONDS)
    assert read(broker, topic) == [[b"follower"]] * PARTITION_COUNT


def test_kafka_python_commits_aborts_and_fences(broker, topic):
    def producer():
        made = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic, retry_backoff_ms=20)
        made.init_transactions()
        return made

    with closing(producer()) as zombie:
        for number in range(4):
            zombie.begin_transaction()
            for partition in range(PARTITION_COUNT):
                zombie.send(topic, b"%d" % number, partition=partition)
            if number % 2:
                zombie.flush(DEADLINE_SECONDS)
                zombie.abort_transaction()
            else:
                zombie.commit_transaction()
        zombie.begin_transaction()
        zombie.send(topic, b"zombie", partition=0).get(DEADLINE_SECONDS)
        with closing(producer()) as follower:
            follower.begin_transaction()
            follower.send(topic, b"follower", partition=0)
            follower.commit_transaction()
        with pytest.raises(kafka_errors.KafkaError):
            zombie.commit_transaction()
    partitions = [kafka.TopicPartition(topic, partition) for partition in range(PARTITION_COUNT)]
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    with closing(consumer):
        consumer.assign(partitions)
        found, deadline = {each: [] for each in partitions}, time.monotonic() + DEADLINE_SECONDS
        while sum(map(len, found.values())) < 7 and time.monotonic() < deadline:
            for partition, records in consumer.poll(timeout_ms=100).items():
                found[partition] += [record.value for record in records]
    assert list(found.values()) == [[b"0", b"2", b"follower"], [b"0", b"2"], [b"0", b"2"]]
    gc.collect()


def on_asyncio(test):
    """Run a coroutine test by asyncio: pytest runs them all by trio otherwise."""

    @wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


@on_asyncio
async def test_aiokafka_commits_aborts_and_fences(broker, topic):
    def producer():
        return AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic, retry_backoff_ms=20)

    async with producer() as zombie:
        for number in range(3):
            async with zombie.transaction():
                for partition in range(PARTITION_COUNT):
                    await zombie.send_and_wait(topic, b"%d" % number, partition=partition)
            with contextlib.suppress(ZeroDivisionError):
                async with zombie.transaction():
                    await zombie.send_and_wait(topic, b"aborted", partition=0)
                    raise ZeroDivisionError
        await zombie.begin_transaction()
        await zombie.send_and_wait(topic, b"zombie", partition=0)
        async with producer() as follower, follower.transaction():
            await follower.send_and_wait(topic, b"follower", partition=0)
        with pytest.raises(AioKafkaError):
            await zombie.commit_transaction()
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    found = [[] for _ in range(PARTITION_COUNT)]
    async with consumer, asyncio.timeout(DEADLINE_SECONDS):
        while sum(map(len, found)) < 10:
            message = await consumer.getone()
            found[message.partition].append(message.value)
    assert found == [[b"0", b"1", b"2", b"follower"], [b"0", b"1", b"2"], [b"0", b"1", b"2"]]


def commit(producer, killed):
    """Commit, however long it takes, unless the broker was killed. Raises KafkaException."""
    while True:
        try:
            return producer.commit_transaction(0.5)
        except KafkaException as exc:
            if killed.is_set() or not exc.args[0].retriable():
                raise


def commit_until_killed(broker, topic, turn, random):
    """Write transactions until the broker is killed in the middle of one. Returns the values that were committed."""
    producer = confluent_producer(broker, topic, **{"transaction.timeout.ms": 60_000})
    told, killed, last = set(), threading.Event(), random.randrange(1, 4)

    def kill():
        killed.set()
        broker.kill()

    killer = threading.Timer(random.uniform(0.0, 0.05), kill)
    for number in itertools.count():
        value = b"%d-%d" % (turn, number)
        if number == last:
            killer.start()
        try:
            producer.begin_transaction()
            write(producer, topic, value)
            commit(producer, killed)
        except KafkaException:
            break
        told.add(value)
    killer.join()
    return told


@pytest.mark.faults
@MODES
def test_kills_in_the_middle_leave_all_or_nothing(name, durability):
    """Kill the broker at any moment of a transaction; what was told to be committed is, and nothing is in part."""
    random, told = Random(durability), set()
    with broker_process("--durability", durability) as broker:
        create(broker, name)
        for turn in range(10):
            told |= commit_until_killed(broker, name, turn, random)
            broker.start()
        confluent_producer(broker, name)  # ends what was left open
        found = read(broker, name)
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == len(found[0])
    assert told <= set(found[0])
    assert len(told) >= 10
