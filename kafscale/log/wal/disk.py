"""The local disk as the log needs it: a directory of files that are written once, front to back.

`RealDisk` does each operation in one thread hop; `kafscale.testing.disk.MemoryDisk` in memory, with faults. An
operation raises OSError, or is cancelled before it had an effect, or has happened and survives a power cut.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.descriptors import open_patiently
from kafscale.log.wal.direct_io import DirectFile, DirectWriter
from kafscale.store.file.slices import write_all

NO_SPACE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})  # of a full disk, and of a quota that is used up
# What is synced leaves the page cache after this much: nothing but a replay reads it again, and the next writes find
# its pages free. Batches of 960 KiB cost 2.9 ms of CPU with this and 3.9 without, in a VM, where new pages are dear.
CACHED_MAX_BYTES = 1 << 20
READERS_COUNT = 4  # threads for everything but the write path: batches read back, files made and deleted


class Disk(Protocol):
    """One directory of files. Every method may raise OSError."""

    @property
    def location(self) -> str:
        """The disk's place, for messages."""

    async def list(self) -> Mapping[str, int]:
        """Return the files' sizes in bytes."""

    async def create(self, name: str, size_bytes: int, header: Buffer, *, reuse: str | None = None) -> None:
        """Make a file of allocated zeros that begins with `header`. On OSError nothing is left of it.

        Or make it from the file `reuse` of this size, whose content stays behind the header. On OSError, or if the
        machine dies, that file is still there, perhaps with the header.
        """

    async def rename(self, name: str, new_name: str) -> None:
        """Rename the file, durably."""

    async def write_and_sync(self, name: str, buffers: Sequence[Buffer], position: int) -> None:
        """Write the buffers one behind the other and make them durable. One call at a time."""

    async def read(self, name: str, position: int, length_bytes: int) -> bytes:
        """Return these bytes; fewer at the end of the file."""

    async def truncate(self, name: str, size_bytes: int) -> None:
        """Cut the file, durably."""

    async def delete(self, name: str) -> None:
        """Delete the file, durably; can be repeated after a failure."""

    def close(self) -> None:
        """Close open files; nothing may be under way."""


@attrs.define(eq=False, repr=False)
class RealDisk:
    """A directory of the file system, made if need be. Writes use `direct_io` where possible.

    Otherwise write and sync share one thread hop, under a limiter of their own. On ext4 both take 110 to 140 us, 220
    through the hop. On a busy disk, files that were written before halve the p99: their syncs wait for no journal.
    """

    directory: Path
    _descriptors: dict[str, int] = attrs.field(factory=dict, init=False)  # of the files written to, until deleted
    _direct: DirectWriter | None = attrs.field(default=None, init=False)
    _direct_files: dict[str, DirectFile] = attrs.field(factory=dict, init=False)
    _has_written: bool = attrs.field(default=False, init=False)
    _writer: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _others: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(READERS_COUNT), init=False)

    @property
    def location(self) -> str:
        return str(self.directory)

    async def list(self) -> Mapping[str, int]:
        return await trio.to_thread.run_sync(self._list, limiter=self._others)

    async def create(self, name: str, size_bytes: int, header: Buffer, *, reuse: str | None = None) -> None:
        if reuse is None:
            await trio.to_thread.run_sync(self._create, name, size_bytes, header, limiter=self._others)
        else:
            await trio.to_thread.run_sync(self._reuse, reuse, name, header, limiter=self._others)

    async def rename(self, name: str, new_name: str) -> None:
        await trio.to_thread.run_sync(self._rename, name, new_name, limiter=self._others)

    async def write_and_sync(self, name: str, buffers: Sequence[Buffer], position: int) -> None:
        if not await self._write_directly(name, buffers, position):
            await trio.to_thread.run_sync(self._write_and_sync, name, buffers, position, limiter=self._writer)

    async def _write_directly(self, name: str, buffers: Sequence[Buffer], position: int) -> bool:
        if not self._has_written:
            self._has_written = True
            self._direct = DirectWriter.open()
        if self._direct is None or not self._direct.usable:
            return False
        file = self._direct_files.get(name)
        if file is None:
            file = self._direct.open_file(str(self.directory / name))
            if file is None:
                return False
            self._direct_files[name] = file
        return await self._direct.write(file, buffers, position)

    async def read(self, name: str, position: int, length_bytes: int) -> bytes:
        return await trio.to_thread.run_sync(self._read, name, position, length_bytes, limiter=self._others)

    async def truncate(self, name: str, size_bytes: int) -> None:
        await trio.to_thread.run_sync(self._truncate, name, size_bytes, limiter=self._others)

    async def delete(self, name: str) -> None:
        await trio.to_thread.run_sync(self._delete, name, limiter=self._others)

    def close(self) -> None:
        for name in {*self._descriptors, *self._direct_files}:
            self._close(name)
        if self._direct is not None:
            self._direct.close()
            self._direct = None

    def _list(self) -> Mapping[str, int]:
        if not self.directory.exists():
            self.directory.mkdir(mode=0o700, parents=True)
            _sync_directory(self.directory.parent)
        sizes = {}
        for path in self.directory.iterdir():
            with suppress(FileNotFoundError):  # another process that looks on meets deletions
                sizes[path.name] = path.stat().st_size
        return sizes

    def _create(self, name: str, size_bytes: int, header: Buffer) -> None:
        path = self.directory / name
        descriptor = open_patiently(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
            write_all(descriptor, [header], 0)
            os.fsync(descriptor)
            _sync_directory(self.directory)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
        self._descriptors[name] = descriptor

    def _reuse(self, old_name: str, name: str, header: Buffer) -> None:
        descriptor = open_patiently(self.directory / old_name, os.O_RDWR)
        try:
            write_all(descriptor, [header], 0)
            os.fdatasync(descriptor)  # before it has the name under which it is looked at
            self._rename(old_name, name)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptors[name] = descriptor

    def _rename(self, name: str, new_name: str) -> None:
        self._close(name)
        (self.directory / name).rename(self.directory / new_name)
        _sync_directory(self.directory)

    def _write_and_sync(self, name: str, buffers: Sequence[Buffer], position: int) -> None:
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            descriptor = self._descriptors[name] = open_patiently(self.directory / name, os.O_RDWR)
        end = write_all(descriptor, buffers, position)
        os.fdatasync(descriptor)
        if position // CACHED_MAX_BYTES != end // CACHED_MAX_BYTES:
            os.posix_fadvise(descriptor, 0, end, os.POSIX_FADV_DONTNEED)

    def _read(self, name: str, position: int, length_bytes: int) -> bytes:
        # Not through a descriptor that a deletion in another thread could close and the next open reuse.
        with open(self.directory / name, "rb", buffering=0, opener=open_patiently) as file:
            parts = []
            while length_bytes and (part := os.pread(file.fileno(), length_bytes, position)):
                parts.append(part)
                position += len(part)
                length_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _truncate(self, name: str, size_bytes: int) -> None:
        with open(self.directory / name, "rb+", buffering=0, opener=open_patiently) as file:
            file.truncate(size_bytes)
            os.fsync(file.fileno())

    def _delete(self, name: str) -> None:
        self._close(name)
        (self.directory / name).unlink(missing_ok=True)
        _sync_directory(self.directory)

    def _close(self, name: str) -> None:
        descriptor = self._descriptors.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)
        file = self._direct_files.pop(name, None)
        if file is not None:
            file.close()


def _sync_directory(directory: Path) -> None:
    descriptor = open_patiently(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
