"""L1: one interleaved log: one fsync makes the batches of all partitions durable.

Batches come at a constant rate, in simulated time, to one, 100 and 1,000 partitions in turn, and a sync takes 1 ms.
Without the feature each partition has a write-ahead log, and a disk, of its own.
"""

from __future__ import annotations

import trio
import trio.testing

from bench.claims.claim import Claim, Finding, Variant
from kafscale.log.log import Log
from kafscale.log.partition.tail import became_durable
from kafscale.log.wal.local_wal import Wal
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import memory_log, topic_spec

PARTITION_COUNTS = (1, 100, 1_000)
APPENDS_COUNT = 2_000
APPENDS_PER_SECOND = 10_000
SYNC_SECONDS = 0.001
OWN_FILE_BYTES = 64 << 10


def run() -> Finding:
    one = {count: measure(count, is_shared=True) for count in PARTITION_COUNTS}
    each = {count: measure(count, is_shared=False) for count in PARTITION_COUNTS}
    variants = [
        Variant(name=f"{name}, {count:,} partitions", figures={"fsyncs per 1,000 appends": fsyncs})
        for name, found in (("one log", one), ("a log for each", each))
        for count, fsyncs in found.items()
    ]
    most = max(PARTITION_COUNTS)
    return Finding(
        ours=", ".join(f"{fsyncs:.0f}" for fsyncs in one.values())
        + f" fsyncs per 1,000 appends over {', '.join(f'{count:,}' for count in PARTITION_COUNTS)} partitions; "
        f"{each[most]:,.0f} with a log for each",
        is_shown=max(one.values()) <= 1.1 * min(one.values()) and each[most] > 2 * one[most],
        variants=variants,
    )


def measure(partition_count: int, *, is_shared: bool) -> float:
    """Syncs per 1,000 appends."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    return 1000 * trio.run(_count_syncs, partition_count, is_shared, clock=clock) / APPENDS_COUNT


async def _count_syncs(partition_count: int, is_shared: bool) -> int:
    disks = [MemoryDisk(sync_seconds=SYNC_SECONDS)]
    topics = [topic_spec(partition_count)]
    settings = {"chunk_pool_bytes": 64 << 20, "flush_interval_seconds": 3600}
    async with memory_log(MemoryStore(), disks[0], topics=topics, **settings) as log:
        async with trio.open_nursery() as own_logs:
            if not is_shared:
                disks = await _give_each_its_own(log.log, own_logs)
            before = sum(disk.operations["sync"] for disk in disks)
            async with trio.open_nursery() as nursery:
                for number in range(APPENDS_COUNT):
                    nursery.start_soon(log.append, log.partition(number % partition_count), b"value")
                    await trio.sleep(1 / APPENDS_PER_SECOND)
            own_logs.cancel_scope.cancel()
    return sum(disk.operations["sync"] for disk in disks) - before


async def _give_each_its_own(log: Log, nursery: trio.Nursery) -> list[MemoryDisk]:
    disks = []
    for partition in log.partitions.values():
        disks.append(MemoryDisk(sync_seconds=SYNC_SECONDS))
        wal = Wal(disk=disks[-1], on_durable=became_durable, segment_bytes=OWN_FILE_BYTES)
        partition.journal = wal
        await nursery.start(wal.files.prepare)
        await nursery.start(wal.run)
    return disks


CLAIM = Claim(
    row="l1",
    source="klite, WAL",
    claim="one interleaved log: one fsync makes all partitions durable",
    source_figure="1,000 partitions = 1 fsync, not 1,000",
    run=run,
)
