"""What the README says of the long suites is what they do."""

from __future__ import annotations

from pathlib import Path

from tests.faults import test_cluster_simulation
from tests.faults.test_simulation import SEEDS_COUNT, SHORT_SEEDS_COUNT
from tests.faults.test_transactional_kills import TRANSACTIONAL_KILLS_COUNT

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_names_the_seeds_and_the_kills() -> None:
    text = " ".join(README.read_text().split())
    assert f"of which `make test` has {SEEDS_COUNT}, and {SHORT_SEEDS_COUNT} short ones" in text
    assert f"and {test_cluster_simulation.SHORT_SEEDS_COUNT} short ones of several brokers" in text
    assert f"{TRANSACTIONAL_KILLS_COUNT} times under transactions in each durability mode" in text
