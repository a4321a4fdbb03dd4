"""A disk in memory that can be slow, full or broken, and loses unsynced bytes in a crash.

`MemoryDisk` is a `kafscale.log.wal.disk.Disk` without threads, so it works with trio's autojump clock. Faults are set
by operation name: `list`, `create`, `rename`, `write`, `sync`, `read`, `truncate`, `delete`.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import attrs
import trio

from kafscale.buffers import Buffer

SECTOR_BYTES = 512  # a disk writes a sector whole or not at all


@attrs.define(eq=False, repr=False)
class MemoryDisk:
    """Files in memory: their content, and that after a power cut. `free_bytes` limits `create`."""

    sync_seconds: float = 0.0
    create_seconds: float = 0.0
    free_bytes: int | None = None
    location: str = "memory"
    files: dict[str, bytearray] = attrs.field(factory=dict, init=False)
    synced: dict[str, bytearray] = attrs.field(factory=dict, init=False)
    note: Callable[[str], None] | None = None  # told of each operation
    operations: Counter[str] = attrs.field(factory=Counter, init=False)  # how often each was called
    has_failed: bool = attrs.field(default=False, init=False)  # an operation, by a fault or a full disk
    _unsynced: dict[str, tuple[int, bytes]] = attrs.field(factory=dict, init=False)  # the last write to a file
    _writing: set[str] = attrs.field(factory=set, init=False)
    _faults: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)

    def fail(self, operation: str, *, after: int = 0, error_number: int = errno.EIO) -> None:
        """Let a call of the operation raise OSError: the next one, or the one after `after` calls."""
        self._faults[operation, self.operations[operation] + 1 + after] = error_number

    def heal(self) -> None:
        self.sync_seconds = self.create_seconds = 0.0
        self.free_bytes = None
        self._faults.clear()

    def flip_bit(self, name: str, position: int, bit: int = 0) -> None:
        for content in (self.files[name], self.synced[name]):
            content[position] ^= 1 << bit

    def crash(self, *, torn_bytes: int = 0, rng: random.Random | None = None) -> MemoryDisk:
        """Return the disk after a power cut now, without the faults of this one.

        Of an unsynced write the first `torn_bytes` survive, or with `rng` random sectors.
        """
        after = MemoryDisk(location=self.location, note=self.note)
        after.synced = {name: bytearray(content) for name, content in self.synced.items()}
        for name, (position, data) in self._unsynced.items():
            content = after.synced[name]
            if rng is None:
                content[position : position + min(torn_bytes, len(data))] = data[:torn_bytes]
            else:
                _write_some_sectors(content, position, data, rng)
        after.files = {name: bytearray(content) for name, content in after.synced.items()}
        return after

    async def list(self) -> Mapping[str, int]:
        await self._begin("list")
        return {name: len(content) for name, content in self.files.items()}

    async def create(self, name: str, size_bytes: int, header: Buffer, *, reuse: str | None = None) -> None:
        await self._begin("create", name)
        assert name not in self.files, name
        if reuse is None:
            await self._create(name, size_bytes, header)
        else:
            await self._reuse(reuse, name, size_bytes, header)

    async def _create(self, name: str, size_bytes: int, header: Buffer) -> None:
        if self.free_bytes is not None and size_bytes > self.free_bytes:
            self.has_failed = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.files[name] = bytearray(size_bytes)
        self.synced[name] = bytearray(size_bytes)  # a crash from now on leaves the file without its header
        await _take(self.create_seconds)
        for content in (self.files[name], self.synced[name]):
            content[: len(header)] = header
        if self.free_bytes is not None:
            self.free_bytes -= size_bytes

    async def _reuse(self, old_name: str, name: str, size_bytes: int, header: Buffer) -> None:
        assert len(self.files[old_name]) == size_bytes, (old_name, size_bytes)
        for content in (self.files[old_name], self.synced[old_name]):  # a crash from now on leaves its old name
            content[: len(header)] = header
        await _take(self.create_seconds)
        self._rename(old_name, name)

    async def rename(self, name: str, new_name: str) -> None:
        await self._begin("rename", name)
        self._rename(name, new_name)

    def _rename(self, name: str, new_name: str) -> None:
        for files in (self.files, self.synced):
            files[new_name] = files.pop(name)

    async def write_and_sync(self, name: str, buffers: Sequence[Buffer], position: int) -> None:
        await self._begin("write", name)
        assert name not in self._writing, "two writes at a time"
        data = b"".join(buffers)
        self.files[name][position : position + len(data)] = data
        self._unsynced[name] = (position, data)
        self._writing.add(name)
        await _take(self.sync_seconds)
        self._writing.discard(name)
        self._count("sync")
        self.synced[name][position : position + len(data)] = data
        del self._unsynced[name]

    async def read(self, name: str, position: int, length_bytes: int) -> bytes:
        await self._begin("read", name)
        return bytes(memoryview(self.files[name])[position : position + length_bytes])

    async def truncate(self, name: str, size_bytes: int) -> None:
        await self._begin("truncate", name)
        for content in (self.files[name], self.synced[name]):
            del content[size_bytes:]

    async def delete(self, name: str) -> None:
        await self._begin("delete", name)
        if self.free_bytes is not None:
            self.free_bytes += len(self.files[name])
        del self.files[name], self.synced[name]

    def close(self) -> None: ...

    async def _begin(self, operation: str, name: str = "") -> None:
        await trio.lowlevel.checkpoint()
        if self.note is not None:
            self.note(f"disk {operation} {name}")
        self._count(operation)

    def _count(self, operation: str) -> None:
        self.operations[operation] += 1
        error_number = self._faults.pop((operation, self.operations[operation]), None)
        if error_number is not None:
            self.has_failed = True
            raise OSError(error_number, os.strerror(error_number))


async def _take(seconds: float) -> None:
    """Sleep without being cancelled, like a thread in fdatasync."""
    if seconds:
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)
    else:
        await trio.lowlevel.cancel_shielded_checkpoint()


def _write_some_sectors(content: bytearray, position: int, data: bytes, rng: random.Random) -> None:
    start = position
    end = position + len(data)
    while start < end:
        sector_end = min(end, start - start % SECTOR_BYTES + SECTOR_BYTES)
        if rng.random() < 0.5:
            content[start:sector_end] = data[start - position : sector_end - position]
        start = sector_end
