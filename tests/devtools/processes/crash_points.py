"""A broker that kills itself (SIGKILL) at a named point.

    python -m tests.devtools.processes.crash_points POINT:N -- serve ...

N counts how often the point is passed unharmed. Disk, store and metadata are wrapped, and the broker has no hook. A
simulation has the same points; there dying is the end of a nursery.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

import attrs
import trio

from kafscale import broker
from kafscale.broker import Broker
from kafscale.broker_storage import StorageParts
from kafscale.buffers import Buffer
from kafscale.cli.main import run
from kafscale.cluster.metadata.base import LocalMetadataStore, Outcome, Transaction, revision_of
from kafscale.log.wal.disk import Disk
from kafscale.store.base import ObjectStore
from kafscale.testing.disk import SECTOR_BYTES
from kafscale.testing.faulty_store import FaultyStore, On, StoreCall

POINTS = (
    *("wal-create-before", "wal-create-after"),  # of a WAL file; rotation takes one that was made before
    "wal-begin-torn",  # only the first sectors of the first write into a WAL file arrive, after a rotation
    *("wal-retire-before", "wal-retire-after"),  # a WAL file is put aside, since a flush was committed
    *("wal-reuse-before", "wal-reuse-during", "wal-reuse-after"),  # such a file becomes the next one
    *("wal-write-before", "wal-write-torn", "wal-write-after"),  # of a group of entries; torn: its first sectors arrive
    *("wal-delete-before", "wal-delete-after"),  # since a flush was committed and enough files are put aside
    *("kfs-put-before", "kfs-put-during", "kfs-put-after"),
    *("index-put-before", "index-put-during", "index-put-after"),
    *("merge-kfs-put-during", "merge-index-put-after"),  # the merged segment is there, and its sources are still read
    *("s3-wal-put-before", "s3-wal-put-during", "s3-wal-put-after"),
    *("checkpoint-put-before", "checkpoint-put-during", "checkpoint-put-after"),
    *("metadata-commit-before", "metadata-commit-during", "metadata-commit-after"),
)
PUTS = {
    "kfs-put": "*.kfs",
    "index-put": "*.index",
    "merge-kfs-put": "*-0000[1-9].kfs",
    "merge-index-put": "*-0000[1-9].index",
    "s3-wal-put": "*.wal",
    "checkpoint-put": "*.checkpoint",
}
DURING_MAX_SECONDS = 0.002  # about as long as a small write with its sync takes


async def die() -> None:
    _kill()
    await trio.sleep_forever()


def die_soon() -> None:
    """Kill the process from another thread in a moment, whatever is under way then."""
    threading.Timer(random.uniform(0, DURING_MAX_SECONDS), _kill).start()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@attrs.define(eq=False)
class CrashPoint:
    """The point to die at, and how often it is still to be passed. `die` never returns."""

    name: str
    passes_left_count: int
    die: Callable[[], Awaitable[None]] = attrs.field(default=die, kw_only=True)
    die_soon: Callable[[], None] = attrs.field(default=die_soon, kw_only=True)

    @classmethod
    def parse(cls, text: str) -> CrashPoint:
        """Parse NAME:N. Raises ValueError."""
        name, _, count = text.partition(":")
        if name not in POINTS:
            raise ValueError(f"no crash point {name}; there are {', '.join(POINTS)}")
        return cls(name, int(count or 0))

    def is_due(self, name: str) -> bool:
        """Tell whether to die now, at this point; counts a pass otherwise."""
        if name != self.name:
            return False
        self.passes_left_count -= 1
        return self.passes_left_count < 0

    async def reach(self, name: str) -> None:
        if self.is_due(name):
            await self.die()

    async def begin(self, operation: str) -> None:
        """Begin an operation: die now, or during it."""
        await self.reach(f"{operation}-before")
        if self.is_due(f"{operation}-during"):
            self.die_soon()


@attrs.define(eq=False)
class CrashingDisk:
    disk: Disk
    point: CrashPoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self.disk, name)

    async def create(self, name: str, size_bytes: int, header: Buffer, *, reuse: str | None = None) -> None:
        operation = "wal-create" if reuse is None else "wal-reuse"
        await self.point.begin(operation)
        await self.disk.create(name, size_bytes, header, reuse=reuse)
        await self.point.reach(f"{operation}-after")

    async def rename(self, name: str, new_name: str) -> None:
        await self.point.begin("wal-retire")
        await self.disk.rename(name, new_name)
        await self.point.reach("wal-retire-after")

    async def write_and_sync(self, name: str, buffers: Sequence[Buffer], position: int) -> None:
        await self.point.begin("wal-write")
        if self.point.is_due("wal-write-torn") or (position == 0 and self.point.is_due("wal-begin-torn")):
            data = b"".join(buffers)
            sectors_end = random.randrange(position, position + len(data)) // SECTOR_BYTES * SECTOR_BYTES
            await self.disk.write_and_sync(name, [data[: max(0, sectors_end - position)]], position)
            await self.point.die()
        await self.disk.write_and_sync(name, buffers, position)
        await self.point.reach("wal-write-after")

    async def delete(self, name: str) -> None:
        await self.point.begin("wal-delete")
        await self.disk.delete(name)
        await self.point.reach("wal-delete-after")


@attrs.define(eq=False)
class CrashingMetadataStore:
    store: LocalMetadataStore
    point: CrashPoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def commit(self, transaction: Transaction) -> int:
        (outcome,) = await self.apply([transaction])
        return revision_of(outcome)

    async def apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        await self.point.begin("metadata-commit")
        outcomes = await self.store.apply(transactions)
        await self.point.reach("metadata-commit-after")
        return outcomes


def crashing_store(store: ObjectStore, point: CrashPoint) -> ObjectStore:
    faulty = FaultyStore(store)
    for operation, pattern in PUTS.items():
        faulty.rule(On("put*", pattern), _acting(partial(point.begin, operation)))
        faulty.rule(On("put*", pattern), _acting(partial(point.reach, f"{operation}-after")), after_effect=True)
    return faulty


def _acting(act: Callable[[], Awaitable[None]]) -> Callable[[StoreCall], Awaitable[None]]:
    async def perform(call: StoreCall) -> None:
        await act()
        await trio.lowlevel.checkpoint()

    return perform


def crashing_parts(parts: StorageParts, point: CrashPoint) -> StorageParts:
    return StorageParts(
        store=crashing_store(parts.store, point),
        metadata=cast(LocalMetadataStore, CrashingMetadataStore(parts.metadata, point)),
        disk=cast(Disk, CrashingDisk(parts.disk, point)),
    )


def crashing_broker(point: CrashPoint) -> type[Broker]:
    class CrashingBroker(Broker):
        async def run_on(
            self, parts: StorageParts, *, task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED
        ) -> None:
            await Broker.run_on(self, crashing_parts(parts, point), task_status=task_status)

    return CrashingBroker


def main(arguments: Sequence[str]) -> int:
    point = CrashPoint.parse(arguments[0])
    assert arguments[1] == "--", arguments
    broker.Broker = crashing_broker(point)  # type: ignore[misc] # `serve` makes a broker of this name
    return run(arguments[2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
