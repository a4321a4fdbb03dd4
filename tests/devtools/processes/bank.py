"""Money that moves between partitions, each time in a transaction, by confluent-kafka; some are aborted.

A transfer is two records, what is taken from one account and given to another. Whoever reads what is committed sees
both or neither: the sum is 0 at each moment.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import attrs
from confluent_kafka import KafkaException, Producer

from tests.devtools.processes.read_committed import read_committed
from tests.devtools.processes.transactional_load import ABORTED_SHARE, PATIENCE_SECONDS, TransactionalLoad, abort_failed

ACCOUNT_COUNT = 12  # partitions


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
class Bank(TransactionalLoad):
    """Producers that transfer, for the block, each with a transactional id of its own."""

    producers_count: int = 4
    partition_count: int = attrs.field(default=ACCOUNT_COUNT, init=False)
    _committed: set[str] = attrs.field(factory=set, init=False)
    _aborted: set[str] = attrs.field(factory=set, init=False)
    _failed: set[str] = attrs.field(factory=set, init=False)
    _fatal: list[str] = attrs.field(factory=list, init=False)

    def jobs(self) -> Sequence[Callable[[], None]]:
        return [partial(self._transfer_all, number) for number in range(self.producers_count)]

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
            longest_gap_seconds=self.longest_gap_seconds,
            problems=problems,
        )

    def _transfer_all(self, number: int) -> None:
        random = Random(number)

        def transfer(producer: Producer, count: int) -> bool:
            name, can_go_on = f"{number}-{count}", True
            try:
                done = self._attempt(producer, name, random)
            except KafkaException as exc:
                done, can_go_on = self._failed, abort_failed(producer, exc)
            with self.lock:
                done.add(name)
            return can_go_on

        self.writer(f"bank-{number}", transfer, self._fatal)

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


def _is_whole(amounts: list[int]) -> bool:
    return len(amounts) == 2 and sum(amounts) == 0
