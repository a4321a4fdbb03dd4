"""`python -m bench.read_ahead`: a consumer of a backlog on a store that is some way off, in simulated time.

What the machine does besides has no part in the figures: they are those of the store's latency and of a connection's
rate, and of the requests that the broker makes. Cold is the first pass after a restart, warm the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypedDict

import attrs
import click
import trio
import trio.testing
from rich.console import Console
from rich.table import Table

from bench.report import WIDTH
from kafscale.config.units import KIB, MIB, format_size
from kafscale.store.base import ForwardingStore, ObjectPart
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.tcp_proxy import Link
from tests.devtools.fakes.memory_log import MemoryLog, memory_log

DATA_BYTES = 256 * MIB
SEGMENT_BYTES = 64 * MIB
VALUE_BYTES = 100 * KIB
LATENCY_SECONDS = 0.02
CONNECTION_BYTES_PER_SECOND = 80_000_000  # of one GET; S3 gives 50 to 100 MB/s
FETCHES_BYTES = (256 * KIB, MIB, 4 * MIB)
WINDOWS_BYTES = (0, 2 * MIB, 8 * MIB, 16 * MIB)
CACHE_BYTES = 64 * MIB


class LogSizes(TypedDict):
    """Settings of the log that a backlog is written to, and read from."""

    chunk_pool_bytes: int
    wal_segment_bytes: int
    segment_bytes: int


_SIZES = LogSizes(chunk_pool_bytes=512 * MIB, wal_segment_bytes=64 * MIB, segment_bytes=SEGMENT_BYTES)


@attrs.define(eq=False)
class FarStore(ForwardingStore):
    """Each read takes the latency, and as long as its bytes take on a connection of its own and on the line of all."""

    latency_seconds: float = 0.0
    connection_bytes_per_second: float = CONNECTION_BYTES_PER_SECOND
    line: Link = attrs.field(factory=lambda: Link(math.inf))
    get_count: int = 0
    read_bytes: int = 0

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        return await self._read(await self.store.get_range(key, start, length_bytes))

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        return await self._read(await self.store.get_tail(key, length_bytes))

    async def _read(self, part: ObjectPart) -> ObjectPart:
        self.get_count += 1
        self.read_bytes += len(part.data)
        if self.latency_seconds:
            await trio.sleep(self.latency_seconds + len(part.data) / self.connection_bytes_per_second)
            await self.line.carry(len(part.data))
        return part


async def measure(store: FarStore, disk: MemoryDisk, fetch_bytes: int, window_bytes: int) -> Mapping[str, str]:
    """One pass over all of it, by a broker that knows nothing of it yet."""
    cache_bytes = CACHE_BYTES if window_bytes else 0
    async with memory_log(
        store, disk, leader_epoch=2, cache_bytes=cache_bytes, readahead_bytes=window_bytes, **_SIZES
    ) as log:
        store.get_count = store.read_bytes = 0
        store.latency_seconds = LATENCY_SECONDS
        began = trio.current_time()
        fetch_count, fetched_bytes = await consume(log, fetch_bytes)
        seconds = trio.current_time() - began
        store.latency_seconds = 0.0
    return {
        "fetch": format_size(fetch_bytes),
        "read-ahead": format_size(window_bytes),
        "MiB/s": f"{fetched_bytes / MIB / seconds:,.0f}",
        "fetches": f"{fetch_count:,}",
        "GETs": f"{store.get_count:,}",
        "bytes read of bytes fetched": f"{store.read_bytes / fetched_bytes:.4f}",
    }


async def consume(log: MemoryLog, fetch_bytes: int, offset: int = 0, end_offset: int | None = None) -> tuple[int, int]:
    """Fetch one after the other up to the end; how many fetches that were, and of how many bytes."""
    partition = log.partition()
    fetch_count = fetched_bytes = 0
    while offset < (partition.high_watermark if end_offset is None else end_offset):
        slices = await log.log.reader.read(partition, offset, fetch_bytes)
        assert slices is not None
        fetch_count += 1
        fetched_bytes += slices.size_bytes
        offset = slices.end_offset
        slices.release()
    return fetch_count, fetched_bytes


async def backlog(data_bytes: int, sizes: LogSizes) -> tuple[FarStore, MemoryDisk]:
    """Make a store with this number of bytes of one partition in segments, and the disk of a broker on it."""
    store, disk = FarStore(MemoryStore()), MemoryDisk()
    async with memory_log(store, disk, flush_interval_seconds=3600.0, **sizes) as log:
        for _ in range(data_bytes // VALUE_BYTES):
            await log.append(log.partition(), bytes(VALUE_BYTES))
        await log.log.flusher.flush_all()
    return store, disk.crash()


async def run() -> list[Mapping[str, str]]:
    store, disk = await backlog(DATA_BYTES, _SIZES)
    return [
        await measure(store, disk, fetch_bytes, window_bytes)
        for fetch_bytes in FETCHES_BYTES
        for window_bytes in WINDOWS_BYTES
    ]


@click.command()
def main() -> None:
    """Show what reading ahead is worth, and what it costs."""
    rows = trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    table = Table(
        title=f"a backlog {LATENCY_SECONDS * 1000:g} ms away, {CONNECTION_BYTES_PER_SECOND / 1e6:g} MB/s a GET"
    )
    for heading in rows[0]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row.values())
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table)


if __name__ == "__main__":
    main()
