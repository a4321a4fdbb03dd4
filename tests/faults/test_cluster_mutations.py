"""What a broker of several must not do, done on purpose: some seed of the simulation has to find it.

As of the simulation with transactions, seed 1 finds each of them.
"""

from __future__ import annotations

import pytest

from tests.devtools.cluster.mutations import MUTATIONS
from tests.devtools.simulate import run_seed

SEEDS_MAX_COUNT = 40


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found_by_a_seed(mutation: str) -> None:
    with MUTATIONS[mutation]():
        found = next((seed for seed in range(1, SEEDS_MAX_COUNT + 1) if run_seed(seed, of_cluster=True).problems), None)
    print(f"{mutation}: found by seed {found}")
    assert found is not None
