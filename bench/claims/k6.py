"""K6: prefetch takes a token only if one is free, and is skipped otherwise.

More fetches and flushes than the limit go on all the time, in simulated time, and each fetch would like the next ranges
as well: not at all, if there is room, or in line with everybody else.
"""

from __future__ import annotations

import enum

import attrs
import trio
import trio.testing

from bench.claims.claim import Claim, Finding, Variant
from bench.claims.rounds import quantile
from kafscale.metrics import Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.memory import MemoryStore
from kafscale.store.wrappers.limiter import LimitedStore, PrefetchStore, StoreLimiter, WorkClass
from kafscale.store.wrappers.metered import StoreMetrics
from tests.devtools.fakes.simulated_store import SimulatedStore

LIMIT = 64
FLUSHERS_COUNT = 16
LATENCY_SECONDS = 0.015
RUN_SECONDS = 5.0
AHEAD_COUNT = 2  # ranges that each fetch prefetches
LOADS = {"all tokens held": 96, "tokens free": 12}  # consumers that fetch all the time


class Prefetch(enum.Enum):
    OFF = "off"
    IF_FREE = "if a token is free"
    IN_LINE = "waits in line"


def run() -> Finding:
    rigs = {(load, prefetch): measure(load, prefetch) for load in LOADS for prefetch in Prefetch}
    off, on, _ = (rigs["all tokens held", prefetch] for prefetch in Prefetch)
    same = all(on[name] <= 1.02 * off[name] for name in on if name.endswith(" ms"))
    return Finding(
        ours=f"fetch p99 {on['fetch p99 ms']:.1f} ms with, {off['fetch p99 ms']:.1f} ms without; "
        f"{on['skipped']:,.0f} skipped",
        is_shown=same and on["skipped"] > 0 and rigs["tokens free", Prefetch.IF_FREE]["prefetched"] > 0,
        variants=[
            Variant(name=f"{load}, prefetch {prefetch.value}", figures=figures)
            for (load, prefetch), figures in rigs.items()
        ],
    )


def measure(load: str, prefetch: Prefetch) -> dict[str, float]:
    clock = trio.testing.MockClock(autojump_threshold=0)
    rig = Rig(prefetch=prefetch)
    trio.run(rig.run, LOADS[load], clock=clock)
    return rig.figures()


@attrs.define(eq=False, kw_only=True)
class Rig:
    """Consumers and flushers over one limiter."""

    prefetch: Prefetch
    metrics: StoreMetrics = attrs.field(factory=lambda: StoreMetrics.register(Metrics()))
    simulated: SimulatedStore = attrs.field(
        factory=lambda: SimulatedStore(MemoryStore(), latency_seconds=LATENCY_SECONDS)
    )
    fetch_seconds: list[float] = attrs.field(factory=list)
    flush_seconds: list[float] = attrs.field(factory=list)
    prefetched_count: int = 0

    async def run(self, consumers_count: int) -> None:
        limiter = StoreLimiter(LIMIT, self.metrics)
        fetch = LimitedStore(self.simulated, limiter, WorkClass.FETCH)
        flush = LimitedStore(self.simulated, limiter, WorkClass.ACKNOWLEDGE)
        ahead = PrefetchStore(self.simulated, limiter, self.metrics.skipped_prefetches)
        await self.simulated.put("segment", [bytes(1000)])
        with trio.move_on_after(RUN_SECONDS):
            async with trio.open_nursery() as nursery:
                for _ in range(consumers_count):
                    nursery.start_soon(self._consume, fetch, ahead, nursery)
                for number in range(FLUSHERS_COUNT):
                    nursery.start_soon(self._flush, flush, f"flushed/{number}")

    async def _consume(self, store: ObjectStore, ahead: PrefetchStore, nursery: trio.Nursery) -> None:
        while True:
            started = trio.current_time()
            await store.get_range("segment", 0, 100)
            self.fetch_seconds.append(trio.current_time() - started)
            if self.prefetch is not Prefetch.OFF:
                for _ in range(AHEAD_COUNT):
                    chosen = ahead if self.prefetch is Prefetch.IF_FREE else store
                    nursery.start_soon(self._read_ahead, chosen)

    async def _read_ahead(self, store: ObjectStore | PrefetchStore) -> None:
        if await store.get_range("segment", 100, 100) is not None:
            self.prefetched_count += 1

    async def _flush(self, store: ObjectStore, key: str) -> None:
        while True:
            started = trio.current_time()
            await store.put(key, [b""])
            self.flush_seconds.append(trio.current_time() - started)

    def figures(self) -> dict[str, float]:
        return {
            "fetch p50 ms": 1000 * quantile(self.fetch_seconds, 0.5),
            "fetch p99 ms": 1000 * quantile(self.fetch_seconds, 0.99),
            "flush p50 ms": 1000 * quantile(self.flush_seconds, 0.5),
            "flush p99 ms": 1000 * quantile(self.flush_seconds, 0.99),
            "fetches": len(self.fetch_seconds),
            "prefetched": self.prefetched_count,
            "skipped": self.metrics.skipped_prefetches.value,
        }


CLAIM = Claim(
    row="k6",
    source="KafScale, S3 concurrency",
    claim="prefetch takes a token only if one is free, and is skipped otherwise",
    source_figure="TryAcquire",
    run=run,
)
