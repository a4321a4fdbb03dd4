"""Transactions that nobody will end, looked for where coordinators are at several brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio

from kafscale.cluster.transactions.hanging import INTERVAL_SECONDS, CoordinatedBy, HangingSearch, Knowledge
from kafscale.cluster.transactions.service import TransactionService
from kafscale.errors import BrokerUnavailable, Fenced, StoreUnavailable
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from tests.cluster.transactions.coordination import DATA, STATE, STATE_COUNT, TOPICS, coordinating, end, init, write
from tests.devtools.fakes.memory_log import MemoryLog, memory_log
from tests.devtools.fakes.transactions import abort, read_committed, send

UNKNOWN_ID = 5


@attrs.define(eq=False)
class World:
    """A broker whose partition has a transaction that no coordinator knows of; its coordinators are all here.

    `before_look` happens when all have answered.
    """

    log: MemoryLog
    transactions: TransactionService
    leaders: list[CoordinatedBy | None]
    before_look: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint
    answers: Mapping[int, Knowledge] = attrs.field(factory=dict)  # of brokers that give others than they know
    asked: list[int] = attrs.field(factory=list)

    async def ask(self, broker_id: int, producer_ids: Collection[int]) -> Knowledge:
        self.asked.append(broker_id)
        known = await self.transactions.known(producer_ids)
        return self.answers.get(broker_id, known)

    async def look(self) -> None:
        await self.before_look()

    def search(self) -> HangingSearch:
        return HangingSearch(
            partitions=self.log.log.partitions.values,
            leaders=lambda: list(self.leaders),
            ask=self.ask,
            look=self.look,
            abort=self.transactions.abort,
        )

    def open(self) -> list[int]:
        return list(self.log.partition(0, name=DATA).transactions.open)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS) as log, coordinating(log) as transactions:
        await send(log.partition(0, name=DATA), b"unknown", producer_id=UNKNOWN_ID)
        epochs = [log.partition(index, name=STATE).leader_epoch for index in range(STATE_COUNT)]
        yield World(log, transactions, [CoordinatedBy(1, each) for each in epochs])


async def test_a_transaction_unknown_in_two_rounds_is_aborted(autojump_clock) -> None:
    async with world() as made:
        search = made.search()
        await search.search_once()
        assert made.open() == [UNKNOWN_ID]
        assert made.asked == []  # it may be one that ends at once
        await search.search_once()
        assert made.open() == []
        assert made.asked == [1]
        assert made.transactions.hanging.value == 1
        await search.search_once()
        assert made.asked == [1]


async def test_a_transaction_with_a_coordinator_is_left_open(autojump_clock) -> None:
    async with world() as made:
        who = await init(made.transactions, timeout_ms=900_000)
        await write(made.transactions, made.log, who, 0, b"known")
        search = made.search()
        for _ in range(10):
            await search.search_once()
        assert made.open() == [who.producer_id]
        await end(made.transactions, who)
        assert await read_committed(made.log, made.log.partition(0, name=DATA)) == [b"known"]


async def leads_nothing(made: World) -> None:
    """Nobody leads a partition of theirs just now."""
    made.leaders[1] = None


async def is_not_loaded(made: World) -> None:
    """A coordinator has not read its partition."""
    made.transactions.led.resign(1)


async def moves_meanwhile(made: World) -> None:
    """Who has answered leads a partition no more at the look, and another one may know more."""

    async def move() -> None:
        await trio.lowlevel.checkpoint()
        made.leaders[1] = CoordinatedBy(2, 99)

    made.before_look = move


async def thinks_that_it_leads(made: World) -> None:
    """The one that is asked was superseded, and does not know."""
    made.leaders[1] = CoordinatedBy(1, 99)


async def is_of_the_version_before(made: World) -> None:
    """It passes over what it is asked."""
    made.answers = {1: Knowledge(epochs={}, enrolled={})}


@pytest.mark.parametrize(
    "trouble", [leads_nothing, is_not_loaded, moves_meanwhile, thinks_that_it_leads, is_of_the_version_before]
)
async def test_nothing_is_aborted_unless_all_coordinators_have_answered(
    autojump_clock, trouble: Callable[[World], Awaitable[None]]
) -> None:
    async with world() as made:
        await trouble(made)
        search = made.search()
        for _ in range(5):
            await search.search_once()
        assert made.open() == [UNKNOWN_ID]
        assert made.transactions.hanging.value == 0


async def test_a_transaction_that_ended_since_the_question_does_not_count_as_hanging(autojump_clock) -> None:
    async with world() as made:
        search = made.search()
        await search.search_once()
        made.before_look = partial(abort, made.log.partition(0, name=DATA), producer_id=UNKNOWN_ID)
        await search.search_once()
        assert made.open() == []
        assert made.transactions.hanging.value == 0


@pytest.mark.parametrize("failure", [BrokerUnavailable("away"), StoreUnavailable("away"), Fenced("late")])
async def test_a_round_that_fails_is_followed_by_another(autojump_clock, failure: Exception) -> None:
    async with world() as made:
        fails = True

        async def look() -> None:
            await trio.lowlevel.checkpoint()
            if fails:
                raise failure

        made.before_look = look
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.search().run)
            await trio.sleep(3.5 * INTERVAL_SECONDS)
            assert made.open() == [UNKNOWN_ID]
            assert len(made.asked) == 4  # what was open at the start is looked for at once
            fails = False
            await trio.sleep(INTERVAL_SECONDS)
            assert made.open() == []
            nursery.cancel_scope.cancel()


async def test_of_two_that_answer_for_one_producer_the_later_epoch_counts(autojump_clock) -> None:
    async with world() as made:
        who = await init(made.transactions, timeout_ms=900_000)
        await write(made.transactions, made.log, who, 0, b"known")
        known = await made.transactions.known([who.producer_id])
        older = {key: epoch - 1 for key, epoch in known.enrolled.items()}
        made.answers = {1: known, 2: Knowledge(epochs={}, enrolled=older)}
        made.leaders[2] = attrs.evolve(made.leaders[2], broker_id=2)
        search = made.search()
        for _ in range(3):
            await search.search_once()
        assert who.producer_id in made.open()
