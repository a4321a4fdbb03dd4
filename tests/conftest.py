"""Seeds trio's scheduler and `random` before each test, so that a failure comes again when it is run again.

TEST_SEED chooses another order of tasks for all tests than the default; it is printed. With the default, Hypothesis
tries the same examples in each run.
"""

from __future__ import annotations

import os
import random

import hypothesis
import pytest

from kafscale.testing.determinism import seed_scheduler

DEFAULT_SEED = "0"
SEED = os.environ.get("TEST_SEED", DEFAULT_SEED)

hypothesis.settings.register_profile("seeded", derandomize=SEED == DEFAULT_SEED)
hypothesis.settings.load_profile("seeded")


def pytest_report_header() -> str:
    return f"TEST_SEED={SEED}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    seed_scheduler(f"{SEED} {item.nodeid}")
    random.seed(f"{SEED} {item.nodeid}")
