"""Transaction coordinators over a whole log in memory, without handlers: for tests on an autojump clock.

async with coordinating(log) as transactions: …      log has the topics of TOPICS
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import trio
import trio.testing

from kafscale.cluster.coordinator.entries import InternalLog
from kafscale.cluster.coordinator.loading import Leadership
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.hanging import CoordinatedBy, HangingSearch, Knowledge
from kafscale.cluster.transactions.ledger import InitProducerId, ProducerIdentity
from kafscale.cluster.transactions.service import TransactionService
from kafscale.cluster.transactions.values import TransactionState, decode_state
from kafscale.config import Settings
from kafscale.log.partition.partition import Partition
from tests.devtools.fakes.memory_log import MemoryLog, topic_spec
from tests.devtools.fakes.transactions import send

STATE, DATA = "__transaction_state", "t"
STATE_COUNT = 3
TOPICS = (
    topic_spec(STATE_COUNT, name=STATE, topic_id=b"s" * 16, cleanup_policy=("compact",)),
    topic_spec(3, name=DATA, topic_id=b"d" * 16),
)
NEWEST = 2


@asynccontextmanager
async def coordinating(log: MemoryLog, *, is_loaded: bool = True, **settings: Any) -> AsyncIterator[TransactionService]:
    """Coordinate what the log has for the block; what was decided, and not completed, is completed before."""
    ids = count(1000 * log.partition(name=STATE).leader_epoch)

    async def allocate() -> int:
        await trio.lowlevel.checkpoint()
        return next(ids)

    def exists(partition: TopicPartition) -> bool:
        row = log.log.by_name.get(partition.topic)
        return row is not None and partition.partition < len(row)

    transactions = TransactionService(
        internal=InternalLog(log.log),
        settings=Settings(**settings),
        topic=STATE,
        partition_count=lambda: STATE_COUNT,
        exists=exists,
        allocate_producer_id=allocate,
    )
    leadership = Leadership(log.log, {STATE: transactions.led})
    async with trio.open_nursery() as nursery:
        await nursery.start(transactions.run)
        await nursery.start(leadership.run)
        if is_loaded:
            await leadership.wait_loaded()
            await trio.testing.wait_all_tasks_blocked()
        yield transactions
        nursery.cancel_scope.cancel()


async def abort_hanging(log: MemoryLog, transactions: TransactionService, partitions: Iterable[Partition]) -> None:
    """Abort what is open in these partitions and unknown to the coordinators, which are all here."""

    async def ask(broker_id: int, producer_ids: Collection[int]) -> Knowledge:
        return await transactions.known(producer_ids)

    epochs = [log.partition(index, name=STATE).leader_epoch for index in range(STATE_COUNT)]
    search = HangingSearch(
        partitions=lambda: partitions,
        leaders=lambda: [CoordinatedBy(1, epoch) for epoch in epochs],
        ask=ask,
        look=trio.lowlevel.checkpoint,
        abort=transactions.abort,
    )
    await search.search_once()
    await search.search_once()


async def init(
    transactions: TransactionService, transactional_id: str = "x", *, timeout_ms: int = 60_000
) -> ProducerIdentity:
    """A producer's first word."""
    request = InitProducerId(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    reply = await transactions.init_producer_id(request)
    assert not reply.error_code, reply
    return ProducerIdentity(transactional_id, reply.producer_id, reply.producer_epoch)


async def add(
    transactions: TransactionService, who: ProducerIdentity, *indexes: int, topic: str = DATA, version: int = 0
) -> int:
    """Enrol partitions; returns the error."""
    partitions = frozenset(TopicPartition(topic, index) for index in indexes)
    return (await transactions.add_partitions(who, partitions, transaction_version=version)).error_code


async def end(
    transactions: TransactionService, who: ProducerIdentity, *, committed: bool = True, version: int = NEWEST
) -> ProducerIdentity:
    """End a transaction; returns who the producer is then."""
    reply = await transactions.end(who, committed=committed, transaction_version=version)
    assert not reply.error_code, reply
    return who if version < NEWEST else ProducerIdentity(who.transactional_id, reply.producer_id, reply.producer_epoch)


async def write(
    transactions: TransactionService, log: MemoryLog, who: ProducerIdentity, index: int, *values: bytes
) -> None:
    """Enrol a partition and write to it."""
    assert not await add(transactions, who, index, version=NEWEST)
    partition = log.partition(index, name=DATA)
    producer = partition.producers.producers.get(who.producer_id)
    goes_on = producer is not None and producer.epoch == who.producer_epoch
    sequence = producer.batches[-1].last_sequence + 1 if producer is not None and goes_on else 0
    await send(partition, *values, producer_id=who.producer_id, epoch=who.producer_epoch, sequence=sequence)


async def states(log: MemoryLog, transactional_id: str = "x") -> list[TransactionState]:
    """Return the records of an id in the log, in order."""
    found = []
    for index in range(STATE_COUNT):
        for record in await log.records(log.partition(index, name=STATE)):
            state = decode_state(record)
            assert state is not None
            if state.transactional_id == transactional_id:
                status = TransactionState.DEAD if state.value is None else state.value.transaction_status
                found.append(TransactionState(status))
    return found
