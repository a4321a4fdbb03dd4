"""The time that work takes is counted, and that for which it waits is not."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio

from kafscale.concurrency import metering
from kafscale.concurrency.metering import Meter, metered, run_in_thread


@attrs.define
class Clock:
    """Goes on by `work` alone."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(metering, "perf_counter", clock)
    return clock


async def test_time_of_other_tasks_is_not_counted(clock: Clock) -> None:
    meter, turn, back = Meter(), trio.Event(), trio.Event()

    async def work() -> str:
        clock.work(1)
        await trio.lowlevel.checkpoint()
        clock.work(2)
        turn.set()
        await back.wait()
        clock.work(4)
        return "done"

    async def other() -> None:
        await turn.wait()
        clock.work(1000)
        back.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert await metered(meter, work()) == "done"
    assert meter.take() == 7
    assert meter.seconds == 0


async def test_the_meter_counts_threads_of_metered_work_and_no_others(clock: Clock) -> None:
    meter = Meter()

    async def work(function: Callable[[float], None]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_in_thread, function, 1)
        await run_in_thread(function, 2, limiter=trio.CapacityLimiter(1))

    await metered(meter, work(clock.work))
    await run_in_thread(clock.work, 100)
    assert meter.seconds == 3


async def test_an_error_passes_through_and_the_time_before_the_error_is_counted(clock: Clock) -> None:
    meter = Meter()

    async def work() -> None:
        await trio.lowlevel.checkpoint()
        clock.work(1)
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        await metered(meter, work())
    assert meter.seconds == 1


async def test_metered_work_can_be_cancelled_and_its_clean_up_is_counted(
    clock: Clock, autojump_clock: trio.testing.MockClock
) -> None:
    meter, cleaned = Meter(), []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            clock.work(1)
            with trio.move_on_after(1, shield=True):
                await trio.sleep(0.5)
                clock.work(2)
            cleaned.append(True)

    with trio.move_on_after(5) as scope:
        await metered(meter, work())
    assert scope.cancelled_caught
    assert (meter.seconds, cleaned) == (3, [True])
    await run_in_thread(clock.work, 100)
    assert meter.seconds == 3
