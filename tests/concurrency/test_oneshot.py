from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.concurrency.oneshot import OneShot


async def test_all_who_wait_get_the_value() -> None:
    shot: OneShot[int] = OneShot()
    got: list[int] = []

    async def wait() -> None:
        got.append(await shot.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not shot.is_set
        shot.set(0)  # also a value that is false
    assert got == [0, 0]
    assert await shot.wait() == 0


async def test_one_who_gives_up_waiting_takes_nothing_from_the_others() -> None:
    shot: OneShot[str] = OneShot()
    with trio.CancelScope() as scope:
        scope.cancel()
        await shot.wait()
    shot.set("still there")
    assert await shot.wait() == "still there"
