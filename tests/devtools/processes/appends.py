"""Transactions that append values to partitions, and readers of what is committed, by confluent-kafka: for the fault
suites. What they saw is a history that `tests.devtools.history.transaction_history` finds Jepsen's anomalies in.

with Appends(bootstrap, topic) as appends:
    ...                             kill brokers meanwhile
report = appends.read_back()
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import attrs
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.devtools.history.transaction_history import PROMISED, End, Placed, Poll, Send, Transaction, anomalies
from tests.devtools.processes.read_committed import read_committed
from tests.devtools.processes.transactional_load import (
    ABORTED_SHARE,
    PATIENCE_SECONDS,
    QUIET,
    TransactionalLoad,
    abort_failed,
)

PARTITION_COUNT = 6
VALUES_MAX_COUNT = 5  # of a transaction


@attrs.frozen(kw_only=True)
class AppendsReport:
    """What has become of the transactions, and what of it must not be."""

    committed_count: int
    aborted_count: int
    unknown_count: int
    read_count: int
    longest_gap_seconds: float  # of one writer, between two transactions
    problems: list[str]


@attrs.define(eq=False)
class Appends(TransactionalLoad):
    """Writers, each with a transactional id of its own, and readers of all partitions, for the block."""

    writers_count: int = 3
    readers_count: int = 2
    partition_count: int = attrs.field(default=PARTITION_COUNT, init=False)
    _history: list[Transaction] = attrs.field(factory=list, init=False)
    _problems: list[str] = attrs.field(factory=list, init=False)
    _ticks: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1), init=False)

    def jobs(self) -> Sequence[Callable[[], None]]:
        writers = [partial(self._write, number) for number in range(self.writers_count)]
        return [*writers, *(partial(self._read, number) for number in range(self.readers_count))]

    def read_back(self) -> AppendsReport:
        """Read what is committed once more, when nobody writes, and judge."""
        final = [
            _placed(message) for each in read_committed(self.bootstrap, self.topic, PARTITION_COUNT) for message in each
        ]
        self._note(Transaction(name="final", process="final", operations=(Poll(tuple(final), next(self._ticks)),)))
        ends = [each.end for each in self._history if each.is_transactional and next(each.sends, None) is not None]
        return AppendsReport(
            committed_count=ends.count(End.COMMITTED),
            aborted_count=ends.count(End.ABORTED),
            unknown_count=ends.count(End.UNKNOWN),
            read_count=len(final),
            longest_gap_seconds=self.longest_gap_seconds,
            problems=[*self._problems, *map(str, anomalies(self._history, PROMISED))],
        )

    def _note(self, transaction: Transaction) -> None:
        with self.lock:
            self._history.append(transaction)

    # ---- writers ---------------------------------------------------------------------------------------------------

    def _write(self, number: int) -> None:
        random = Random(number)

        def append(producer: Producer, count: int) -> bool:
            return self._append(producer, f"{number}-{count}", number, random)

        self.writer(f"appends-{number}", append, self._problems)

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
        consumer.assign([TopicPartition(self.topic, each, 0) for each in range(PARTITION_COUNT)])
        for count in itertools.count():
            if self.stopping.is_set():
                consumer.close()
                return
            messages = consumer.consume(100, timeout=0.2)
            at = next(self._ticks)
            errors = [str(error) for each in messages if (error := each.error()) is not None and error.code() >= 0]
            self._problems += [f"reader {number}: {each}" for each in errors]
            records = tuple(_placed(each) for each in messages if each.error() is None)
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
