"""`python -m bench.create_topics`: many topics created by one request, by the registry on a local metadata store.

Each round has a new directory. Shown are the time that the request takes, and the CPU time of the process meanwhile. A
round more, which is not timed, shows the memory of Python's objects: the most meanwhile, and what is kept afterwards.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import click
import trio

from kafscale.cluster.metadata.group_commit import GroupCommit
from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
from kafscale.cluster.registries.topics import NewTopic, Topic, TopicRegistry
from kafscale.config import Limits, Settings


@attrs.frozen(kw_only=True)
class Creation:
    """The cost of one request."""

    seconds: float
    cpu_seconds: float


@click.command()
@click.option("--topics", "topic_count", default=10_000, show_default=True)
@click.option("--rounds", "round_count", default=7, show_default=True)
def main(*, topic_count: int, round_count: int) -> None:
    """Create the topics again and again, and show the least and the median cost."""
    rounds = []
    for _ in range(round_count):
        with tempfile.TemporaryDirectory(prefix="kafscale-bench-") as directory:
            rounds.append(trio.run(create_topics, Path(directory), topic_count))
    click.echo(f"seconds: {_shown([round.seconds for round in rounds])}")
    click.echo(f"CPU seconds: {_shown([round.cpu_seconds for round in rounds])}")
    with tempfile.TemporaryDirectory(prefix="kafscale-bench-") as directory:
        most, kept = trio.run(trace_memory, Path(directory), topic_count)
    click.echo(f"MiB: at most {most / (1 << 20):.2f}, kept {kept / (1 << 20):.2f}")


def _shown(figures: Sequence[float]) -> str:
    return f"least {min(figures):.3f}, median {statistics.median(figures):.3f}"


@asynccontextmanager
async def open_topics(directory: Path, topic_count: int) -> AsyncIterator[TopicRegistry]:
    """Open an empty registry for a number of topics."""
    async with SqliteMetadataStore.open(directory / "metadata.db") as local, trio.open_nursery() as nursery:
        store = GroupCommit(local)
        await nursery.start(store.run)
        settings = Settings(limits=Limits(max_topics_count=topic_count, max_partitions_count=topic_count))
        topics = TopicRegistry(store=store, settings=settings)
        await topics.load()
        yield topics
        nursery.cancel_scope.cancel()


def _wanted(topic_count: int) -> Sequence[NewTopic]:
    return [NewTopic(name=f"topic-{number:05d}", partition_count=1) for number in range(topic_count)]


async def create_topics(directory: Path, topic_count: int) -> Creation:
    """Create the topics by one call, and measure that."""
    async with open_topics(directory, topic_count) as topics:
        wanted = _wanted(topic_count)
        gc.collect()
        began, cpu_began = time.perf_counter(), time.process_time()
        outcomes = await topics.create(wanted)
        taken = Creation(seconds=time.perf_counter() - began, cpu_seconds=time.process_time() - cpu_began)
    assert all(isinstance(outcome, Topic) for outcome in outcomes), "not every topic was created"
    return taken


async def trace_memory(directory: Path, topic_count: int) -> tuple[int, int]:
    """The bytes that Python's objects take at most while the topics are created, and those that are kept then."""
    async with open_topics(directory, topic_count) as topics:
        wanted = _wanted(topic_count)
        gc.collect()
        tracemalloc.start()
        outcomes = await topics.create(wanted)
        del outcomes
        gc.collect()
        kept, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return most, kept


if __name__ == "__main__":
    main()
