"""The long suites do what CONTRIBUTING says of them."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

from tests.faults import test_cluster_simulation
from tests.faults.test_simulation import SEEDS, SHORT_SEEDS
from tests.faults.test_transactional_kills import TRANSACTIONAL_KILLS_COUNT

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_contributing_names_the_seeds_and_the_kills() -> None:
    text = " ".join(PAGE.read_text().split())
    assert f"of which `make test` has {len(SEEDS)}, and {len(SHORT_SEEDS)} short ones" in text
    assert f"and {len(test_cluster_simulation.SHORT_SEEDS)} short ones of several brokers" in text
    assert f"{TRANSACTIONAL_KILLS_COUNT} times under transactions in each durability mode" in text


def test_missing_pythons_are_listed_and_none_found_is_a_failure() -> None:
    command = ["make", "--no-print-directory", "test-pythons", "PYTHONS=3.98 3.99"]  # also below `make test`
    done = subprocess.run(command, cwd=PAGE.parent, capture_output=True, text=True, check=False)
    assert done.stdout == "Python: passed on none, failed on none, not installed: 3.98 3.99.\n"
    assert done.returncode != 0


def test_tested_python_versions_match_the_promised_ones() -> None:
    project = tomllib.loads((PAGE.parent / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    promised = [each.removeprefix(prefix[:-2]) for each in project["classifiers"] if each.startswith(prefix)]
    makefile = (PAGE.parent / "Makefile").read_text()
    assert f"PYTHONS ?= {' '.join(promised)}\n" in makefile
    assert project["requires-python"] == f">={promised[0]}"
