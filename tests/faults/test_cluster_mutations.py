"""What a broker of several must not do, done on purpose: some seed of the simulation has to find it.

As of the simulation in which a broker with a full disk has others lead, seed 1 finds each of those that any seed may
find. Of those that storms find, seed 98, the 13th, finds late segments; of those that short successions find, seed 875,
the 13th, finds deletions without a look, and seed 410, the 8th, that nobody knows where epochs began, since the
controller commits that for others. Seed 1 also finds a broker that ends by the first error.
"""

from __future__ import annotations

from itertools import islice

import pytest

from tests.devtools.simulate import run_seed
from tests.devtools.world.cluster_mutations import IN_SUCCESSIONS, MUTATIONS, seeds_for

SEEDS_MAX_COUNT = 80


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found_by_a_seed(mutation: str) -> None:
    seeds = islice(seeds_for(mutation), SEEDS_MAX_COUNT)
    is_short = mutation in IN_SUCCESSIONS
    found = next(
        (seed for seed in seeds if run_seed(seed, of_cluster=True, is_short=is_short, mutation=mutation).problems), None
    )
    print(f"{mutation}: found by seed {found}")
    assert found is not None
