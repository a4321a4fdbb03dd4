"""L2: appends within a window share one fsync; a window of 0 syncs at once and still groups what waits.

Producers that send again a moment after they are answered, to the write-ahead log on this machine's disk, and on the
same disk with 20 ms more for each sync, as a busy disk in the network has. `--wal-sync-interval` is an upper bound:
where a sync is quicker than the window it gathers nothing by waiting, and does not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import attrs
import trio

from bench.claims.claim import Claim, Finding, Variant
from bench.claims.plot import Plot, Point
from bench.claims.rounds import alternate, quantile
from kafscale.buffers import Buffer
from kafscale.formats.wal_entries import WalEntry, WalFile
from kafscale.log.wal.disk import RealDisk
from kafscale.log.wal.local_wal import LocalRound, Wal

ROUNDS_COUNT = 3
RUN_SECONDS = 0.8
PRODUCERS_COUNT = 250
THINK_MAX_SECONDS = 0.004
WINDOWS_MS = (0, 0.5, 2, 10)
ADDED_SECONDS = {"this disk": 0.0, "20 ms slower": 0.020}
ENTRY_BYTES = 1 << 10
FILE_BYTES = 16 << 20
TOPIC_ID = bytes(16)


def run() -> Finding:
    measures = {
        f"{disk}, window {window_ms:g} ms": partial(measure, Wal, window_ms / 1000, added_seconds)
        for disk, added_seconds in ADDED_SECONDS.items()
        for window_ms in WINDOWS_MS
    }
    measures |= {
        f"{disk}, an fsync for each": partial(measure, LoneWal, 0.0, added_seconds)
        for disk, added_seconds in ADDED_SECONDS.items()
    }
    variants = alternate(measures, ROUNDS_COUNT)
    count = len(WINDOWS_MS)
    fast, slow = variants[:count], variants[count : 2 * count]
    shared = [_shared(variant) for variant in (*fast, *slow)]
    alone, best = (variant.figures for variant in (variants[-1], slow[-1]))
    return Finding(
        ours=f"{_shared(slow[0]):.0f} appends per fsync without a window and {_shared(slow[-1]):.0f} with "
        f"{WINDOWS_MS[-1]} ms on the slow disk, {_shared(fast[0]):.0f} and {_shared(fast[-1]):.0f} on this one; "
        f"{best['appends/s']:,.0f} appends/s against {alone['appends/s']:,.0f} with an fsync for each",
        is_shown=min(shared) > 2 and _shared(slow[-1]) > _shared(slow[0]) and best["appends/s"] > alone["appends/s"],
        variants=variants,
        plot=_plot(dict(zip(ADDED_SECONDS, (fast, slow), strict=True))),
    )


def _shared(variant: Variant) -> float:
    return variant.figures["appends per fsync"]


def measure(wal_class: type[Wal], window_seconds: float, added_seconds: float) -> dict[str, float]:
    with TemporaryDirectory(prefix="kafscale-bench-") as directory:
        disk = SlowerDisk(Path(directory), added_seconds=added_seconds)
        try:
            return trio.run(_append_all, wal_class, disk, window_seconds)
        finally:
            disk.close()


@attrs.define(eq=False, kw_only=True)
class LoneWal(Wal):
    """Syncs each entry on its own."""

    def _fitting(self, round: LocalRound, file: WalFile) -> list[WalEntry]:
        return super()._fitting(round, file)[:1]


@attrs.define(eq=False)
class SlowerDisk(RealDisk):
    """Takes longer for each sync."""

    added_seconds: float = attrs.field(kw_only=True)

    async def write_and_sync(self, name: str, buffers: Sequence[Buffer], position: int) -> None:
        await super().write_and_sync(name, buffers, position)
        with trio.CancelScope(shield=True):  # a write that has begun is not cancelled
            await trio.sleep(self.added_seconds)


async def _append_all(wal_class: type[Wal], disk: RealDisk, window_seconds: float) -> dict[str, float]:
    seconds: list[float] = []

    def on_durable(entries: Sequence[WalEntry]) -> None:
        for entry in entries:
            assert entry.file is not None
            wal.release(entry.file)
            seconds.append(trio.current_time() - entry.owner)

    wal = wal_class(disk=disk, on_durable=on_durable, segment_bytes=FILE_BYTES, sync_interval_seconds=window_seconds)
    await wal.replay(lambda entry: False)
    async with trio.open_nursery() as running:
        await running.start(wal.files.prepare)
        await running.start(wal.run)
        with trio.move_on_after(RUN_SECONDS):
            async with trio.open_nursery() as producers:
                for number in range(PRODUCERS_COUNT):
                    producers.start_soon(_append, wal, Random(number))
        entry_count, sync_count = wal._entry_count, sum(wal.sync_seconds.counts)
        running.cancel_scope.cancel()
    return {
        "appends per fsync": entry_count / max(1, sync_count),
        "fsyncs/s": sync_count / RUN_SECONDS,
        "appends/s": entry_count / RUN_SECONDS,
        "append p50 ms": 1000 * quantile(seconds, 0.5),
        "append p99 ms": 1000 * quantile(seconds, 0.99),
    }


async def _append(wal: Wal, random: Random) -> None:
    """Again and again; who owns an entry is the moment at which it was appended."""
    data = bytes(ENTRY_BYTES)
    while True:
        await trio.sleep(random.uniform(0, THINK_MAX_SECONDS))
        await wal.append(WalEntry(TOPIC_ID, 0, 0, 0, data, owner=trio.current_time())).wait()


def _plot(variants: Mapping[str, Sequence[Variant]]) -> Plot:
    """Plot the variants by disk. 0 has no place on a logarithmic axis: it is a line of its own."""
    series = {}
    windows = WINDOWS_MS[1:]
    for disk, (without, *found) in variants.items():
        series[disk] = [Point(window, _shared(reading)) for window, reading in zip(windows, found, strict=True)]
        series[f"~{disk}, no window"] = [Point(window, _shared(without)) for window in windows]
    return Plot(
        title=f"{PRODUCERS_COUNT} producers with one append each in flight",
        x_label="--wal-sync-interval, ms",
        y_label="appends per fsync",
        series=series,
    )


CLAIM = Claim(
    row="l2",
    source="klite, WAL",
    claim="appends within a window share one fsync",
    source_figure="500 requests in 2 ms = 1 fsync",
    run=run,
)
