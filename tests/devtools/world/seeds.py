"""How many seeds of a test each run tries, and how many more `make test-faults` does."""

from __future__ import annotations

import pytest


def seeds(count: int, *, more: int) -> list[object]:
    """Return the seeds 0 to `count` + `more`, for `parametrize`; the last ones are marked `faults`."""
    return [*range(count), *(pytest.param(seed, marks=pytest.mark.faults) for seed in range(count, count + more))]
