"""Money that moves between partitions, each time in a transaction, by confluent-kafka; some are aborted.

A transfer is two records, what is taken from one account and given to another. Whoever reads what is committed sees
both or neither: the sum is 0 at each moment.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from random import Random
from threading import Event, Lock, Thread
from types import TracebackType

import attrs
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.devtools.read_committed import read_committed

ACCOUNT_COUNT = 12  # partitions
ABORTED_SHARE = 0.2
PATIENCE_SECONDS = 120.0


@attrs.frozen(kw_only=True)
class BankReport:
    """What has become of the transfers. `failed_count` are those that ended in an error, whatever became of them."""

    committed_count: int
    aborted_count: int
    failed_count: int
    read_count: int
    longest_gap_seconds: float
    problems: list[str]


@attrs.define(eq=False)
class Bank:
    """Producers that transfer, for the block, each with a transactional id of its own."""

    bootstrap: str
    topic: str
    producers_count: int = 4
    _committed: set[str] = attrs.field(factory=set, init=False)
    _aborted: set[str] = attrs.field(factory=set, init=False)
    _failed: set[str] = attrs.field(factory=set, init=False)
    _fatal: list[str] = attrs.field(factory=list, init=False)
    _longest_gap_seconds: float = attrs.field(default=0.0, init=False)
    _lock: Lock = attrs.field(factory=Lock, init=False)
    _stopping: Event = attrs.field(factory=Event, init=False)
    _threads: list[Thread] = attrs.field(factory=list, init=False)

    def __enter__(self) -> Bank:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(self.topic, ACCOUNT_COUNT)])[self.topic].result(PATIENCE_SECONDS)
        self._threads = [Thread(target=self._transfer, args=(number,)) for number in range(self.producers_count)]
        for each in self._threads:
            each.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        for each in self._threads:
            each.join()

    def read_back(self) -> BankReport:
        """Read what is committed, once no transfer is under way."""
        seen = defaultdict[str, list[int]](list)
        for messages in read_committed(self.bootstrap, self.topic, ACCOUNT_COUNT):
            for message in messages:
                transfer, amount = json.loads(message.value() or b"")
                seen[transfer].append(amount)
        problems = list(self._fatal)
        problems += [
            f"{each}: half of it, or more: {amounts}" for each, amounts in seen.items() if not _is_whole(amounts)
        ]
        problems += [f"{each}: committed, and not to be read" for each in self._committed if each not in seen]
        problems += [f"{each}: aborted, and read" for each in self._aborted if each in seen]
        return BankReport(
            committed_count=len(self._committed),
            aborted_count=len(self._aborted),
            failed_count=len(self._failed),
            read_count=sum(map(len, seen.values())),
            longest_gap_seconds=self._longest_gap_seconds,
            problems=problems,
        )

    def _transfer(self, number: int) -> None:
        random, count, ended = Random(number), 0, time.monotonic()
        producer = self._open(number)
        while not self._stopping.is_set():
            count += 1
            transfer = f"{number}-{count}"
            try:
                done = self._attempt(producer, transfer, random)
            except KafkaException as exc:
                done = self._failed
                if not self._gave_up(producer, exc):
                    producer = self._open(number)
            now = time.monotonic()
            with self._lock:
                done.add(transfer)
                self._longest_gap_seconds = max(self._longest_gap_seconds, now - ended)
            ended = now

    def _open(self, number: int) -> Producer:
        config = {
            "bootstrap.servers": self.bootstrap,
            "transactional.id": f"bank-{number}",
            "reconnect.backoff.max.ms": 200,  # by default it pauses for up to 10 s, whether or not a broker is there
            "log_level": 0,
        }
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            producer = Producer(config)
            try:
                producer.init_transactions(PATIENCE_SECONDS)
                return producer
            except KafkaException as exc:
                if time.monotonic() > deadline:
                    self._fatal.append(f"producer {number} can't go on: {exc}")
                    raise

    def _attempt(self, producer: Producer, transfer: str, random: Random) -> set[str]:
        """Make one transfer, and tell what has become of it."""
        amount, accounts = random.randint(1, 100), random.sample(range(ACCOUNT_COUNT), 2)
        producer.begin_transaction()
        for account, moved in zip(accounts, (-amount, amount), strict=True):
            producer.produce(self.topic, json.dumps([transfer, moved]).encode(), partition=account)
        if random.random() < ABORTED_SHARE:
            producer.flush()
            producer.abort_transaction(PATIENCE_SECONDS)
            return self._aborted
        producer.commit_transaction(PATIENCE_SECONDS)
        return self._committed

    def _gave_up(self, producer: Producer, exc: KafkaException) -> bool:
        """Abort what failed; False if the producer can't go on."""
        if not exc.args[0].txn_requires_abort():
            return False
        try:
            producer.abort_transaction(PATIENCE_SECONDS)
        except KafkaException:
            return False
        return True


def _is_whole(amounts: list[int]) -> bool:
    return len(amounts) == 2 and sum(amounts) == 0
