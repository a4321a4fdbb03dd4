"""A load, and the parts that it is made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from bench.brokers import RunningBroker, Startable
from bench.figures import Figures, Reading, Result, median_of
from bench.options import RunOptions
from bench.peers.names import BEFORE, NO_BROKERS, OWN, OWN_TWO
from bench.runner import Runner

TOPIC_SECONDS = 4.0  # to make a topic, to have what was written on the disk, and to remove it; guessed for estimates


@attrs.frozen(kw_only=True)
class Task:
    """`run(load)` in the process of the clients. `warm_up` is what goes before, if anything."""

    run: Callable[[Any], Figures]
    load: Any
    warm_up: Any = None


@attrs.frozen(kw_only=True)
class Context:
    """The input of a task: the broker, the options, and all results so far."""

    runner: Runner
    startable: Startable | None
    broker: RunningBroker
    options: RunOptions
    results: Sequence[Result]

    def timed(self, run: Callable[[Any], Figures], load: Any) -> Task:
        """A load that takes its time as `seconds`."""
        return Task(
            run=run,
            load=attrs.evolve(load, seconds=self.options.seconds),
            warm_up=attrs.evolve(load, seconds=self.options.warm_up_seconds),
        )

    def median(self, load: str, broker: str, reading: Reading) -> float | None:
        """Return the median of the results so far; None without any."""
        return median_of(self.results, load, broker, reading)


@attrs.frozen(kw_only=True)
class Load:
    """A load for brokers. `task` returns None if it takes a share of a load that was not measured.

    partitions: of the empty topic that is made for it; 0 for none, and no broker either.
    serve_options: of a broker of ours that is started for such loads alone.
    also_at, only_at: names of brokers; without them a load is for all that are brokers.
    is_from_memory: what it reads was not flushed, and must not be.
    share_of: a load, and its broker if it is not the same one, that must come before.
    follows_leaders: whether its clients look for the leader of each partition, so that brokers may be several.
    extra_seconds: what it takes besides its time and the warm-up, and the factor of its time, for estimates.
    """

    name: str
    partitions: int
    task: Callable[[Context], Task | None]
    serve_options: Sequence[str] = ()
    also_at: Sequence[str] = ()
    only_at: Sequence[str] = ()
    is_from_memory: bool = False
    share_of: tuple[str, str | None] | None = None
    follows_leaders: bool = False
    extra_seconds: float = TOPIC_SECONDS
    times: float = 1.0

    def is_for(self, broker: str) -> bool:
        if self.only_at:
            return broker in self.only_at or (broker == BEFORE and OWN in self.only_at)
        if broker == OWN_TWO:
            return self.follows_leaders
        return broker not in NO_BROKERS or broker in self.also_at

    def estimated_seconds(self, options: RunOptions) -> float:
        """Return how long it takes, about."""
        return options.seconds * self.times + options.warm_up_seconds + self.extra_seconds
