"""Deadlines by key."""

import hypothesis
from hypothesis import strategies as st

from kafscale.cluster.transactions.ledger import Timers


def test_a_deadline_is_taken_once_and_in_order() -> None:
    timers = Timers()
    timers.set("late", 30)
    timers.set("early", 10)
    assert timers.next_ms() == 10
    assert [timers.take(9), timers.take(30), timers.take(30), timers.take(99)] == [None, "early", "late", None]
    assert timers.next_ms() is None


def test_a_deadline_that_was_set_later_is_not_taken_at_its_former_time() -> None:
    timers = Timers()
    timers.set("key", 10)
    timers.set("key", 20)
    assert timers.take(19) is None
    assert timers.take(20) == "key"


def test_the_alarms_of_deadlines_that_change_often_do_not_pile_up() -> None:
    timers = Timers()
    for round_ in range(10_000):
        timers.set("key", 1_000_000)
        timers.set("key", 999_999 - round_)
        timers.set("key", None if round_ % 2 else 2_000_000)
    assert len(timers) == 0
    assert timers.alarm_count <= 2 * 1 + 65


@hypothesis.given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 50)), max_size=60))
def test_the_next_deadline_is_the_earliest_after_any_changes(changes: list[tuple[str, int | None]]) -> None:
    timers, expected = Timers(), dict[str, int]()
    for key, deadline_ms in changes:
        timers.set(key, deadline_ms)
        if deadline_ms is None:
            expected.pop(key, None)
        else:
            expected[key] = deadline_ms
        assert timers.next_ms() == min(expected.values(), default=None)
    for time_ms in range(51):
        due = {key for key, each_ms in expected.items() if each_ms == time_ms}
        assert {timers.take(time_ms) for _ in due} == due
        assert timers.take(time_ms) is None
