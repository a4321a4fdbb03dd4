"""Seeds trio's scheduler and `random` before each test, so that a failure comes again when it is run again.

TEST_SEED chooses another order of tasks for all tests than the default; it is printed. With the default, Hypothesis
tries the same examples in each run. How long an example takes says how busy the machine is, and fails nothing.
"""

from __future__ import annotations

import gc
import os
import random
import sys

import hypothesis
import pytest

from tests.devtools.world.determinism import seed_scheduler

COLLECTED_AFTER_COUNT = 200_000  # objects; by default collections take a sixth of the time, after 50,000 a twentieth
DEFAULT_SEED = "0"
UMASK = 0o022  # what most shells have
LONG_FIRST = ("tests/faults/", "tests/process/", "tests/clients/", "tests/hostile/")  # a third of the time
SEED = os.environ.get("TEST_SEED", DEFAULT_SEED)

# Hundreds of brokers and commands are started. Each would compile all of its modules anew, a third of its start.
os.environ["KAFSCALE_CONSOLE"] = "none"  # its address is one for all brokers
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

hypothesis.settings.register_profile("seeded", derandomize=SEED == DEFAULT_SEED, deadline=None)
hypothesis.settings.load_profile("seeded")


def pytest_report_header() -> str:
    return f"TEST_SEED={SEED}"


def pytest_configure() -> None:
    """Collect no garbage while tests are collected: nearly all objects that are made then stay."""
    gc.set_threshold(COLLECTED_AFTER_COUNT, 10, 10)
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long and has few tests: at the end one worker would be at it by itself.

    Workers are given files in this order, by `--no-loadscope-reorder`; by default those of most tests come first.
    """
    order = {directory: place for place, directory in enumerate(LONG_FIRST)}
    items.sort(key=lambda item: order.get(f"{'/'.join(item.nodeid.split('/')[:2])}/", len(order)))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Have files made as by a shell: a command in this process may have kept others from its files for good."""
    os.umask(UMASK)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of a file: what it has left in caches stays, too."""
    if nextitem is None or nextitem.path != item.path:
        keep_for_good()


def keep_for_good() -> None:
    """Free what is garbage by now; no later collection looks at what is left, which is modules and tests by far.

    A seeded run of trio begins with a collection, which would take longer than many a run.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    seed_scheduler(f"{SEED} {item.nodeid}")
    random.seed(f"{SEED} {item.nodeid}")
