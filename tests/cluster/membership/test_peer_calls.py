"""Requests from broker to broker: what becomes of the connection that they share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.cluster.membership.peers.peer_connections import TIMEOUT_SECONDS, BrokerCalls
from kafscale.cluster.membership.records import BrokerRecord, BrokerState, record_key
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.errors import BrokerUnavailable
from kafscale.testing.metadata import MemoryMetadataStore


@attrs.define(eq=False)
class FakeLine:
    """Answers what it was asked, unless it is `stuck`; who waits hears of its end."""

    stuck: bool = False
    is_closed: bool = False
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def request(self, message: Any, response_class: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if not self.stuck:
            return message
        await self.ended.wait()
        raise BrokerUnavailable("closed")

    async def aclose(self) -> None:
        self.is_closed = True
        self.ended.set()
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class World:
    """A broker 7 that can be asked, by lines that are all remembered."""

    state: ClusterState
    calls: BrokerCalls
    lines: list[FakeLine]
    stuck: bool = False

    async def put(self, incarnation: int, state: BrokerState = BrokerState.LIVE) -> None:
        record = BrokerRecord(
            incarnation=incarnation, state=state, endpoints={}, directory_id="", acknowledges_locally=False
        )
        await self.state.store.commit(Transaction(puts={record_key(7): encode(record)}))

    async def ask(self) -> object:
        return await self.calls.ask(7, "asked", str)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        state = ClusterState(MemoryMetadataStore())
        await state.load()
        found: World

        async def connect(_broker_id: int, _record: BrokerRecord) -> FakeLine:
            await trio.lowlevel.checkpoint()
            found.lines.append(FakeLine(found.stuck))
            return found.lines[-1]

        found = World(state, BrokerCalls(state, connect), [])
        await found.put(1)
        nursery.start_soon(found.calls.run)
        await wait_all_tasks_blocked()
        yield found
        nursery.cancel_scope.cancel()


async def test_requests_share_a_connection(autojump_clock: MockClock) -> None:
    async with world() as here, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(here.ask)
    assert len(here.lines) == 1
    assert here.lines[0].is_closed  # at the end


async def test_kinds_of_requests_do_not_wait_for_each_other(autojump_clock: MockClock) -> None:
    async with world() as here, trio.open_nursery() as nursery:
        here.stuck = True
        nursery.start_soon(here.ask)
        await wait_all_tasks_blocked()
        here.stuck = False
        assert await here.calls.ask(7, b"of another kind", bytes) == b"of another kind"
        assert len(here.lines) == 2
        await here.lines[0].aclose()
        nursery.cancel_scope.cancel()


async def test_a_call_that_times_out_closes_the_connection(autojump_clock: MockClock) -> None:
    async with world() as here:
        here.stuck = True
        began = trio.current_time()
        with pytest.raises(BrokerUnavailable, match="no answer from broker 7 in 30 s"):
            await here.ask()
        assert trio.current_time() - began == pytest.approx(TIMEOUT_SECONDS)
        assert here.lines[0].is_closed
        here.stuck = False
        assert await here.ask() == "asked"
        assert len(here.lines) == 2


async def test_a_stuck_connection_closes_although_no_single_caller_waits_so_long(autojump_clock: MockClock) -> None:
    """Each produce gave up before the time was up, and the next one asked by the same connection, for ever."""
    async with world() as here:
        here.stuck = True
        began = trio.current_time()
        with trio.move_on_after(0.6 * TIMEOUT_SECONDS):
            await here.ask()
        with trio.move_on_after(0.6 * TIMEOUT_SECONDS), pytest.raises(BrokerUnavailable, match="from broker 7 in 12 s"):
            await here.ask()
        assert trio.current_time() - began == pytest.approx(TIMEOUT_SECONDS)
        assert here.lines[0].is_closed
        here.stuck = False
        assert await here.ask() == "asked"


async def test_an_abandoned_answer_does_not_fail_a_much_later_call(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        here.stuck = True
        with trio.move_on_after(1.0):
            await here.ask()
        here.stuck = here.lines[0].stuck = False
        await trio.sleep(TIMEOUT_SECONDS - 2.0)
        assert await here.ask() == "asked"
        here.lines[0].stuck = True
        with trio.move_on_after(1.0):
            await here.ask()
        await trio.sleep(2 * TIMEOUT_SECONDS)
        assert await here.ask() == "asked", "by a new connection"
        assert [each.is_closed for each in here.lines] == [True, False]


@pytest.mark.parametrize(
    ("incarnation", "state"), [(2, BrokerState.LIVE), (1, BrokerState.STOPPED), (1, BrokerState.AWAY)]
)
async def test_a_call_to_an_ended_incarnation_fails_at_once(
    autojump_clock: MockClock, incarnation: int, state: BrokerState
) -> None:
    async with world() as here:
        here.stuck = True
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(BrokerUnavailable):
                    await here.ask()

            nursery.start_soon(ask)
            await trio.sleep(1.0)
            await here.put(incarnation, state)
        assert trio.current_time() - began < 2.0


async def test_a_stopped_broker_is_not_called(autojump_clock: MockClock) -> None:
    async with world() as here:
        await here.put(1, BrokerState.STOPPED)
        with pytest.raises(BrokerUnavailable):
            await here.ask()
        assert not here.lines
