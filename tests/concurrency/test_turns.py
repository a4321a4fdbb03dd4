from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.concurrency.turns import Crowded, FairQueue, FairTurns


async def work(turns: FairTurns, owner: str, pieces_count: int, done: list[str]) -> None:
    for _ in range(pieces_count):
        async with turns.turn(owner):
            await trio.sleep(1)
            done.append(owner)


async def test_owners_take_turns_however_many_wait_for_one(autojump_clock: MockClock) -> None:
    turns, done = FairTurns(), list[str]()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(work, turns, "many", 5, done)
        await trio.sleep(2.5)
        nursery.start_soon(work, turns, "one", 5, done)
    assert done[3:13].count("one") >= 4
    assert done.count("many") == 50


async def test_one_at_a_time_holds_a_turn(autojump_clock: MockClock) -> None:
    turns, done = FairTurns(), list[str]()
    async with trio.open_nursery() as nursery:
        for owner in "abca":
            nursery.start_soon(work, turns, owner, 2, done)
    assert trio.current_time() == 8
    assert len(done) == 8


async def test_turns_of_one_owner_are_granted_in_order(autojump_clock: MockClock) -> None:
    turns, order = FairTurns(), list[int]()

    async def take(number: int) -> None:
        async with turns.turn("same"):
            order.append(number)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(take, number)
            await wait_all_tasks_blocked()
    assert order == [0, 1, 2, 3, 4]


async def test_a_waiter_cancelled_before_or_as_its_turn_is_granted_holds_no_turn(autojump_clock: MockClock) -> None:
    turns, done = FairTurns(), list[str]()
    async with trio.open_nursery() as nursery:
        async with turns.turn("holder"):
            with trio.CancelScope() as waiting:
                nursery.start_soon(work, turns, "waits", 1, done)
                await wait_all_tasks_blocked()
                waiting.cancel()
            scopes = [trio.CancelScope() for _ in range(2)]

            async def give_up(scope: trio.CancelScope) -> None:
                with scope:
                    await work(turns, "gives up", 1, done)

            for scope in scopes:
                nursery.start_soon(give_up, scope)
            await wait_all_tasks_blocked()
            scopes[0].cancel()
            await wait_all_tasks_blocked()
        scopes[1].cancel()  # it may have been granted a moment ago
    async with turns.turn("later"):
        pass
    assert done == ["waits"]


async def test_a_turn_that_is_cancelled_at_once_is_free_again(autojump_clock: MockClock) -> None:
    turns = FairTurns()
    with trio.CancelScope() as scope:
        scope.cancel()
        async with turns.turn("cancelled"):
            raise AssertionError("this is never reached")
    with trio.fail_after(1):
        async with turns.turn("next"):
            pass


async def hold(turns: FairTurns, owner: str, done: list[str], leave: trio.Event | None = None) -> None:
    try:
        async with turns.turn(owner):
            done.append(owner)
            if leave is not None:
                await leave.wait()
    except Crowded:
        done.append(f"{owner} is crowded out")


async def test_owners_take_turns_by_one(nursery: trio.Nursery) -> None:
    turns, done, leave = FairTurns(1, 100), list[str](), trio.Event()
    nursery.start_soon(hold, turns, "first", done, leave)
    await wait_all_tasks_blocked()
    for owner in ("a", "a", "a", "b", "c", "b"):
        nursery.start_soon(hold, turns, owner, done)
        await wait_all_tasks_blocked()
    leave.set()
    await wait_all_tasks_blocked()
    assert done == ["first", "a", "b", "c", "a", "b", "a"]
    assert turns.waiting_count == 0


async def test_a_flood_of_one_owner_crowds_out_itself(nursery: trio.Nursery) -> None:
    turns, done, leave = FairTurns(1, 4), list[str](), trio.Event()
    for owner in ("flood", "flood", "flood", "flood", "flood", "flood"):
        nursery.start_soon(hold, turns, owner, done, leave)
        await wait_all_tasks_blocked()
    assert done == ["flood", "flood is crowded out"]
    for owner in ("b", "c"):
        nursery.start_soon(hold, turns, owner, done)
        await wait_all_tasks_blocked()
    assert done[2:] == ["flood is crowded out"] * 2
    leave.set()
    await wait_all_tasks_blocked()
    assert done[4:] == ["b", "flood", "c", "flood"]


async def test_a_cancelled_task_leaves_its_turn_to_others(nursery: trio.Nursery) -> None:
    turns, done, leave, scope = FairTurns(1, 10), list[str](), trio.Event(), trio.CancelScope()

    async def cancelled() -> None:
        with scope:
            await hold(turns, "cancelled", done)

    nursery.start_soon(hold, turns, "first", done, leave)
    await wait_all_tasks_blocked()
    nursery.start_soon(cancelled)
    await wait_all_tasks_blocked()
    nursery.start_soon(hold, turns, "last", done)
    await wait_all_tasks_blocked()
    scope.cancel()
    leave.set()
    await wait_all_tasks_blocked()
    assert done == ["first", "last"]
    assert turns.waiting_count == 0
    async with turns.turn("again"):
        pass


def test_a_queue_serves_the_last_owner_after_the_others() -> None:
    queue = FairQueue[int]()
    queue.append("a", 1)
    assert queue.pop() == ("a", 1)
    for owner, item in (("a", 2), ("a", 3), ("b", 4)):
        queue.append(owner, item)
    assert [queue.pop() for _ in range(len(queue))] == [("b", 4), ("a", 2), ("a", 3)]
    assert len(queue) == 0
