"""`python -m bench.disk_cache`: reading again what memory has no room for, with `--cache-directory` and without.

A backlog of 128 MiB is consumed once, and then again: by one consumer from its beginning, and by four at once, each a
quarter. The store is as far away as S3 of the same region, or as that of another region over a line of 500 Mbit/s. The
waiting is real, and the directory is on this machine's disk, of which the page cache holds what was just written.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import attrs
import click
import trio
from rich.table import Table

from bench.read_ahead import FarStore, LogSizes, backlog, consume
from bench.report import console, save
from kafscale.config.units import MIB
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.tcp_proxy import Link
from tests.devtools.fakes.memory_log import MemoryLog, memory_log

DATA_BYTES = 128 * MIB
CACHE_BYTES = 16 * MIB
READAHEAD_BYTES = (0, 8 * MIB)
FETCH_BYTES = MIB
CONSUMERS = (1, 4)
_SIZES = LogSizes(chunk_pool_bytes=256 * MIB, wal_segment_bytes=64 * MIB, segment_bytes=32 * MIB)


@attrs.frozen(kw_only=True)
class Distance:
    """The distance of the store."""

    name: str
    latency_seconds: float
    connection_bytes_per_second: float
    line_bytes_per_second: float


DISTANCES = (
    Distance(name="near", latency_seconds=0.02, connection_bytes_per_second=80e6, line_bytes_per_second=math.inf),
    Distance(name="far", latency_seconds=0.08, connection_bytes_per_second=40e6, line_bytes_per_second=62.5e6),
)


@attrs.frozen(kw_only=True)
class Row:
    """One way to read it again."""

    store: str
    readahead_mib: int
    consumers: int
    disk_cache: bool
    round: int
    mib_per_second: float
    gets: int
    from_disk_mib: float


@attrs.define(eq=False, kw_only=True)
class Case:
    """A store with the backlog, and what a broker that begins on it is to have."""

    store: FarStore
    disk: MemoryDisk
    distance: Distance
    readahead_bytes: int
    cache_directory: Path | None

    async def measure(self, round: int) -> list[Row]:
        """Read once unmeasured, then again with one consumer and with four."""
        async with memory_log(
            self.store,
            self.disk,
            leader_epoch=2,
            cache_bytes=CACHE_BYTES,
            readahead_bytes=self.readahead_bytes,
            cache_directory=self.cache_directory,
            **_SIZES,
        ) as log:
            self.store.latency_seconds = self.distance.latency_seconds
            self.store.connection_bytes_per_second = self.distance.connection_bytes_per_second
            self.store.line = Link(self.distance.line_bytes_per_second)
            await consume(log, FETCH_BYTES)
            rows = [await self._again(log, count, round) for count in CONSUMERS]
            self.store.latency_seconds = 0.0
        return rows

    async def _again(self, log: MemoryLog, consumers_count: int, round: int) -> Row:
        disk = log.log.reader.ranges.disk
        hit_bytes = 0 if disk is None else disk.hit_bytes
        end_offset = log.partition().high_watermark
        self.store.get_count = 0
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(consumers_count):
                first, last = (end_offset * place // consumers_count for place in (number, number + 1))
                nursery.start_soon(consume, log, FETCH_BYTES, first, last)
        seconds = trio.current_time() - began
        return Row(
            store=self.distance.name,
            readahead_mib=self.readahead_bytes // MIB,
            consumers=consumers_count,
            disk_cache=disk is not None,
            round=round,
            mib_per_second=DATA_BYTES / MIB / seconds,
            gets=self.store.get_count,
            from_disk_mib=0 if disk is None else (disk.hit_bytes - hit_bytes) / MIB,
        )


async def run(rounds: int) -> list[Row]:
    """All of them, in turns."""
    store, disk = await backlog(DATA_BYTES, _SIZES)
    rows: list[Row] = []
    for round in range(rounds):
        for distance in DISTANCES:
            for readahead_bytes in READAHEAD_BYTES:
                for has_disk in (False, True):
                    with tempfile.TemporaryDirectory(prefix="kafscale-bench-") as directory:
                        path = Path(directory) / "cache" if has_disk else None
                        case = Case(
                            store=store,
                            disk=disk,
                            distance=distance,
                            readahead_bytes=readahead_bytes,
                            cache_directory=path,
                        )
                        rows += await case.measure(round)
    return rows


@click.command()
@click.option("--rounds", default=3, show_default=True, help="How often each is measured, in turns.")
def main(rounds: int) -> None:
    """Show what a cache on disk gives who reads something again, and which GETs it saves."""
    rows = trio.run(run, rounds)
    table = Table(title="the second time, with 16 MiB of memory cache for 128 MiB")
    for heading in (field.name for field in attrs.fields(Row)):
        table.add_column(heading.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.1f}" if isinstance(value, float) else str(value) for value in attrs.astuple(row)))
    console().print(table)
    click.echo(save("disk-cache", rows, {"rounds": rounds}))


if __name__ == "__main__":
    main()
