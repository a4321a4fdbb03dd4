"""Seeds of the simulation: crashes, torn writes and a failing store, in one process on an autojump clock.

FAULTS_SEED chooses the first seed (printed when one fails), FAULTS_SIMULATIONS how many.
"""

from __future__ import annotations

import os

from kafscale.testing.simulation import simulate

FIRST_SEED = int(os.environ.get("FAULTS_SEED", "1"))
SEEDS_COUNT = int(os.environ.get("FAULTS_SIMULATIONS", "50"))


def test_no_seed_loses_repeats_or_reorders_what_was_acknowledged() -> None:
    acknowledged_count = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_COUNT):
        simulation = simulate(seed)
        assert [*map(str, simulation.history.anomalies()), *simulation.faults] == [], f"FAULTS_SEED={seed}"
        acknowledged_count += simulation.history.acknowledged_count
    assert acknowledged_count > 100 * SEEDS_COUNT  # otherwise nothing was tried
