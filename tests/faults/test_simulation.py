"""Seeds of the simulation: a broker and its clients among crashes, takeovers and faults of store, disk and network.

`make test-simulation SEEDS=…` runs others. A seed that has ever failed is kept in SEEDS_THAT_FAILED, which
`make test-faults` runs.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import pytest

from kafscale.config import Durability
from tests.devtools.simulate import run_seed, run_seeds

# Of seeds 1 to 200 these have all pairs of their settings (durability, takeover, watcher, turns, clients, merges,
# delays, flush interval), and run all branches of the broker that the first 116 run; a seventh of a second of CPU each.
SHORT_SEEDS = (
    *(1, 2, 4, 5, 7, 8, 9, 12, 14, 21, 25, 28, 31, 32, 34, 36, 37, 39, 42, 43, 46, 51, 56, 57, 58, 66, 69, 70),
    *(72, 74, 78, 83, 84, 87, 93, 96, 98, 105, 106, 108, 109, 110, 117, 138, 150, 151, 161),
)
MORE_SHORT_SEEDS_COUNT = 200  # of the slow suite
SEEDS = (2, 4, 5, 7, 9, 12)  # two of each durability that commit transactions, two seconds each
MORE_SEEDS_COUNT = 100  # of the slow suite
PROCESSES_COUNT = min(4, len(os.sched_getaffinity(0)))
# What a seed does changes with the code, so what each has found has a test of its own too, named after it.
SEEDS_THAT_FAILED = [
    *(14, 17, 23, 26, 38, 41, 44, 65, 68, 80, 89, 98, 101, 104),  # `segment`: acknowledged after a takeover
    95,  # alike; and a late segment is read instead of one that has been served
    *(100, 2032),  # a superseded broker calls a producer's next batch out of order
    40_085,  # an upload of a broker that was taken over from overlaps newer segments
    *(102_101, 102_599, 102_629),  # a producer's second batch is taken in before its first, which was taken back
    102_331,  # an object of the log in the bucket that arrives when it has been trimmed keeps a broker from starting
    101_114,  # a flush that arrives when what was at its key has been merged is read instead, beside the broker
    1073,  # a read that begins anew passes the last stable offset that its answer tells of
    1175,  # the check took a late segment for the log whose place the successor's, still on its way, took afterwards
    2082,  # the check held a tombstone in a late segment against who had read all before that was the log
    2316,  # a sound segment is quarantined since two replies in a row come cut off
    2319,  # the check missed what was aborted, and compacted away before anybody had read it
    2334,  # the check took what was sent anew, after a loss that a late segment undid, for a duplicate
    50_005,  # the check took what was deleted between two looks at the bucket for passed over
    30_001,  # a fence that arrives when the log in the bucket has been trimmed keeps the next broker from starting
    *(45, 78, 125),  # a static member whose join was not answered is refused by its own instance id
]


def run_and_check(seeds: Sequence[int], *, is_short: bool = False) -> None:
    outcomes = list(run_seeds(seeds, PROCESSES_COUNT, is_short=is_short))
    assert {outcome.seed: list(outcome.problems) for outcome in outcomes if outcome.problems} == {}
    acknowledged, committed = Counter[str](), Counter[str]()
    for outcome in outcomes:
        acknowledged[outcome.durability] += outcome.acknowledged_count
        committed[outcome.durability] += outcome.committed_count
    records_min_count, transactions_min_count = (10, 0.5) if is_short else (50, 0.3)
    for durability in Durability:  # otherwise nothing was tried
        assert acknowledged[durability] > records_min_count * len(outcomes) / len(Durability), durability
        assert committed[durability] > transactions_min_count * len(outcomes) / len(Durability), durability


@pytest.mark.timeout(600)  # a quarter of a minute, where nobody else uses the machine
def test_no_short_seed_loses_repeats_or_reorders_acknowledged_records() -> None:
    run_and_check(SHORT_SEEDS, is_short=True)


@pytest.mark.timeout(600)
def test_no_seed_loses_repeats_or_reorders_acknowledged_records() -> None:
    run_and_check(SEEDS)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_no_seed_that_ever_failed_or_many_others_do() -> None:
    run_and_check([*range(1, MORE_SEEDS_COUNT + 1), *(seed for seed in SEEDS_THAT_FAILED if seed > MORE_SEEDS_COUNT)])


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_no_other_short_seed_loses_repeats_or_reorders_acknowledged_records() -> None:
    run_and_check(sorted({*range(1, MORE_SHORT_SEEDS_COUNT + 1)} - {*SHORT_SEEDS}), is_short=True)


def test_a_failing_seed_reports_its_error_and_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(history: object) -> list[object]:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("tests.devtools.history.history.History.anomalies", fail)
    outcome = run_seed(1)
    assert "planted" in outcome.problems[-1]
    assert any("crashes" in line or "has ended" in line for line in outcome.events)
