"""One load for many: what it failed with is everybody's, and one that was given up is nobody's."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.concurrency.sharing import Flight, Gathering
from kafscale.errors import BrokerUnavailable, StoreUnavailable


async def test_waiters_wake_when_the_flight_lands(nursery):
    flight = Flight()
    nursery.start_soon(flight.wait)
    await wait_all_tasks_blocked()
    assert nursery.child_tasks
    flight.land()
    await wait_all_tasks_blocked()
    assert not nursery.child_tasks
    await flight.wait()


async def test_a_failure_is_raised_for_everybody():
    flight = Flight()
    flight.land(StoreUnavailable("away"))
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="away"):
            await flight.wait()


async def test_a_cancelled_load_raises_no_error_for_its_waiters():
    flight = Flight()
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as exc:
            flight.land(exc)
            raise
    await flight.wait()


INTERRUPTED = BrokerUnavailable("interrupted")


@attrs.define(eq=False)
class Answerer:
    """Doubles numbers, one request at a time as long as it is told to wait."""

    asked: list[list[int]] = attrs.field(factory=list)
    may_answer: trio.Event = attrs.field(factory=trio.Event)
    failure: BrokerUnavailable | None = None

    async def ask(self, questions: Sequence[int]) -> Sequence[int]:
        self.asked.append(list(questions))
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return [2 * each for each in questions]


async def collect(gathering: Gathering[int, int], question: int, found: dict[int, object]) -> None:
    try:
        found[question] = await gathering.request(question, INTERRUPTED)
    except BrokerUnavailable as exc:
        found[question] = exc


async def test_requests_that_arrive_during_a_call_share_the_next_call() -> None:
    answerer, found = Answerer(), dict[int, object]()
    gathering = Gathering(answerer.ask, max_count=3)
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(collect, gathering, number, found)
            await wait_all_tasks_blocked()
        answerer.may_answer.set()
    assert answerer.asked == [[0], [1, 2, 3], [4, 5]]
    assert found == {number: 2 * number for number in range(6)}


async def test_a_failed_shared_call_fails_every_request_in_the_call() -> None:
    answerer, found = Answerer(failure=BrokerUnavailable("gone")), dict[int, object]()
    gathering = Gathering(answerer.ask, max_count=3)
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(collect, gathering, number, found)
            await wait_all_tasks_blocked()
        answerer.may_answer.set()
    assert set(found.values()) == {answerer.failure}


async def test_cancelling_a_call_does_not_cancel_requests_queued_for_the_next_call() -> None:
    answerer, found = Answerer(), dict[int, object]()
    gathering = Gathering(answerer.ask, max_count=3)
    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def ask_first() -> None:
            with first:
                await collect(gathering, 0, found)

        nursery.start_soon(ask_first)
        await wait_all_tasks_blocked()
        nursery.start_soon(collect, gathering, 1, found)
        await wait_all_tasks_blocked()
        first.cancel()
        await wait_all_tasks_blocked()
        answerer.may_answer.set()
    assert found == {1: 2}
    assert answerer.asked == [[0], [1]]


async def test_a_request_fails_when_the_caller_running_its_shared_call_is_cancelled() -> None:
    answerer = Answerer()
    gathering = Gathering(answerer.ask, max_count=3)
    failures: list[BrokerUnavailable] = []

    async def ask(question: int, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await gathering.request(question, INTERRUPTED)
            except BrokerUnavailable as exc:
                failures.append(exc)

    scopes = [trio.CancelScope() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for number, scope in enumerate(scopes):
            nursery.start_soon(ask, number, scope)
            await wait_all_tasks_blocked()
        scopes[0].cancel()  # then the second asks for the third, too
        await wait_all_tasks_blocked()
        scopes[1].cancel()
    assert failures == [INTERRUPTED]
