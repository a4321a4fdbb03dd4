"""Places in which those who wait take turns by key."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.concurrency.fair_places import Crowded, FairPlaces


async def hold(places: FairPlaces, key: str, done: list[str], leave: trio.Event | None = None) -> None:
    try:
        async with places.place(key):
            done.append(key)
            if leave is not None:
                await leave.wait()
    except Crowded:
        done.append(f"{key} is crowded out")


async def test_keys_take_turns(nursery: trio.Nursery) -> None:
    places, done, leave = FairPlaces(1, 100), list[str](), trio.Event()
    nursery.start_soon(hold, places, "first", done, leave)
    await wait_all_tasks_blocked()
    for key in ("a", "a", "a", "b", "c", "b"):
        nursery.start_soon(hold, places, key, done)
        await wait_all_tasks_blocked()
    leave.set()
    await wait_all_tasks_blocked()
    assert done == ["first", "a", "b", "c", "a", "b", "a"]
    assert places.waiting_count == 0


async def test_a_flood_of_one_key_crowds_out_itself(nursery: trio.Nursery) -> None:
    places, done, leave = FairPlaces(1, 4), list[str](), trio.Event()
    for key in ("flood", "flood", "flood", "flood", "flood", "flood"):
        nursery.start_soon(hold, places, key, done, leave)
        await wait_all_tasks_blocked()
    assert done == ["flood", "flood is crowded out"]
    for key in ("b", "c"):
        nursery.start_soon(hold, places, key, done)
        await wait_all_tasks_blocked()
    assert done[2:] == ["flood is crowded out"] * 2
    leave.set()
    await wait_all_tasks_blocked()
    assert done[4:] == ["flood", "b", "c", "flood"]


async def test_whoever_is_cancelled_leaves_its_place_to_others(nursery: trio.Nursery) -> None:
    places, done, leave, scope = FairPlaces(1, 10), list[str](), trio.Event(), trio.CancelScope()

    async def cancelled() -> None:
        with scope:
            await hold(places, "cancelled", done)

    nursery.start_soon(hold, places, "first", done, leave)
    await wait_all_tasks_blocked()
    nursery.start_soon(cancelled)
    await wait_all_tasks_blocked()
    nursery.start_soon(hold, places, "last", done)
    await wait_all_tasks_blocked()
    scope.cancel()
    leave.set()
    await wait_all_tasks_blocked()
    assert done == ["first", "last"]
    assert places.waiting_count == 0
    async with places.place("again"):
        pass
