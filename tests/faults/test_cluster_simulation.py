"""Seeds of the simulation of several brokers on one bucket; `make test-cluster-simulation SEEDS=…` runs others.

`make test-faults` runs all that have ever failed, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import pytest

from kafscale.config import Durability
from tests.devtools.simulate import run_seeds

# Of seeds 1 to 80 these have all pairs of their settings (durability, clients, weather, machines, loss of the store,
# merges, delays), and run all branches of the broker that the first 27 run; 0.4 seconds of CPU each.
SHORT_SEEDS = (
    *(1, 2, 3, 5, 7, 8, 9, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 25, 26, 27, 28, 30, 37, 44, 45, 52, 56, 57),
    *(59, 61, 62, 71, 72),
)
MORE_SHORT_SEEDS_COUNT = 500  # of the slow suite
SEEDS_COUNT = 12  # of it, too: four seconds each
PROCESSES_COUNT = min(2, len(os.sched_getaffinity(0)))
# What a seed does changes with the code, so what each has found has a test of its own too, named after it.
SEEDS_THAT_FAILED = [
    19,  # a move that was noted while nobody waited is never made
    21,  # brokers that are started at once the first time claim the bucket from each other without end
    3002,  # the fifth batch of a producer is taken for its first, as the partition was opened behind the fourth
    14,  # the last flush before an epoch without records is taken for late, as a reply was cut off: it is lost
    *(17, 26),  # a transaction that began while a clock was ahead stays open for as long as that was
    2009,  # a broker that was declared dead while it was suspended tells a consumer to begin anew
]
SHORT_SEEDS_THAT_FAILED = [
    168,  # a topic is deleted while a partition of it is being handed over, which ends the broker
]


def run_and_check(seeds: Sequence[int], *, is_short: bool = False) -> None:
    outcomes = list(run_seeds(seeds, PROCESSES_COUNT, of_cluster=True, is_short=is_short))
    assert {outcome.seed: list(outcome.problems) for outcome in outcomes if outcome.problems} == {}
    acknowledged, committed = Counter[str](), Counter[str]()
    for outcome in outcomes:
        acknowledged[outcome.durability] += outcome.acknowledged_count
        committed[outcome.durability] += outcome.committed_count
    records_min_count, transactions_min_count = (50, 1) if is_short else (100, 2)
    for durability in Durability:  # otherwise nothing was tried
        assert acknowledged[durability] > records_min_count * len(outcomes) / len(Durability), durability
        assert committed[durability] > transactions_min_count * len(outcomes) / len(Durability), durability


@pytest.mark.timeout(600)  # half a minute, where nobody else uses the machine
def test_no_short_seed_of_several_brokers_loses_or_reorders_acknowledged_records() -> None:
    run_and_check(SHORT_SEEDS, is_short=True)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_no_seed_of_several_brokers_that_ever_failed_or_many_others_do() -> None:
    run_and_check([*range(1, SEEDS_COUNT + 1), *(seed for seed in SEEDS_THAT_FAILED if seed > SEEDS_COUNT)])


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_no_short_seed_of_several_brokers_that_ever_failed_or_many_others_do() -> None:
    known = [seed for seed in SHORT_SEEDS_THAT_FAILED if seed > MORE_SHORT_SEEDS_COUNT]
    more = sorted({*range(1, MORE_SHORT_SEEDS_COUNT + 1)} - {*SHORT_SEEDS})
    run_and_check([*more, *known], is_short=True)
