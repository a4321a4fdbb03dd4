"""A compacted topic, as an unmodified client sees it: the last value of each key, also after a kill and a restart."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.devtools.external.clients import DEADLINE_SECONDS, poll_until
from tests.devtools.processes.process import BrokerProcess, broker_process

KEYS_COUNT = 50


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """One that flushes and compacts all the time."""
    with broker_process("--flush-interval", "50ms", "--compaction-check-interval", "50ms") as process:
        yield process


def create(broker: BrokerProcess, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    created = admin.create_topics([NewTopic(topic, 1, config={"cleanup.policy": "compact", **config})])
    created[topic].result(DEADLINE_SECONDS)


def produce_at_random(producer: Producer, topic: str, table: dict[bytes, bytes], seed: int) -> None:
    """Values, and now and then a tombstone, acknowledged in many small batches; `table` is what they come to."""
    random = Random(seed)
    for number in range(600):
        key = b"key-%d" % random.randrange(KEYS_COUNT)
        value = None if random.random() < 0.1 else b"%d of %d" % (number, seed)
        producer.produce(topic, key=key, value=value)
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
        if number % 60 == 59:
            assert producer.flush(DEADLINE_SECONDS) == 0


def consume_all(broker: BrokerProcess, topic: str) -> list[tuple[bytes, bytes | None]]:
    """From the first offset to the end of the partition."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "any", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    consumed: list[tuple[bytes, bytes | None]] = []
    try:
        while True:
            message = consumer.poll(DEADLINE_SECONDS)
            assert message is not None, "the end of the partition is never reached"
            if message.error() is None:
                consumed.append((message.key(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return consumed
    finally:
        consumer.close()


def table_of(consumed: list[tuple[bytes, bytes | None]]) -> dict[bytes, bytes]:
    last = dict(consumed)
    return {key: value for key, value in last.items() if value is not None}


def test_the_last_value_of_each_key_is_left_also_after_a_kill(broker):
    topic = "compacted"
    create(broker, topic, **{"min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"})
    table: dict[bytes, bytes] = {}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4", "enable.idempotence": True})
    produce_at_random(producer, topic, table, seed=1)

    def is_compacted() -> bool:
        consumed = consume_all(broker, topic)
        assert table_of(consumed) == table
        return len(consumed) <= KEYS_COUNT

    poll_until(is_compacted, lambda: None, what="the topic is compacted")
    broker.restart(kill=True)
    assert table_of(consume_all(broker, topic)) == table
    produce_at_random(producer, topic, table, seed=2)  # its sequence numbers go on
    poll_until(is_compacted, lambda: None, what="the topic is compacted again")


def test_a_keyless_record_to_a_compacted_topic_is_refused(broker):
    create(broker, "keyless")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    failures: list[KafkaError] = []
    producer.produce("keyless", b"a value", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert [error.code() for error in failures] == [KafkaError.INVALID_RECORD]


def test_an_unknown_policy_is_refused(broker):
    with pytest.raises(KafkaException):
        create(broker, "wrong", **{"cleanup.policy": "shrink"})
