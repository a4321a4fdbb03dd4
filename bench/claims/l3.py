"""L3: the next WAL file is created in the background; rotation does no I/O on the write path.

Appends in simulated time to files of 1 MiB that take 10 ms to make and are filled in some 30 ms, with the task that
prepares the next one, and without it.
"""

from __future__ import annotations

import trio
import trio.testing

from bench.claims.claim import Claim, Finding, Variant
from bench.claims.rounds import quantile
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.wal.local_wal import Wal
from kafscale.testing.disk import MemoryDisk

CREATE_SECONDS = 0.010
SYNC_SECONDS = 0.002
FILE_BYTES = 1 << 20
ENTRY_BYTES = 16 << 10
PRODUCERS_COUNT = 4
APPENDS_COUNT = 800  # of each producer
TOPIC_ID = bytes(16)


def run() -> Finding:
    ahead, late = (measure(is_prepared=is_prepared) for is_prepared in (True, False))
    return Finding(
        ours=f"at most {ahead['append max ms']:.1f} ms over {ahead['rotations']:.0f} rotations with it, "
        f"{late['append max ms']:.1f} ms without",
        is_shown=ahead["append max ms"] < 1000 * CREATE_SECONDS <= late["append max ms"] and ahead["rotations"] > 1,
        variants=[
            Variant(name="next file created ahead", figures=ahead),
            Variant(name="created when it is needed", figures=late),
        ],
    )


def measure(*, is_prepared: bool) -> dict[str, float]:
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_append_all, is_prepared, clock=clock)


async def _append_all(is_prepared: bool) -> dict[str, float]:
    disk = MemoryDisk(sync_seconds=SYNC_SECONDS, create_seconds=CREATE_SECONDS)
    wal = Wal(disk=disk, on_durable=lambda entries: None, segment_bytes=FILE_BYTES)
    seconds: list[float] = []
    async with trio.open_nursery() as running:
        await running.start(wal.run)
        if is_prepared:
            await running.start(wal.files.prepare)
            await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as producers:
            for _ in range(PRODUCERS_COUNT):
                producers.start_soon(_append, wal, seconds)
        running.cancel_scope.cancel()
    return {
        "append p50 ms": 1000 * quantile(seconds, 0.5),
        "append max ms": 1000 * max(seconds),
        "rotations": len(wal.files.in_use) - 1,
        "rotations that waited": wal.files.stall_count,
    }


async def _append(wal: Wal, seconds: list[float]) -> None:
    for number in range(APPENDS_COUNT):
        started = trio.current_time()
        entry = WalEntry(TOPIC_ID, 0, 0, number, bytes(ENTRY_BYTES))
        await wal.append(entry).wait()
        seconds.append(trio.current_time() - started)


CLAIM = Claim(
    row="l3",
    source="klite, WAL",
    claim="the next WAL file is created in the background; rotation does no I/O on the write path",
    source_figure="5-10 ms stall at 64 MB",
    run=run,
)
