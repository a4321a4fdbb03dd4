"""`python -m bench.hedging`: what second attempts at slow uploads give a producer in `s3-wal`, in simulated time.

A producer appends a small batch 20 times a second for ten minutes, and each waits until the object of the write-ahead
log that has it is in the bucket, and those before it. What a PUT takes is drawn: tens of milliseconds for nearly all of
them, and seconds for a share of stragglers, half of which have had their effect and only answer late. Amazon says of S3
that median latencies are in the tens of milliseconds, and advises to repeat a small PUT after two seconds ("Timeouts
and Retries for Latency-Sensitive Applications"). In a brownout every PUT takes ten times as long for two minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import attrs
import click
import trio
import trio.testing
from rich.table import Table

from bench.figures import percentile
from bench.report import console, save
from kafscale.buffers import Buffer
from kafscale.config import Durability
from kafscale.metrics import Metrics
from kafscale.store.base import ForwardingStore, ObjectStore
from kafscale.store.memory import MemoryStore
from kafscale.store.wrappers.hedging import HedgingStore
from kafscale.store.wrappers.limiter import LimitedStore, StoreLimiter, WorkClass
from kafscale.store.wrappers.metered import MeteredStore, StoreMetrics
from kafscale.store.wrappers.retrying import RetryingStore, RetryPolicy
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import MemoryLog, memory_log

SECONDS = 600
APPENDS_PER_SECOND = 20
MEDIAN_SECONDS = 0.03
SIGMA = 0.35  # of the logarithm: 99 of 100 take less than 68 ms
STRAGGLER_SECONDS = (1.0, 5.0)
STRAGGLER_SHARES = (0.0, 0.001, 0.003, 0.01, 0.03)
BROWNOUT = (200.0, 320.0)
BROWNOUT_FACTOR = 10
PERCENTILES = (0, 99)  # of s3_hedge_percentile: off, and the default
CONCURRENCY = 64


@attrs.define(eq=False, kw_only=True)
class TailStore(ForwardingStore):
    """A store whose conditional PUTs take times from `random`."""

    random: Random
    straggler_share: float
    has_brownout: bool
    puts_count: int = 0

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        self.puts_count += 1
        seconds = MEDIAN_SECONDS * math.exp(self.random.gauss(0, SIGMA))
        answers_late = False
        if self.random.random() < self.straggler_share:
            seconds = self.random.uniform(*STRAGGLER_SECONDS)
            answers_late = self.random.random() < 0.5
        if self.has_brownout and BROWNOUT[0] <= trio.current_time() < BROWNOUT[1]:
            seconds *= BROWNOUT_FACTOR
        await trio.sleep(MEDIAN_SECONDS if answers_late else seconds)
        etag = await self.store.put_if_absent(key, parts)
        if answers_late:
            await trio.sleep(seconds)
        return etag


@attrs.frozen(kw_only=True)
class Row:
    """One run."""

    stragglers_percent: float
    brownout: bool
    hedge_percentile: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    puts: int
    hedges: int
    hedges_won: int


def wrapped(raw: ObjectStore, percent: int, metrics: StoreMetrics) -> ObjectStore:
    """Wrap a store as `kafscale.store.opening.opening` does for requests that producers wait for."""
    limiter = StoreLimiter(CONCURRENCY, metrics)
    store: ObjectStore = MeteredStore(raw, metrics)
    if percent:
        store = HedgingStore(store, limiter, metrics, percent)
    view = LimitedStore(store, limiter, WorkClass.ACKNOWLEDGE)
    return RetryingStore(view, RetryPolicy(), Random(2), metrics)


async def run(straggler_share: float, has_brownout: bool, percent: int) -> Row:
    """Ten minutes."""
    metrics = StoreMetrics.register(Metrics())
    tail = TailStore(MemoryStore(), random=Random(1), straggler_share=straggler_share, has_brownout=has_brownout)
    latencies: list[float] = []
    unflushed: dict[str, Any] = {"flush_interval_seconds": 1e6, "s3_wal_flush_objects_count": 0}
    store = wrapped(tail, percent, metrics)
    async with memory_log(store, MemoryDisk(), durability=Durability.S3_WAL, **unflushed) as log:
        tail.puts_count = 0
        async with trio.open_nursery() as nursery:
            for _ in range(SECONDS * APPENDS_PER_SECOND):
                nursery.start_soon(append, log, latencies)
                await trio.sleep(1 / APPENDS_PER_SECOND)
        puts_count = tail.puts_count
    latencies.sort()
    p50, p99, p999 = (percentile(latencies, fraction) * 1000 for fraction in (0.5, 0.99, 0.999))
    return Row(
        stragglers_percent=straggler_share * 100,
        brownout=has_brownout,
        hedge_percentile=percent,
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
        max_ms=latencies[-1] * 1000,
        puts=puts_count,
        hedges=int(metrics.hedges.of("started").value),
        hedges_won=int(metrics.hedges.of("won").value),
    )


async def append(log: MemoryLog, latencies: list[float]) -> None:
    """One batch, until it is acknowledged."""
    began = trio.current_time()
    await log.append(log.partition(), b"x" * 100)
    latencies.append(trio.current_time() - began)


def runs() -> list[Row]:
    """All of them, each with a clock of its own."""
    cases = [(share, False) for share in STRAGGLER_SHARES] + [(0.003, True)]
    return [
        trio.run(run, *case, percent, clock=trio.testing.MockClock(autojump_threshold=0))
        for case in cases
        for percent in PERCENTILES
    ]


@click.command()
def main() -> None:
    """Show what hedging is worth to a producer, and what it costs."""
    rows = runs()
    table = Table(title="until a produce is acknowledged in s3-wal")
    for heading in (field.name for field in attrs.fields(Row)):
        table.add_column(heading.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.1f}" if isinstance(value, float) else str(value) for value in attrs.astuple(row)))
    console().print(table)
    click.echo(save("hedging", rows, {"seconds": SECONDS}))


if __name__ == "__main__":
    main()
