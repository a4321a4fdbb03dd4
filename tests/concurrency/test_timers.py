from __future__ import annotations

from functools import partial

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.concurrency import timers
from kafscale.concurrency.timers import Timer, TimerQueue


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_timers_fire_in_order_of_their_deadlines() -> None:
    clock, fired = Clock(), []
    queue = TimerQueue(clock)
    for seconds in (3, 1, 2):
        queue.set_after(Timer(partial(fired.append, seconds)), seconds)
    assert queue.next_deadline == 1
    clock.seconds = 2
    queue.fire_due()
    assert fired == [1, 2]
    clock.seconds = 10
    queue.fire_due()
    queue.fire_due()
    assert fired == [1, 2, 3]


def test_a_deadline_that_moves_later_is_looked_at_again_then() -> None:
    clock, fired = Clock(), []
    queue = TimerQueue(clock)
    timer = Timer(lambda: fired.append(clock.seconds))
    queue.set_after(timer, 10)
    for _ in range(100):
        clock.seconds += 1
        queue.fire_due()
        queue.set_after(timer, 10)
    assert fired == []
    assert len(queue) == 1
    clock.seconds = 110
    queue.fire_due()
    assert fired == [110]
    assert not timer.is_set


def test_a_deadline_that_moves_earlier_counts_at_once() -> None:
    clock, fired = Clock(), []
    queue = TimerQueue(clock)
    timer = Timer(lambda: fired.append(clock.seconds))
    queue.set_after(timer, 10)
    queue.set_after(timer, 1)
    assert queue.next_deadline == 1
    for clock.seconds in (1, 10):
        queue.fire_due()
    assert fired == [1]


def test_a_cancelled_timer_does_not_fire_until_it_is_set_again() -> None:
    clock, fired = Clock(), []
    queue = TimerQueue(clock)
    timer = Timer(lambda: fired.append(clock.seconds))
    queue.set_after(timer, 1)
    queue.cancel(timer)
    clock.seconds = 2
    queue.fire_due()
    assert fired == []
    queue.set_after(timer, 1)
    queue.cancel(timer)
    queue.set_after(timer, 1)
    clock.seconds = 3
    queue.fire_due()
    queue.fire_due()
    assert fired == [3]


def test_a_timer_can_cancel_and_set_other_timers_while_firing() -> None:
    clock, fired = Clock(), []
    queue = TimerQueue(clock)
    second = Timer(lambda: fired.append("second"))
    third = Timer(lambda: fired.append("third"))

    def fire_first() -> None:
        queue.cancel(second)
        queue.set_after(third, 5)
        queue.set_after(first, 0)
        fired.append("first")

    first = Timer(fire_first)
    for timer in (first, second, third):
        queue.set_after(timer, 1)
    clock.seconds = 1
    queue.fire_due()
    assert fired == ["first"], "what is set again waits for the next call"
    clock.seconds = 6
    queue.cancel(first)
    queue.fire_due()
    assert fired == ["first", "third"]


def test_timers_that_come_and_go_leave_nothing_behind() -> None:
    queue = TimerQueue(Clock())
    for _ in range(10 * timers.STALE_ENTRIES_MIN_COUNT):
        timer = Timer(lambda: None)
        queue.set_after(timer, 1800)
        queue.cancel(timer)
    assert len(queue) <= 2 * timers.STALE_ENTRIES_MIN_COUNT


async def test_the_task_sleeps_until_the_next_deadline_and_notices_an_earlier_one(autojump_clock: MockClock) -> None:
    fired: list[tuple[str, float]] = []
    queue = TimerQueue()
    late = Timer(lambda: fired.append(("late", trio.current_time())))
    early = Timer(lambda: fired.append(("early", trio.current_time())))
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.run)
        queue.set_after(late, 100)
        await wait_all_tasks_blocked()
        queue.set_after(early, 10)
        await trio.sleep(1000)
        nursery.cancel_scope.cancel()
    assert fired == [("early", start + 10), ("late", start + 100)]
