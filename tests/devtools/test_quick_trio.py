"""What stands in for parts of trio does what these do: the same tasks take the same steps in the same order."""

from __future__ import annotations

import gc
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pytest
import trio
import trio.testing

from tests.devtools import determinism
from tests.devtools.cluster.world import simulate_cluster
from tests.devtools.determinism import run_seeded
from tests.devtools.processes import PROCESS, Process
from tests.devtools.replaced import replaced

SUSPENDED_SEED = 3  # in which a broker is suspended
SEEDS_COUNT = 5


def on_trio_itself() -> AbstractContextManager[None]:
    return replaced(determinism, "quickened", nullcontext)


def steps(seed: int, scenario: Callable[[list[object]], Awaitable[None]]) -> list[object]:
    seen: list[object] = []
    run_seeded(seed, scenario, seen)
    return seen


async def sleeps(seen: list[object]) -> None:
    """Many that end at the same moments, some of which are cancelled at these, before them, or behind a suspension."""
    process = Process()

    async def sleep(name: str, seconds: float, *, until: float = math.inf, shield: bool = False) -> None:
        with trio.move_on_after(until) as outer:
            with trio.CancelScope(shield=shield):
                for _ in range(3):
                    await trio.sleep(seconds)
                    seen.append((name, trio.current_time()))
        seen.append((name, trio.current_time(), outer.cancelled_caught))

    async def suspended() -> None:
        PROCESS.set(process)
        await sleep("suspended", 1.5, until=3.0)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(sleep, f"plain {number}", 1.0)
        for until in (0.5, 1.0, 2.5, 3.0):
            nursery.start_soon(partial(sleep, f"until {until}", 1.0, until=until))
            nursery.start_soon(partial(sleep, f"shielded {until}", 1.0, until=until, shield=True))
        nursery.start_soon(sleep, "no time", 0.0)
        nursery.start_soon(sleep, "short", 0.1)
        nursery.start_soon(suspended)
        await trio.sleep_until(2.0)
        process.suspend()
        await trio.sleep_until(4.0)
        process.resume()
        await trio.sleep_until(1.0)  # which is over
        seen.append(trio.current_time())


async def cancels(seen: list[object]) -> None:
    """Who is cancelled from outside, in nurseries, beside errors, and when all is idle."""

    async def sleep(seconds: float) -> None:
        try:
            await (trio.sleep_forever() if seconds == math.inf else trio.sleep(seconds))
        finally:
            seen.append((seconds, trio.current_time()))
            with trio.CancelScope(shield=True):
                await trio.sleep(0.25)
            seen.append((seconds, "clean", trio.current_time()))
            try:
                with trio.move_on_after(10):
                    await trio.sleep(1)
            finally:
                seen.append((seconds, "gone", trio.current_time()))

    async def fail(seconds: float) -> None:
        await trio.sleep(seconds)
        raise ValueError(seconds)

    for seconds in (0.5, 1.0):
        try:
            async with trio.open_nursery() as nursery:
                for each in (0.5, 1.0, 1.0, 2.0, math.inf):
                    nursery.start_soon(sleep, each)
                nursery.start_soon(fail, seconds)
                nursery.start_soon(fail, 1.0)
        except* ValueError as group:
            seen.append((len(group.exceptions), trio.current_time()))
    with trio.CancelScope() as scope:
        scope.cancel()
    with trio.CancelScope() as early:
        early.cancel()
        await trio.sleep(1)
        seen.append("not cancelled")
    with trio.move_on_after(0):
        await trio.Event().wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        seen.append("idle")
        with trio.move_on_after(5) as scope:
            scope.deadline -= 1
            await trio.Event().wait()
        seen.append((trio.current_time(), scope.cancelled_caught))
        with trio.fail_after(1):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("scenario", [sleeps, cancels])
def test_tasks_take_the_steps_that_they_take_on_trio_itself(
    scenario: Callable[[list[object]], Awaitable[None]],
) -> None:
    found = [steps(seed, scenario) for seed in range(SEEDS_COUNT)]
    with on_trio_itself():
        assert [steps(seed, scenario) for seed in range(SEEDS_COUNT)] == found
    assert len({tuple(each) for each in found}) > 1


def test_a_seed_of_the_simulation_has_the_events_that_it_has_on_trio_itself() -> None:
    found = simulate_cluster(SUSPENDED_SEED, is_short=True).log
    assert any("is suspended" in line for line in found.lines)
    with on_trio_itself():
        assert simulate_cluster(SUSPENDED_SEED, is_short=True).log.digest == found.digest


def test_what_a_task_raises_comes_out_of_the_run() -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise ValueError("at last")

    with pytest.raises(ValueError, match="at last"):
        run_seeded(1, fail)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nobody ends what is left then
def test_a_run_in_which_everybody_waits_for_ever_ends() -> None:
    """A seed took all of its minute of CPU for that."""
    with pytest.raises(trio.TrioInternalError) as caught:
        run_seeded(1, trio.sleep_forever)
    assert str(caught.value.__cause__) == "everybody waits for ever"
    del caught
    gc.collect()
