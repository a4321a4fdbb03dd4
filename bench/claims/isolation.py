"""Runs an experiment in a process of its own, so that its memory is not mixed up with that of others."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def run_apart(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function of a module, and give back what it returns; both ways must be picklable."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args, kwargs)
