"""A load that never stops, by librdkafka's idempotent producer, and what became of it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

TOPIC = "orders"
PARTITIONS = 12
RECORDS_PER_SECOND = 500
QUIET = {"log_level": 2}


@attrs.define(eq=False)
class Load:
    """An idempotent producer that never stops, and what became of its records."""

    producer: Producer
    sent: dict[int, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    failed: list[str] = attrs.field(factory=list)
    seconds: list[float] = attrs.field(factory=list)
    _stopping: threading.Event = attrs.field(factory=threading.Event)

    def run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            partition, began = number % PARTITIONS, time.monotonic()

            def told(error: KafkaError | None, _message: Message, began: float = began) -> None:
                self.seconds.append(time.monotonic() - began)
                if error is not None:
                    self.failed.append(str(error))

            self.producer.produce(TOPIC, str(number).encode(), partition=partition, on_delivery=told)
            self.sent[partition].append(number)
            number += 1
            self.producer.poll(1 / RECORDS_PER_SECOND)
        assert self.producer.flush(60) == 0

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()


def leaders_of(admin: AdminClient) -> set[int]:
    """Return who leads any partition, -1 if nobody leads some."""
    return {each.leader for each in admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions.values()}


def read_all(bootstrap: str) -> dict[int, list[int]]:
    """Return the numbers in each partition, in order."""
    consumer = Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    found: dict[int, list[int]] = defaultdict(list)
    ended: set[int | None] = set()
    consumer.subscribe([TOPIC])
    try:
        while len(ended) < PARTITIONS:
            message = consumer.poll(60)
            assert message is not None
            error = message.error()
            if error is None:
                partition, value = message.partition(), message.value()
                assert partition is not None
                assert isinstance(value, bytes)
                found[partition].append(int(value))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
    finally:
        consumer.close()
    return found
