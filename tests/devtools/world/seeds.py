"""Numbers of seeds that each run tries, and that `make test-faults` tries in addition."""

from __future__ import annotations

import pytest


def seeds(count: int, *, more: int) -> list[object]:
    """Return the seeds 0 to `count` + `more`, for `parametrize`; the last `more` are marked `faults`."""
    return [*range(count), *(pytest.param(seed, marks=pytest.mark.faults) for seed in range(count, count + more))]
