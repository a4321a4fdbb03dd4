"""Transactions that append values to partitions, and readers of what is committed, by confluent-kafka: for the fault
suites. What they saw is a history that `tests.devtools.history.transaction_history` finds Jepsen's anomalies in.

with Appends(bootstrap, topic) as appends:
    ...                             kill brokers meanwhile
report = appends.read_back()
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator
from functools import partial
from random import Random
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self

import attrs
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.devtools.external.clients import read_committed
from tests.devtools.history.transaction_history import PROMISED, End, Placed, Poll, Send, Transaction, anomalies

ABORTED_SHARE = 0.2
PATIENCE_SECONDS = 120.0
# By default a client pauses for up to 10 s, whether or not a broker is there; and one that is suspended says nothing.
QUIET = {"reconnect.backoff.max.ms": 200, "socket.timeout.ms": 3_000, "log_level": 0}
PARTITION_COUNT = 6
VALUES_MAX_COUNT = 5  # of a transaction


@attrs.frozen(kw_only=True)
class AppendsReport:
    """Outcomes of the transactions, and violations found."""

    committed_count: int
    aborted_count: int
    unknown_count: int
    read_count: int
    longest_gap_seconds: float  # of one writer, between two transactions
    problems: list[str]


@attrs.define(eq=False)
class Appends:
    """Writers, each with a transactional id of its own, and readers of all partitions, for the block."""

    bootstrap: str
    topic: str
    writers_count: int = 3
    readers_count: int = 2
    stopping: Event = attrs.field(factory=Event, init=False)
    lock: Lock = attrs.field(factory=Lock, init=False)
    longest_gap_seconds: float = attrs.field(default=0.0, init=False)  # of one writer, between two transactions
    _threads: list[Thread] = attrs.field(factory=list, init=False)
    _history: list[Transaction] = attrs.field(factory=list, init=False)
    _problems: list[str] = attrs.field(factory=list, init=False)
    _ticks: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1), init=False)

    def __enter__(self) -> Self:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        admin.create_topics([NewTopic(self.topic, PARTITION_COUNT)])[self.topic].result(PATIENCE_SECONDS)
        jobs = [partial(self._write, number) for number in range(self.writers_count)]
        jobs += [partial(self._read, number) for number in range(self.readers_count)]
        self._threads = [Thread(target=job) for job in jobs]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()

    def read_back(self) -> AppendsReport:
        """Read what is committed once more, when all writers have ended, and judge."""
        final = [
            _placed(message)
            for messages in read_committed(self.bootstrap, self.topic, PARTITION_COUNT)
            for message in messages
        ]
        self._note(Transaction(name="final", process="final", operations=(Poll(tuple(final), next(self._ticks)),)))
        ends = [
            transaction.end
            for transaction in self._history
            if transaction.is_transactional and next(transaction.sends, None) is not None
        ]
        return AppendsReport(
            committed_count=ends.count(End.COMMITTED),
            aborted_count=ends.count(End.ABORTED),
            unknown_count=ends.count(End.UNKNOWN),
            read_count=len(final),
            longest_gap_seconds=self.longest_gap_seconds,
            problems=[
                *self._problems,
                *map(str, anomalies(self._history, PROMISED)),
                *self._half_read({placed.value for placed in final}),
            ],
        )

    def _half_read(self, read: Collection[str]) -> Iterator[str]:
        """Return transactions some of whose values are read, and others are not."""
        for transaction in self._history:
            found = [send.value in read for send in transaction.sends]
            if any(found) and not all(found):
                yield f"{transaction.name}: {sum(found)} of {len(found)} values are read"

    def _note(self, transaction: Transaction) -> None:
        with self.lock:
            self._history.append(transaction)

    # ---- writers ---------------------------------------------------------------------------------------------------

    def _write(self, number: int) -> None:
        """Write one transaction after the other until the end; a writer that gets no new producer ends."""
        transactional_id, random = f"appends-{number}", Random(number)
        producer, ended = None, time.monotonic()
        for count in itertools.count():
            if self.stopping.is_set():
                return
            try:
                producer = producer or self._open(transactional_id)
            except KafkaException as exc:
                self._problems.append(f"{transactional_id} can't go on: {exc}")
                return
            if not self._append(producer, f"{number}-{count}", number, random):
                producer = None
            now = time.monotonic()
            with self.lock:
                self.longest_gap_seconds = max(self.longest_gap_seconds, now - ended)
            ended = now

    def _open(self, transactional_id: str) -> Producer:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            config = {"bootstrap.servers": self.bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
            producer = Producer({**config, **QUIET})
            try:
                producer.init_transactions(PATIENCE_SECONDS)
                return producer
            except KafkaException:
                if time.monotonic() > deadline:
                    raise

    def _append(self, producer: Producer, name: str, number: int, random: Random) -> bool:
        """Write one transaction and note what has become of it; False if the producer can't go on."""
        offsets: dict[str, int] = {}

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                offsets[(message.value() or b"").decode()] = offset

        sent: list[tuple[int, str]] = []
        end, ending_at, is_usable = End.UNKNOWN, 0, True
        try:
            producer.begin_transaction()
            for index in range(random.randint(1, VALUES_MAX_COUNT)):
                sent.append((random.randrange(PARTITION_COUNT), f"{name}-{index}"))
                producer.produce(self.topic, sent[-1][1].encode(), partition=sent[-1][0], on_delivery=delivered)
            if random.random() < ABORTED_SHARE:
                producer.flush()
                producer.abort_transaction(PATIENCE_SECONDS)
                end = End.ABORTED
            else:
                ending_at = next(self._ticks)
                producer.commit_transaction(PATIENCE_SECONDS)
                end = End.COMMITTED
        except KafkaException as exc:
            is_usable = abort_failed(producer, exc)
            if is_usable:
                end = End.ABORTED
        sends = tuple(Send(str(partition), value, offsets.get(value)) for partition, value in sent)
        self._note(Transaction(name=name, process=f"writer-{number}", operations=sends, end=end, ending_at=ending_at))
        return is_usable

    # ---- readers ---------------------------------------------------------------------------------------------------

    def _read(self, number: int) -> None:
        """Poll all partitions from the start on, each poll a transaction by itself."""
        config = {"group.id": f"reader-{number}", "isolation.level": "read_committed", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "auto.offset.reset": "error", **config, **QUIET})
        consumer.assign([TopicPartition(self.topic, index, 0) for index in range(PARTITION_COUNT)])
        for count in itertools.count():
            if self.stopping.is_set():
                consumer.close()
                return
            messages = consumer.consume(100, timeout=0.2)
            at = next(self._ticks)
            errors = [
                str(error) for message in messages if (error := message.error()) is not None and error.code() >= 0
            ]
            self._problems += [f"reader {number}: {error_text}" for error_text in errors]
            records = tuple(_placed(message) for message in messages if message.error() is None)
            if records:
                poll = Poll(records, at)
                self._note(
                    Transaction(
                        name=f"poll-{number}-{count}",
                        process=f"reader-{number}",
                        operations=(poll,),
                        is_transactional=False,
                    )
                )


def _placed(message: Message) -> Placed:
    offset, value = message.offset(), message.value()
    assert offset is not None
    assert value is not None
    return Placed(str(message.partition()), offset, value.decode())


def abort_failed(producer: Producer, exc: KafkaException) -> bool:
    """Abort a transaction that has failed; False if the producer can't go on."""
    if not exc.args[0].txn_requires_abort():
        return False
    try:
        producer.abort_transaction(PATIENCE_SECONDS)
    except KafkaException:
        return False
    return True
