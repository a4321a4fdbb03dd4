"""Seeds of the simulation of several brokers on one bucket; `make test-cluster-simulation SEEDS=…` runs others.

`make test-faults` runs all that have ever failed, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tests.devtools.simulate import run_seeds

SEEDS_COUNT = 1  # six seconds of CPU
MORE_SEEDS_COUNT = 12  # of the slow suite
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


def run_and_check(seeds: Sequence[int]) -> None:
    outcomes = list(run_seeds(seeds, PROCESSES_COUNT, of_cluster=True))
    assert {outcome.seed: list(outcome.problems) for outcome in outcomes if outcome.problems} == {}
    assert sum(outcome.acknowledged_count for outcome in outcomes) > 100 * len(outcomes)  # otherwise nothing was tried
    assert sum(outcome.committed_count for outcome in outcomes) > 5 * len(outcomes)


@pytest.mark.timeout(600)  # half a minute, where nobody else uses the machine
def test_no_seed_of_several_brokers_loses_repeats_or_reorders_what_was_acknowledged() -> None:
    run_and_check(range(1, SEEDS_COUNT + 1))


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_no_seed_of_several_brokers_that_ever_failed_or_many_others_do() -> None:
    run_and_check([*range(1, MORE_SEEDS_COUNT + 1), *(seed for seed in SEEDS_THAT_FAILED if seed > MORE_SEEDS_COUNT)])
