"""A local write-ahead log over a disk in memory, by itself: what tests of it and of its files share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import trio

from kafscale.formats.wal_entries import WalEntry
from kafscale.log.wal.journal import Round
from kafscale.log.wal.local_wal import Wal
from kafscale.testing.disk import MemoryDisk

TOPIC = bytes(range(16))
PARTITION, LEADER_EPOCH = 3, 7
SEGMENT_BYTES = 2048


class Log:
    """A log over a disk, and what it has told its owner: what is durable, in which groups, and what was replayed."""

    def __init__(
        self,
        disk: MemoryDisk,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        sync_interval_seconds: float = 0.0,
        **options: Any,
    ) -> None:
        self.disk = disk
        self.durable: list[WalEntry] = []
        self.groups: list[int] = []
        self.replayed: list[int] = []
        self.wal = Wal(
            disk=disk,
            on_durable=self._on_durable,
            segment_bytes=segment_bytes,
            sync_interval_seconds=sync_interval_seconds,
            **options,
        )

    def _on_durable(self, entries: Sequence[WalEntry]) -> None:
        self.durable += entries
        self.groups.append(len(entries))

    async def start(self, nursery: trio.Nursery, *, needed: Callable[[int], bool] = lambda offset: True) -> None:
        """Replay the disk and run the log's tasks; `needed` says of an offset whether it is in no segment yet."""
        await self.replay(needed=needed)
        await nursery.start(self.wal.run)
        await nursery.start(self.wal.files.prepare)

    async def replay(self, *, needed: Callable[[int], bool] = lambda offset: True) -> None:
        """Replay the disk, and check each entry on the way."""

        def handle(entry: WalEntry) -> bool:
            assert bytes(entry.data) == content(entry.base_offset, len(entry.data))
            assert (entry.topic_id, entry.partition, entry.leader_epoch) == (TOPIC, PARTITION, LEADER_EPOCH)
            self.replayed.append(entry.base_offset)
            return needed(entry.base_offset)

        await self.wal.replay(handle)

    def append(self, offset: int, size: int = 100) -> Round:
        """Append an entry, whose content follows from its offset."""
        return self.wal.append(WalEntry(TOPIC, PARTITION, LEADER_EPOCH, offset, content(offset, size)))


def content(offset: int, size: int) -> bytes:
    """Return what the entry of an offset holds."""
    return random.Random(offset).randbytes(size)


async def written(count: int, *, size: int = 100, segment_bytes: int = SEGMENT_BYTES) -> MemoryDisk:
    """A disk as a clean stop leaves it after `count` entries, each in a group of its own."""
    log = Log(MemoryDisk(), segment_bytes=segment_bytes)
    async with trio.open_nursery() as nursery:
        await log.start(nursery)
        for offset in range(count):
            await log.append(offset, size).wait()
        nursery.cancel_scope.cancel()
    return log.disk


async def replayed(disk: MemoryDisk) -> list[int]:
    """Return the offsets that a replay of this disk finds."""
    log = Log(disk)
    await log.replay()
    return log.replayed
