"""How long a rebalance waits for members to join."""

from __future__ import annotations

import attrs
import pytest

from kafscale.cluster.groups.classic.members import JoinTime
from kafscale.concurrency.timers import TimerQueue
from kafscale.config import CoordinatorSettings, Settings
from tests.cluster.groups.classic_groups import GroupHarness, result


@attrs.define(eq=False)
class Clock:
    """A join time by itself, on a clock that the test moves."""

    seconds: float = 0.0
    up_at: list[float] = attrs.field(factory=list)
    timers: TimerQueue = attrs.field(init=False)
    join_time: JoinTime = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.timers = TimerQueue(lambda: self.seconds)
        self.join_time = JoinTime(
            initial_delay_ms=3000, timers=self.timers, is_up=lambda: self.up_at.append(self.seconds)
        )

    def advance(self, seconds: float) -> None:
        end = self.seconds + seconds
        while self.timers.next_deadline <= end:
            self.seconds = max(self.seconds, self.timers.next_deadline)
            self.timers.fire_due()
        self.seconds = end


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_members_that_are_waited_for_have_the_rebalance_timeout(clock: Clock) -> None:
    clock.join_time.wait(60_000)
    clock.join_time.newcomer()
    assert clock.join_time.is_set
    assert not clock.join_time.gathers
    clock.advance(100)
    assert clock.up_at == [60]
    assert not clock.join_time.is_set


def test_gathering_ends_when_no_more_members_join(clock: Clock) -> None:
    clock.join_time.gather(60_000)
    assert clock.join_time.gathers
    clock.advance(2)
    clock.join_time.newcomer()
    clock.advance(100)
    assert clock.up_at == [6]


def test_gathering_ends_at_the_rebalance_timeout_despite_newcomers(clock: Clock) -> None:
    clock.join_time.gather(7_000)
    for _ in range(20):
        clock.advance(0.5)
        clock.join_time.newcomer()
    assert clock.up_at == [7]


def test_a_newcomer_of_a_former_gathering_does_not_extend_the_next_one(clock: Clock) -> None:
    clock.join_time.gather(60_000)
    clock.join_time.newcomer()
    clock.join_time.end()
    assert not clock.join_time.gathers
    clock.advance(1)
    clock.join_time.gather(60_000)
    clock.advance(100)
    assert clock.up_at == [4]


def test_no_deadline_fires_after_gathering_has_ended(clock: Clock) -> None:
    clock.join_time.gather(60_000)
    clock.join_time.end()
    clock.advance(100)
    assert clock.up_at == []


def test_the_initial_delay_gathers_members() -> None:
    harness = GroupHarness(settings=Settings(coordinator=CoordinatorSettings(group_initial_rebalance_delay_ms=3000)))
    first = harness.join()
    harness.advance(2.9)
    second = harness.join()  # extends the delay
    harness.advance(2.9)
    assert not first.is_set
    harness.advance(0.2)

    assert result(first).generation_id == result(second).generation_id == 1


def test_the_initial_delay_is_extended_up_to_the_rebalance_timeout() -> None:
    harness = GroupHarness(settings=Settings(coordinator=CoordinatorSettings(group_initial_rebalance_delay_ms=3000)))
    first = harness.join(rebalance_timeout_ms=10_000)
    for _ in range(9):
        harness.advance(1)
        harness.join(rebalance_timeout_ms=10_000)
    assert not first.is_set
    harness.advance(1)

    assert len(result(first).members) == 10
