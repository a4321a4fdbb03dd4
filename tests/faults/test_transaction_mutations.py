"""What a broker must not do with transactions, done on purpose: some short seed of the simulation has to find it."""

from __future__ import annotations

import pytest

from tests.devtools.simulate import run_seed
from tests.devtools.world.transactional.mutations import MUTATIONS

SEEDS_MAX_COUNT = 200  # as many as the default run has


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found_by_a_short_seed(mutation: str) -> None:
    seeds = range(1, SEEDS_MAX_COUNT + 1)
    found = next((seed for seed in seeds if run_seed(seed, is_short=True, mutation=mutation).problems), None)
    print(f"{mutation}: found by seed {found}")
    assert found is not None
