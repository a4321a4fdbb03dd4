"""Runs a load in a process of its own and puts together what its client and its broker have to say."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

import attrs

from bench.brokers import RunningBroker
from bench.figures import Figures, Result
from bench.processes import Stolen

L = TypeVar("L")
T = TypeVar("T")
P = ParamSpec("P")


def _new_pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


@attrs.define(eq=False)
class Runner:
    """One process for all loads, so that each begins with a warm client."""

    _pool: ProcessPoolExecutor = attrs.field(factory=_new_pool, init=False)

    def send(self, run: Callable[[L], Figures], load: L) -> Figures:
        """Run a load whose broker is not watched, such as a warm-up."""
        return self.call(run, load)

    def call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return what a function does in the process of the loads."""
        return self._pool.submit(function, *arguments, **named).result()

    def measure(self, run: Callable[[L], Figures], load: L, broker: RunningBroker, *, point: str, round: int) -> Result:
        """Run a load and take the difference of what the broker had used before and after it."""
        before, stolen_before = broker.usage(), Stolen.now()
        figures = self.send(run, load)
        after, stolen_after = broker.usage(), Stolen.now()
        return Result(
            broker=broker.name,
            point=point,
            round=round,
            figures=figures,
            cpu_seconds=_difference(after.cpu_seconds, before.cpu_seconds),
            rss_mib=broker.rss_mib(),
            syncs=_whole(_difference(after.syncs, before.syncs)),
            puts=_whole(_difference(after.puts, before.puts)),
            gets=_whole(_difference(after.gets, before.gets)),
            steal_percent=stolen_after.percent_since(stolen_before),
        )

    def renew(self) -> None:
        """Start another process after a failed load, as its own may be gone."""
        self._pool.shutdown()
        self._pool = _new_pool()

    def close(self) -> None:
        self._pool.shutdown()


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
