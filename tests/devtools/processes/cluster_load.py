"""A load by a librdkafka producer on several brokers, and its outcome: for the fault suites.

with ClusterLoad(bootstrap, topic, partition_count) as load:
    ...                             kill brokers meanwhile
report = load.read_back()           acknowledged, read, lost, repeated, out of order, and the longest gap
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Self

import attrs
import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import KafkaException, NewTopic

UNDER_WAY_MAX_COUNT = 500
PAUSE_SECONDS = 0.002
READ_SECONDS = 60.0
ASKED_SECONDS = 5.0  # one broker, of which another one may be asked after that
REFUSED_SECONDS = 0.1  # until a client is told anew who leads
QUIET = {"log_level": 0}
EPOCHS_TOLD = {"log_level": 7, "debug": "eos"}
# For how long a client waits for a broker that has a request and says nothing, as one that is suspended.
IMPATIENT = {"socket.timeout.ms": 3_000, "request.timeout.ms": 3_000}


@attrs.frozen(kw_only=True)
class LoadReport:
    """Outcome of a load.

    `new_epochs` are librdkafka's reasons for new epochs. It then resends all unanswered records with new sequences,
    which repeats those that a lost leader had stored.

    `gap_seconds` is the longest time without an acknowledgement for one partition, and `slowest_seconds` the longest
    from a record to its acknowledgement.
    """

    acknowledged_count: int
    read_count: int
    lost: list[str]
    repeated: list[str]
    reordered_count: int
    failures: list[str]
    new_epochs: list[str]
    gap_seconds: float
    slowest_seconds: float

    def __str__(self) -> str:
        return (
            f"{self.acknowledged_count} acknowledged, {self.read_count} read, {len(self.lost)} lost, "
            f"{len(self.repeated)} repeated, {self.reordered_count} out of order, {len(self.failures)} refused; "
            f"longest gap of a partition {self.gap_seconds:.2f} s, slowest answer {self.slowest_seconds:.2f} s"
        )

    @property
    def problems(self) -> list[str]:
        wrong = [("lost", self.lost), ("repeated", self.repeated), ("refused", self.failures)]
        wrong.append(("new epochs", self.new_epochs))
        return [f"{what}: {values[:5]}" for what, values in wrong if values] + ["order"] * bool(self.reordered_count)


@attrs.define(eq=False)
class ClusterLoad:
    """Sends small records to the partitions in turn, idempotently, until the block ends; then waits for answers."""

    bootstrap: str
    topic: str
    partition_count: int
    patience: Mapping[str, object] = attrs.field(factory=lambda: IMPATIENT, kw_only=True)
    _stopping: threading.Event = attrs.field(factory=threading.Event, init=False)
    _thread: threading.Thread = attrs.field(init=False)
    _acknowledged: set[str] = attrs.field(factory=set, init=False)
    _failures: list[str] = attrs.field(factory=list, init=False)
    _log: _EpochsLog = attrs.field(factory=lambda: _EpochsLog(), init=False)
    _times: defaultdict[int, list[float]] = attrs.field(factory=lambda: defaultdict(list), init=False)
    _slowest_seconds: float = attrs.field(default=0.0, init=False)

    def __enter__(self) -> Self:
        admin = AdminClient({**QUIET, "bootstrap.servers": self.bootstrap})
        created = admin.create_topics([NewTopic(self.topic, self.partition_count)])[self.topic]
        created.result(READ_SECONDS)
        self._thread = threading.Thread(target=self._produce, name="load", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def acknowledged_count(self) -> int:
        return len(self._acknowledged)

    def _produce(self) -> None:
        producer = confluent_kafka.Producer(
            {
                **QUIET,
                **self.patience,
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                **EPOCHS_TOLD,
            },
            logger=self._log,
        )
        number = 0
        while not self._stopping.is_set():
            if len(producer) < UNDER_WAY_MAX_COUNT:
                value, partition = str(number), number % self.partition_count
                producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
                number += 1
            producer.poll(0)
            time.sleep(PAUSE_SECONDS)
        producer.flush(READ_SECONDS)
        self._failures += ["no answer"] * len(producer)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        value, partition = (message.value() or b"").decode(), message.partition()
        assert partition is not None
        if error is not None:
            self._failures.append(f"{value}: {error}")
            return
        self._acknowledged.add(value)
        self._times[partition].append(time.monotonic())
        self._slowest_seconds = max(self._slowest_seconds, message.latency() or 0.0)

    def read_back(self) -> LoadReport:
        consumer = confluent_kafka.Consumer(
            {**QUIET, "bootstrap.servers": self.bootstrap, "group.id": "read-back", "enable.auto.commit": False}
        )
        partitions = [confluent_kafka.TopicPartition(self.topic, index, 0) for index in range(self.partition_count)]
        ends = [end_of(consumer, partition) for partition in partitions]
        consumer.assign(partitions)
        found: defaultdict[int, list[int]] = defaultdict(list)
        places: defaultdict[str, list[str]] = defaultdict(list)
        left_count, give_up_at = sum(ends), time.monotonic() + READ_SECONDS
        while left_count and time.monotonic() < give_up_at:
            for message in consumer.consume(1000, timeout=1.0):
                assert message.error() is None, message.error()
                partition = message.partition()
                assert partition is not None
                found[partition].append(int(message.value() or b""))
                places[(message.value() or b"").decode()].append(f"{partition}:{message.offset()}")
                left_count -= 1
        consumer.close()
        counts = Counter(str(value) for values in found.values() for value in values)
        gaps = [after - before for times in self._times.values() for before, after in pairwise(times)]
        return LoadReport(
            acknowledged_count=len(self._acknowledged),
            read_count=counts.total(),
            lost=sorted(self._acknowledged - counts.keys(), key=int),
            repeated=[f"{value} at {', '.join(places[value])}" for value, count in counts.items() if count > 1],
            reordered_count=sum(values != sorted(values) for values in found.values()),
            failures=self._failures,
            new_epochs=self._log.reasons,
            gap_seconds=max(gaps, default=0.0),
            slowest_seconds=self._slowest_seconds,
        )


class _EpochsLog(logging.Logger):
    """Takes librdkafka's log, and keeps the reasons for new epochs."""

    def __init__(self) -> None:
        super().__init__("load", logging.DEBUG)
        self.reasons: list[str] = []

    def handle(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "epoch bump" in text:
            self.reasons.append(text)


def end_of(consumer: confluent_kafka.Consumer, partition: confluent_kafka.TopicPartition) -> int:
    """Return the offset behind the last record, also of a partition that moves.

    librdkafka asks the leader that it knows, and learns of a new one only after a refusal.
    """
    give_up_at = time.monotonic() + READ_SECONDS
    while True:
        try:
            _, end = consumer.get_watermark_offsets(partition, timeout=READ_SECONDS)
        except KafkaException as exc:
            moved = exc.args[0].code() == confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION
            if not moved or time.monotonic() > give_up_at:
                raise
            time.sleep(REFUSED_SECONDS)
        else:
            return end


def leaders_of(admin: AdminClient, topic: str) -> set[int]:
    """Return the leaders of all partitions, -1 if some have none; nothing if the broker does not answer."""
    try:
        found = admin.list_topics(topic, timeout=ASKED_SECONDS)
    except KafkaException:
        return set()
    return {partition.leader for partition in found.topics[topic].partitions.values()}
