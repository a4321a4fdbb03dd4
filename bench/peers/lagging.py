"""A live producer beside a consumer that is far behind."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import attrs

from bench.fetch_load import FetchLoad, run_fetch
from bench.figures import Figures
from bench.produce_load import ProduceLoad, run_produce

LONGER_SECONDS = 60  # than the producer; then it is ended


@attrs.frozen(kw_only=True)
class LaggingLoad:
    """A live producer, and a consumer that reads the same partition from its beginning, again and again."""

    live: ProduceLoad
    lagging: FetchLoad
    seconds: float


def run_lagging(load: LaggingLoad) -> Figures:
    """Return what the producer saw; the consumer has a process of its own. Raises RuntimeError if that one ends."""
    with _beside(partial(run_fetch, attrs.evolve(load.lagging, seconds=load.seconds + LONGER_SECONDS))):
        return run_produce(attrs.evolve(load.live, seconds=load.seconds))


@contextmanager
def _beside(run: Callable[[], object]) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=run)
    process.start()
    try:
        yield
        if process.exitcode is not None:
            raise RuntimeError("the lagging consumer failed")
    finally:
        process.terminate()
        process.join()
