"""K2: the default never throttles: 6 operations in flight fill 10 Gbit/s, 24 fill 50, and the limit is 64.

Objects of 4 MB go to a store 15 ms away over a line of each rate, in simulated time; the formula is that of a closed
loop: min(rate, n * size / (latency + size / rate)).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import trio
import trio.testing

from bench.claims.claim import Claim, Finding, Variant
from bench.claims.plot import Plot, Point
from kafscale.buffers import Buffer
from kafscale.metrics import Metrics
from kafscale.store.base import ForwardingStore
from kafscale.store.memory import MemoryStore
from kafscale.store.wrappers.limiter import LimitedStore, StoreLimiter
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.retrying import RetryingStore, RetryPolicy
from kafscale.testing.tcp_proxy import Link
from tests.devtools.fakes.simulated_store import SimulatedStore

OBJECT_BYTES = 4_000_000
LATENCY_SECONDS = 0.015
OBJECTS_COUNT = 4_096
CONCURRENCIES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128)
CLAIMED = {10: 6, 50: 24}  # Gbit/s -> operations that fill it
FULL = 0.97


class Nowhere(ForwardingStore):
    """Keeps nothing, so that what is measured is the way there."""

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        return ""


def run() -> Finding:
    variants: list[Variant] = []
    series: dict[str, list[Point]] = {}
    fills: dict[int, int] = {}
    for gbit_per_second in CLAIMED:
        measured = {n: throughput(n, gbit_per_second) for n in CONCURRENCIES}
        off = throughput(0, gbit_per_second)
        full = (n for n in CONCURRENCIES if measured[n] >= FULL * gbit_per_second)
        fills[gbit_per_second] = min(full, default=0)
        for n, found in measured.items():
            expected = formula(n, gbit_per_second)
            figures = {"Gbit/s": found, "formula": expected, "of the line %": 100 * found / gbit_per_second}
            variants.append(Variant(name=f"{gbit_per_second} Gbit/s, {n} at once", figures=figures))
        figures = {"Gbit/s": off, "of the line %": 100 * off / gbit_per_second}
        variants.append(Variant(name=f"{gbit_per_second} Gbit/s, no limit", figures=figures))
        series[f"{gbit_per_second} Gbit/s, measured"] = [Point(n, found) for n, found in measured.items()]
        series[f"~{gbit_per_second} Gbit/s, formula"] = [Point(n, formula(n, gbit_per_second)) for n in measured]
    return Finding(
        ours=", ".join(f"{n} fill {rate} Gbit/s" for rate, n in fills.items()),
        is_shown=fills == CLAIMED,
        variants=variants,
        plot=Plot(
            title=f"Objects of {OBJECT_BYTES / 1e6:g} MB to a store {1000 * LATENCY_SECONDS:g} ms away",
            x_label="operations in flight (--s3-concurrency)",
            y_label="Gbit/s",
            series=series,
        ),
    )


def formula(concurrency: int, gbit_per_second: float) -> float:
    transfer_seconds = OBJECT_BYTES * 8 / (gbit_per_second * 1e9)
    return min(gbit_per_second, concurrency * OBJECT_BYTES * 8 / 1e9 / (LATENCY_SECONDS + transfer_seconds))


def throughput(concurrency: int, gbit_per_second: float) -> float:
    """Return the throughput in Gbit/s with this limit (0: none)."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_throughput, concurrency, gbit_per_second, clock=clock)


async def _throughput(concurrency: int, gbit_per_second: float) -> float:
    metrics = StoreMetrics.register(Metrics())
    link = Link(gbit_per_second * 1e9 / 8)
    simulated = SimulatedStore(Nowhere(MemoryStore()), latency_seconds=LATENCY_SECONDS, link=link)
    limited = LimitedStore(simulated, StoreLimiter(concurrency, metrics))
    store = RetryingStore(limited, RetryPolicy(), Random(0), metrics)
    data = bytes(OBJECT_BYTES)
    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(OBJECTS_COUNT):
            nursery.start_soon(store.put, f"{number}", [data])
    return OBJECTS_COUNT * OBJECT_BYTES * 8 / 1e9 / (trio.current_time() - started)


CLAIM = Claim(
    row="k2",
    source="KafScale, S3 concurrency",
    claim="the default never throttles: it is well above what fills the line",
    source_figure="6 fill 10 Gbit/s, 24 fill 50; default 64",
    run=run,
)
