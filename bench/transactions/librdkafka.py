"""confluent-kafka as a load: what a Python program with librdkafka gets when it commits transactions."""

from __future__ import annotations

import logging
import math
import time
from array import array

import attrs
from confluent_kafka import Message, Producer

from bench.figures import Figures
from bench.points import TOPIC
from kafscale.config import Address

TIMEOUT_SECONDS = 60.0
POLLED_EVERY_COUNT = 1000


@attrs.frozen(kw_only=True)
class LibrdkafkaLoad:
    """Records of one size by a transactional producer with its defaults, but for `linger.ms`, to one topic.

    It commits when a transaction has had this time, or this number of records. counts_commits: whether a request is a
    transaction, whose latency is that of `commit_transaction`, and not a record.
    """

    address: Address
    record_bytes: int
    seconds: float
    commit_every_seconds: float = math.inf
    commit_every_records: float = math.inf
    linger_ms: float = 5.0  # librdkafka's default
    counts_commits: bool = False


def run_librdkafka(load: LibrdkafkaLoad) -> Figures:
    """Latencies are those of `commit_transaction`. Raises RuntimeError, KafkaException."""
    refusals = _Refusals()
    logger = logging.Logger("librdkafka")
    logger.addHandler(refusals)
    producer = Producer(
        {
            "bootstrap.servers": str(load.address),
            "transactional.id": "bench-librdkafka",
            "linger.ms": load.linger_ms,
            "debug": "eos",  # which tells of the coordinator's answers
        },
        logger=logger,
    )
    producer.init_transactions(TIMEOUT_SECONDS)
    run = _Run(load, producer)
    began, cpu_began = time.perf_counter(), time.process_time()
    while time.perf_counter() < began + load.seconds:
        run.transact()
    seconds = time.perf_counter() - began
    if run.reported_count != run.sent_count:
        raise RuntimeError(f"{run.sent_count - run.reported_count} of {run.sent_count} records were not acknowledged")
    figures = Figures.of(
        run.latencies,
        seconds=seconds,
        size_bytes=run.sent_count * load.record_bytes,
        client_cpu_seconds=time.process_time() - cpu_began,
    )
    requests = len(run.latencies) if load.counts_commits else run.sent_count
    return attrs.evolve(figures, requests=requests, concurrent_count=refusals.concurrent_count)


@attrs.define(eq=False)
class _Run:
    load: LibrdkafkaLoad
    producer: Producer
    latencies: array[float] = attrs.field(factory=lambda: array("d"), init=False)
    sent_count: int = 0
    reported_count: int = 0

    def transact(self) -> None:
        """One transaction, committed."""
        self.producer.begin_transaction()
        value = bytes(self.load.record_bytes)
        ends_at = time.perf_counter() + self.load.commit_every_seconds
        most = self.sent_count + self.load.commit_every_records
        while self.sent_count < most and (self.sent_count % 16 or time.perf_counter() < ends_at):
            try:
                self.producer.produce(TOPIC, value, on_delivery=self._report)
            except BufferError:
                self.producer.poll(0.01)
            else:
                self.sent_count += 1
                if self.sent_count % POLLED_EVERY_COUNT == 0:
                    self.producer.poll(0)
        began = time.perf_counter()
        self.producer.commit_transaction(TIMEOUT_SECONDS)
        self.latencies.append(time.perf_counter() - began)

    def _report(self, error: object, message: Message) -> None:
        if error is not None:
            raise RuntimeError(f"the broker refused a record: {error}")
        self.reported_count += 1


class _Refusals(logging.Handler):
    """Counts what librdkafka tells of coordinators that answer CONCURRENT_TRANSACTIONS, by its own words for it."""

    concurrent_count = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "CONCURRENT_TRANSACTIONS" in text or "concurrent transaction" in text:
            self.concurrent_count += 1
