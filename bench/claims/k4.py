"""K4: a flush holds no lock while it uploads: appends and reads of a partition never wait for its upload.

Producers and consumers use one partition while its upload is held. Without the feature each of them, and the flush from
its beginning to its commit, takes a lock of the partition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

import attrs
import trio

from bench.claims.ablation import replaced
from bench.claims.claim import Claim, Finding
from bench.claims.rounds import alternate, quantile
from kafscale.log.flush.upload import Uploader
from kafscale.log.partition.partition import FlushPlan, Partition
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from tests.devtools.fakes.memory_log import MemoryLog, memory_log

ROUNDS_COUNT = 3
UPLOAD_SECONDS = 2.0
SYNC_SECONDS = 0.001
CLIENTS_COUNT = 4  # producers, and as many consumers
PAUSE_SECONDS = 0.002  # of a consumer between fetches
FETCH_BYTES = 64 << 10
VALUE = bytes(1000)
NOISE_MS = 2.0  # what the p99 of two rounds differ by on a machine that does other things too

NO_UPLOAD, FREE, LOCKED = "no upload", "upload held, no lock", "upload held, under a lock"

Lock = AbstractAsyncContextManager[object]


def run() -> Finding:
    variants = alternate(
        {
            NO_UPLOAD: partial(measure, is_uploading=False, lock_class=nullcontext),
            FREE: partial(measure, is_uploading=True, lock_class=nullcontext),
            LOCKED: partial(measure, is_uploading=True, lock_class=trio.Lock),
        },
        ROUNDS_COUNT,
    )
    none, free, locked = (variant.figures for variant in variants)
    return Finding(
        ours=f"append p99 {free['append p99 ms']:.1f} ms while an upload is held, {none['append p99 ms']:.1f} ms with "
        f"none, {locked['append p99 ms']:,.0f} ms under a lock; fetch {free['fetch p99 ms']:.2f}, "
        f"{none['fetch p99 ms']:.2f} and {locked['fetch p99 ms']:,.0f} ms",
        is_shown=all(
            free[name] <= 1.5 * none[name] + NOISE_MS < locked[name] for name in ("append p99 ms", "fetch p99 ms")
        ),
        variants=variants,
    )


def measure(*, is_uploading: bool, lock_class: Callable[[], Lock]) -> dict[str, float]:
    rig = Rig(is_uploading=is_uploading, lock=lock_class())
    trio.run(rig.run)
    return rig.figures()


@attrs.define(eq=False, kw_only=True)
class LockingUploader(Uploader):
    """Holds the partition's lock from the preparation to the commit."""

    lock: Lock

    async def flush(self, partition: Partition, plan: FlushPlan) -> None:
        async with self.lock:
            await super().flush(partition, plan)


@attrs.define(eq=False, kw_only=True)
class Rig:
    """One partition, its clients, and a store that holds uploads."""

    is_uploading: bool
    lock: Lock
    append_seconds: list[float] = attrs.field(factory=list)
    fetch_seconds: list[float] = attrs.field(factory=list)

    async def run(self) -> None:
        store = FaultyStore(MemoryStore())
        disk = MemoryDisk(sync_seconds=SYNC_SECONDS)
        async with memory_log(store, disk, flush_interval_seconds=3600, chunk_pool_bytes=64 << 20) as log:
            flusher = log.log.flusher
            flusher.uploader = replaced(flusher.uploader, LockingUploader, lock=self.lock)
            gate = store.hold(On("put*", "*.kfs"))
            await log.append(log.partition(), VALUE)
            async with trio.open_nursery() as nursery:
                if self.is_uploading:
                    nursery.start_soon(flusher.flush_all)
                    await gate.wait_arrived()
                ends_at = trio.current_time() + UPLOAD_SECONDS
                for _ in range(CLIENTS_COUNT):
                    nursery.start_soon(self._repeat, partial(self._append, log), ends_at, self.append_seconds)
                    nursery.start_soon(self._repeat, partial(self._fetch, log), ends_at, self.fetch_seconds)
                await trio.sleep_until(ends_at)
                gate.open()

    async def _repeat(self, act: Callable[[], Awaitable[None]], ends_at: float, seconds: list[float]) -> None:
        while trio.current_time() < ends_at:
            started = trio.current_time()
            await act()
            seconds.append(trio.current_time() - started)
            await trio.sleep(PAUSE_SECONDS)

    async def _append(self, log: MemoryLog) -> None:
        async with self.lock:
            _, round = log.append_nowait(log.partition(), VALUE)
        await round.wait()

    async def _fetch(self, log: MemoryLog) -> None:
        partition, reader = log.partition(), log.log.reader
        async with self.lock:
            offset = partition.high_watermark - 1
            slices = reader.read_nowait(partition, offset, FETCH_BYTES)
            slices = slices or await reader.read(partition, offset, FETCH_BYTES)
        assert slices is not None
        slices.release()

    def figures(self) -> dict[str, float]:
        return {
            "appends": len(self.append_seconds),
            "append p50 ms": 1000 * quantile(self.append_seconds, 0.5),
            "append p99 ms": 1000 * quantile(self.append_seconds, 0.99),
            "fetches": len(self.fetch_seconds),
            "fetch p50 ms": 1000 * quantile(self.fetch_seconds, 0.5),
            "fetch p99 ms": 1000 * quantile(self.fetch_seconds, 0.99),
        }


CLAIM = Claim(
    row="k4",
    source="KafScale, flush",
    claim="a flush uploads without a lock: appends and reads of a partition never wait for its upload",
    source_figure="blocked for the whole upload before",
    run=run,
)
