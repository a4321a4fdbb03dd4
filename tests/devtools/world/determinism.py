"""Runs of trio in which everything follows from a seed: the order of tasks, random values, identifiers, both clocks.

trio runs ready tasks in a random order. Its private flag for Hypothesis makes it sort them first and shuffle them by a
generator that can be seeded; the development dependencies pin trio for that. During the run `random`, `os.urandom` (so
`uuid4`) and `time.time_ns` are replaced, functions for `trio.to_thread.run_sync` run without a thread, the machine
seems never to be suspended, and the garbage collector is off, since finalizers may run code. The code must not iterate
over sets of strings or objects, nor order by `id`. A test compares event logs of processes with different hash seeds.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, MutableSequence
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar, cast

import pytest
import trio
import trio.testing
from trio._core import _run as _trio_run

from kafscale.concurrency import clocks
from tests.devtools.world.simulated_process import clock_skew_ns

T = TypeVar("T")

WALL_CLOCK_START_NS = 1_700_000_000_000_000_000  # where the wall clock stands when a run begins


class _Shuffler(Random):
    """Draws nothing for one task, the most frequent case; otherwise shuffles as `Random` does."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        draw = self.getrandbits
        for last in range(len(x) - 1, 0, -1):
            bits_count = (last + 1).bit_length()
            while (chosen := draw(bits_count)) > last:
                pass
            x[last], x[chosen] = x[chosen], x[last]


def seed_scheduler(seed: object) -> None:
    _trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc] # as trio's own plugin for Hypothesis does
    _trio_run._r.seed(str(seed))


def run_seeded(seed: object, async_fn: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run `trio.run` on an autojump clock, with everything seeded. Raises the error of `async_fn`."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    clock.current_time = lambda: clock._virtual_base  # type: ignore[method-assign] # it need not ask the real clock

    async def run() -> T:
        _run_without_instruments()
        return await async_fn(*args)

    with _determined(seed, clock), replaced(clocks, "_asleep_seconds", lambda: 0.0):
        return trio.run(run, clock=clock)


def _run_without_instruments() -> None:
    """Give trio a dict of instruments: its own mapping is slow, and used at every step."""
    runner = _trio_run.GLOBAL_RUN_CONTEXT.runner
    runner.instruments = cast(Any, runner.instruments.data)


@contextmanager
def _determined(seed: object, clock: trio.testing.MockClock) -> Iterator[None]:
    system_random = Random(f"system {seed}")
    before = random.getstate(), os.urandom, time.time_ns, trio.to_thread.run_sync, gc.isenabled(), _trio_run._r
    gc.collect()
    gc.disable()
    _trio_run._r = _Shuffler()
    seed_scheduler(seed)
    random.seed(str(seed))
    os.urandom = system_random.randbytes
    trio.to_thread.run_sync = run_here
    time.time_ns = lambda: WALL_CLOCK_START_NS + int(clock._virtual_base * 1e9) + clock_skew_ns()
    try:
        yield
    finally:
        state, os.urandom, time.time_ns, trio.to_thread.run_sync, collects, _trio_run._r = before
        random.setstate(state)
        if collects:
            gc.enable()


async def run_here(sync_fn: Callable[..., T], *args: object, **options: object) -> T:
    """Run a function here, in place of `trio.to_thread.run_sync`: an autojump clock would not wait for a thread."""
    await trio.lowlevel.checkpoint()
    return sync_fn(*args)


def seeds(count: int, *, more: int) -> list[object]:
    """Return the seeds 0 to `count` + `more`, for `parametrize`; the last `more` are marked `faults`."""
    return [*range(count), *(pytest.param(seed, marks=pytest.mark.faults) for seed in range(count, count + more))]


@contextmanager
def replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, before)
