"""A producer that sends at a steady rate to all partitions, and when each record was acknowledged."""

from __future__ import annotations

import os
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial

import attrs
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from bench.figures import percentile
from bench.points import TOPIC
from bench.runner import Runner

FLUSH_SECONDS = 60
TICK_SECONDS = 0.005
QUIET = {"log_level": 0}
NUMBER_BYTES = 8


@attrs.frozen(kw_only=True)
class SteadyLoad:
    """Idempotent producers of librdkafka with their defaults, but for `linger.ms`. Each has partitions of its own.

    A producer has five requests under way to a broker, each for one partition: with many partitions, records would wait
    for a producer that is alone.
    """

    bootstrap: str
    partitions: int
    records_per_second: int
    record_bytes: int
    seconds: float
    producers: int = 1


@attrs.frozen(kw_only=True)
class Acknowledged:
    """All records, in the order in which they were acknowledged. Times are of the machine's monotonic clock."""

    partitions: array[int]
    numbers: array[int]
    sent_at: array[float]
    done_at: array[float]
    failed: Sequence[str]
    cpu_seconds: float

    def longest(self, between: tuple[float, float]) -> Mapping[int, float]:
        """Return the longest seconds from sending to acknowledgement of each partition, for records sent then."""
        found: dict[int, float] = {}
        for index, sent_at, done_at in zip(self.partitions, self.sent_at, self.done_at, strict=True):
            if between[0] <= sent_at < between[1]:
                found[index] = max(found.get(index, 0.0), done_at - sent_at)
        return found

    def p99_ms(self, between: tuple[float, float]) -> float:
        """Return the 99th percentile of records sent then."""
        pairs = zip(self.sent_at, self.done_at, strict=True)
        return 1000 * percentile(sorted(done - sent for sent, done in pairs if between[0] <= sent < between[1]), 0.99)


def run_steady(load: SteadyLoad) -> Acknowledged:
    """Send for some seconds, and wait for requests under way."""
    options: dict[str, str | int | float | bool] = {
        **QUIET, "bootstrap.servers": load.bootstrap, "enable.idempotence": True, "linger.ms": 5,
        "socket.timeout.ms": 3000, "request.timeout.ms": 3000,
    }  # fmt: skip
    producers = [Producer(options) for _ in range(load.producers)]
    found = Acknowledged(
        partitions=array("i"), numbers=array("q"), sent_at=array("d"), done_at=array("d"), failed=[], cpu_seconds=0.0
    )
    failed: list[str] = []
    padding = os.urandom(load.record_bytes - NUMBER_BYTES)

    def told(number: int, sent_at: float, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(str(error))
            return
        found.partitions.append(number % load.partitions)
        found.numbers.append(number)
        found.sent_at.append(sent_at)
        found.done_at.append(time.monotonic())

    began, cpu_began, number = time.monotonic(), time.process_time(), 0
    while (now := time.monotonic()) < began + load.seconds:
        while number < (now - began) * load.records_per_second:
            value = number.to_bytes(NUMBER_BYTES, "big") + padding
            index = number % load.partitions
            producer = producers[index % load.producers]
            try:
                producer.produce(TOPIC, value, partition=index, on_delivery=partial(told, number, now))
            except BufferError:
                break  # what waits is as much as it takes: the clock goes on
            number += 1
        for producer in producers[1:]:
            producer.poll(0)
        producers[0].poll(TICK_SECONDS)
    for producer in producers:
        producer.flush(FLUSH_SECONDS)
    return attrs.evolve(found, failed=failed, cpu_seconds=time.process_time() - cpu_began)


def _be_there() -> None:
    """Do nothing, when the process has begun and has imported all that a load needs."""


@attrs.define(eq=False)
class Steadily:
    """A load under way in another process."""

    result: Acknowledged | None = None

    def done(self) -> Acknowledged:
        """Return what became of it, when the block has ended."""
        assert self.result is not None
        return self.result


@contextmanager
def steadily(load: SteadyLoad) -> Iterator[Steadily]:
    """Send in a process of its own while the block runs; ends with the load."""
    with closing(Runner()) as runner, ThreadPoolExecutor(1) as threads:
        runner.call(_be_there)
        running = Steadily()
        future = threads.submit(runner.call, run_steady, load)
        yield running
        running.result = future.result()


def read_back(load: SteadyLoad) -> Counter[int]:
    """Return how often each number is in the topic."""
    consumer = Consumer({
        **QUIET, "bootstrap.servers": load.bootstrap, "group.id": "reader", "enable.partition.eof": True,
        "enable.auto.commit": False,
    })  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, index, OFFSET_BEGINNING) for index in range(load.partitions)])
    found: Counter[int] = Counter()
    ended: set[int | None] = set()
    try:
        while len(ended) < load.partitions:
            message = consumer.poll(FLUSH_SECONDS)
            if message is None:
                raise RuntimeError(f"only {len(ended)} of {load.partitions} partitions could be read to their end")
            error, value = message.error(), message.value()
            if error is None and isinstance(value, bytes):
                found[int.from_bytes(value[:NUMBER_BYTES], "big")] += 1
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    finally:
        consumer.close()
    return found
