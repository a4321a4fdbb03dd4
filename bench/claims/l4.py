"""L4: the buffers of batches come from a pool that is allocated at start.

Batches of 1 to 960 KiB go to eight partitions as fast as they can, and their segments to a store that keeps nothing, in
a process of its own. Without the feature each chunk is allocated when it is needed, and freed when it is not.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import attrs
import trio

from bench.claims.claim import Claim, Finding
from bench.claims.isolation import run_apart
from bench.claims.rounds import alternate
from kafscale.buffers import Buffer
from kafscale.log.partition.chunks import ChunkPool, Lease
from kafscale.log.partition.partition import Partition
from kafscale.log.wal.disk import RealDisk
from kafscale.store.base import ForwardingStore
from kafscale.store.memory import MemoryStore
from kafscale.wire.batch_header import parse_header
from tests.devtools.fakes.memory_log import MemoryLog, batch_of, memory_log, topic_spec
from tests.devtools.processes.process import rss_mib

ROUNDS_COUNT = 2
WARM_UP_SECONDS = 2.0
RUN_SECONDS = 4.0
SAMPLE_SECONDS = 0.1
PARTITIONS_COUNT = 8
POOL_BYTES = 128 << 20
SIZES_KIB = (1, 4, 16, 64, 256, 960)
FLAT_MIB = 24.0  # a footer here and a buffer of the allocator there come and go


def run() -> Finding:
    variants = alternate(
        {
            "pool": partial(measure, is_pooled=True),
            "allocated as needed": partial(measure, is_pooled=False),
        },
        ROUNDS_COUNT,
    )
    pool, heap = (variant.figures for variant in variants)
    return Finding(
        ours=f"RSS grows by {pool['grown MiB']:.0f} MiB after the warm-up, {pool['page faults per batch']:.1f} new "
        f"pages per batch; without the pool {heap['grown MiB']:.0f} MiB and {heap['page faults per batch']:.0f} pages",
        is_shown=float(pool["grown MiB"]) <= FLAT_MIB
        and float(pool["page faults per batch"]) < float(heap["page faults per batch"]),
        variants=variants,
    )


def measure(*, is_pooled: bool) -> dict[str, float]:
    return run_apart(produce_on_disk, is_pooled, WARM_UP_SECONDS, RUN_SECONDS)


def produce_on_disk(is_pooled: bool, warm_up_seconds: float, run_seconds: float) -> dict[str, float]:
    with TemporaryDirectory(prefix="kafscale-bench-") as directory:
        disk = RealDisk(Path(directory))
        try:
            return trio.run(_produce_all, disk, is_pooled, warm_up_seconds, run_seconds)
        finally:
            disk.close()


@attrs.define(eq=False)
class NoPool(ChunkPool):
    """Allocates each lease, and never runs short."""

    def acquire_nowait(self, size_bytes: int) -> Lease | None:
        return Lease(self, 0, 0, memoryview(bytearray(size_bytes)))

    def _free(self, lease: Lease) -> None:
        """The memory goes with the last view of it."""


class Nowhere(ForwardingStore):
    """Keeps nothing."""

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        return ""


async def _produce_all(disk: RealDisk, is_pooled: bool, warm_up_seconds: float, run_seconds: float) -> dict[str, float]:
    settings = {"chunk_pool_bytes": POOL_BYTES, "wal_segment_bytes": 64 << 20, "segment_bytes": 4 << 20}
    topics = [topic_spec(PARTITIONS_COUNT)]
    async with memory_log(Nowhere(MemoryStore()), disk, topics=topics, **settings) as log:
        log.log.pool.poison = False  # a check of tests, which takes a copy
        if is_pooled:
            _touch(log.log.pool)
        else:
            for partition in log.log.partitions.values():
                partition.pool = NoPool(POOL_BYTES)
        counts: list[int] = []
        async with trio.open_nursery() as nursery:
            for index in range(PARTITIONS_COUNT):
                nursery.start_soon(_produce, log, index, counts)
            await trio.sleep(warm_up_seconds)
            figures = await _watch(counts, run_seconds)
            nursery.cancel_scope.cancel()
    return figures


def _touch(pool: ChunkPool) -> None:
    """Let every page be resident from the start, so that what grows later is something else."""
    lease = pool.acquire_nowait(pool.size_bytes)
    assert lease is not None
    lease.view[:] = bytes(pool.size_bytes)
    lease.release()


async def _produce(log: MemoryLog, index: int, counts: list[int]) -> None:
    """Batches of random sizes to one partition, one at a time; `counts` gets the size of each."""
    random = Random(index)
    batches = [bytes(batch_of(os.urandom(kib << 10))) for kib in SIZES_KIB]
    headers = [parse_header(memoryview(batch)) for batch in batches]
    partition: Partition = log.partition(index)
    while True:
        choice = random.randrange(len(batches))
        placed = partition.place_nowait(memoryview(batches[choice]))
        if placed is None:
            (await log.log.pool.acquire(len(batches[choice]))).release()
            continue
        partition.append(headers[choice], placed, 0)
        assert partition.latest_round is not None
        await partition.latest_round.wait()
        counts.append(len(batches[choice]))


async def _watch(counts: list[int], seconds: float) -> dict[str, float]:
    """Return what the process uses from now on."""
    count_before, bytes_before = len(counts), sum(counts)
    faults_before, cpu_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
    samples = [rss_mib(os.getpid())]
    ends_at = trio.current_time() + seconds
    while trio.current_time() < ends_at:
        await trio.sleep(SAMPLE_SECONDS)
        samples.append(rss_mib(os.getpid()))
    batch_count = max(1, len(counts) - count_before)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before
    return {
        "batches": batch_count,
        "MiB/s": (sum(counts) - bytes_before) / (1 << 20) / seconds,
        "RSS MiB": samples[0],
        "grown MiB": max(samples) - samples[0],
        "page faults per batch": faults / batch_count,
        "CPU us per batch": 1e6 * (time.process_time() - cpu_before) / batch_count,
    }


CLAIM = Claim(
    row="l4",
    source="klite, memory",
    claim="buffers come from a pool allocated at start",
    source_figure="512 MB at start",
    run=run,
)
