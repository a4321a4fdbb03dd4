from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from kafscale.concurrency.signals import OneShot, Signal


async def started_waiter(nursery, signal, woken, name):
    async def wait():
        await signal.wait()
        woken.append(name)

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()


async def test_a_set_flag_releases_waiters_until_it_is_cleared():
    signal, woken = Signal(), []
    assert not signal.is_set()
    async with trio.open_nursery() as nursery:
        await started_waiter(nursery, signal, woken, "early")
        assert woken == []
        signal.set()
        assert signal.is_set()
        await started_waiter(nursery, signal, woken, "late")
        assert woken == ["early", "late"]
        signal.clear()
        assert not signal.is_set()
        await started_waiter(nursery, signal, woken, "next round")
        assert woken == ["early", "late"]
        signal.set()
    assert woken == ["early", "late", "next round"]


async def test_a_wake_releases_only_current_waiters():
    signal, woken = Signal(), []
    async with trio.open_nursery() as nursery:
        signal.wake()
        await started_waiter(nursery, signal, woken, "first")
        await started_waiter(nursery, signal, woken, "second")
        assert signal.statistics().tasks_waiting == 2
        signal.wake()
        await started_waiter(nursery, signal, woken, "third")
        assert sorted(woken) == ["first", "second"]
        assert signal.statistics().tasks_waiting == 1
        signal.wake()
    assert sorted(woken) == ["first", "second", "third"]


async def test_clearing_an_unset_signal_keeps_its_waiters():
    signal, woken = Signal(), []
    async with trio.open_nursery() as nursery:
        await started_waiter(nursery, signal, woken, "waiter")
        signal.clear()
        signal.set()
    assert woken == ["waiter"]


async def test_work_that_comes_between_the_look_and_the_wait_is_not_missed():
    """The loop of a task with work of its own."""
    signal, queue, done = Signal(), [1], []
    with trio.fail_after(1):
        while len(done) < 3:
            signal.clear()
            while queue:
                done.append(queue.pop())
                await trio.lowlevel.checkpoint()
                if len(done) < 3:
                    queue.append(len(done) + 1)
                    signal.set()
                    break
            else:
                break
            await signal.wait()
    assert done == [1, 2, 3]


@pytest.mark.parametrize("is_set", [False, True])
async def test_a_wait_that_is_cancelled_raises(is_set):
    signal = Signal()
    if is_set:
        signal.set()
    with trio.CancelScope() as scope:
        scope.cancel()
        await signal.wait()
    assert scope.cancelled_caught


async def test_every_waiter_receives_the_value() -> None:
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


async def test_a_cancelled_wait_does_not_consume_the_value() -> None:
    shot: OneShot[str] = OneShot()
    with trio.CancelScope() as scope:
        scope.cancel()
        await shot.wait()
    shot.set("still there")
    assert await shot.wait() == "still there"
