from __future__ import annotations

from itertools import pairwise

from kafscale.console import samples
from kafscale.console.samples import STEP_SECONDS, STEPS_COUNT, Samples, Series

A, B = ("a", 0), ("b", 0)


def test_a_series_keeps_the_last_value_of_each_step_for_an_hour() -> None:
    series = Series()
    for second in range(2 * 3600):
        series.put(float(second), float(second))
    values = series.last_hour(7199.0)
    assert len(values) == STEPS_COUNT
    assert values[-3:] == [7179.0, 7189.0, 7199.0]
    assert values[0] == 7199.0 - 3600
    assert all(before is not None and after == before + STEP_SECONDS for before, after in pairwise(values))


def test_steps_without_a_sample_are_gaps_and_old_values_do_not_come_back() -> None:
    series = Series()
    series.put(5.0, 1.0)
    series.put(45.0, 2.0)
    assert series.last_hour(60.0)[-7:] == [1.0, None, None, None, 2.0, None, None]
    assert set(series.last_hour(5.0 + 3 * 3600)) == {None}
    series.put(5.0 + 3 * 3600, 3.0)
    assert series.last_hour(5.0 + 3 * 3600) == [None] * (STEPS_COUNT - 1) + [3.0]


def test_a_value_that_is_too_old_is_not_the_latest() -> None:
    series = Series()
    series.put(0.0, 1.0)
    assert series.latest(20.0) == 1.0
    assert series.latest(30.0) is None


def test_groups_are_sampled_for_an_hour_after_they_were_shown_and_are_bounded() -> None:
    kept = Samples()
    kept.show(["first"], 0.0)
    kept.put_lag("first", 0.0, 1.0)
    kept.put_lag("never shown", 0.0, 1.0)
    assert list(kept.lags) == ["first"]
    assert kept.wanted(3600.0) == ["first"]
    assert kept.wanted(3601.0) == []
    assert kept.lags == {}
    for number in range(samples.GROUPS_MAX_COUNT + 1):
        kept.show([f"g{number}"], 4000.0)
        kept.put_lag(f"g{number}", 4000.0, 1.0)
    assert "g0" not in kept.lags
    assert len(kept.lags) == len(kept.wanted(4000.0)) == samples.GROUPS_MAX_COUNT


def test_throughput_comes_from_ends() -> None:
    kept = Samples()
    kept.put_ends({A: 100, B: 7}, 1000.0)
    assert kept.throughput.latest(1000.0) is None
    kept.put_ends({A: 150, B: 7}, 1010.0)
    assert kept.throughput.latest(1010.0) == 5.0
    assert list(kept.topics) == ["a"]
    kept.put_ends({A: 150, B: 27}, 1020.0)
    assert kept.topics["a"].latest(1020.0) == 0.0
    assert kept.topics["b"].latest(1020.0) == 2.0
    kept.put_ends({A: 0, B: 27}, 1030.0)  # deleted and created again
    assert kept.throughput.latest(1030.0) == 0.0
    kept.put_ends({A: 1000, B: 27}, 1030.0 + samples.GAP_SECONDS + 1)
    assert kept.throughput.latest(1030.0 + samples.GAP_SECONDS + 1) is None
    kept.put_ends({("new", 0): 1000}, 1080.0)
    assert kept.throughput.latest(1080.0, 1) == 0.0  # its records may be old
    assert kept.topics == {}


def test_topics_without_records_make_room() -> None:
    kept = Samples()
    places = [(f"t{number}", 0) for number in range(samples.TOPICS_MAX_COUNT + 1)]
    kept.put_ends(dict.fromkeys(places, 0), 0.0)
    kept.put_ends(dict.fromkeys(places, 10), 10.0)
    assert len(kept.topics) == samples.TOPICS_MAX_COUNT


def test_a_lag_that_grows_each_minute_is_named() -> None:
    kept = Samples()
    kept.show(["growing", "steady", "new"], 0.0)
    for second in range(0, 301, STEP_SECONDS):
        kept.put_lag("growing", float(second), second)
        kept.put_lag("steady", float(second), 5.0)
    kept.put_lag("new", 300.0, 9.0)
    assert kept.growing(300.0) == {"growing": 300.0}
