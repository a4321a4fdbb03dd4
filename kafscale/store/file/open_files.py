"""Objects of a directory as files that the kernel sends from the page cache to a socket (sendfile(2)).

Anything outside of the page cache would make the event loop wait for the disk. Linux 6.5 tells (cachestat(2)); older
kernels never send like this. Files of objects don't change, so a socket's queue stays valid after a deletion.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from time import perf_counter

import attrs

from kafscale.buffers import Buffer
from kafscale.store.file.directory import Directory
from kafscale.store.wrappers.metered import StoreMetrics

CACHESTAT_NUMBER = 451  # of the system call, on every architecture that Python knows


@attrs.define(eq=False, repr=False)
class OpenFile:
    """An object's file, open while it has users; it begins with one."""

    descriptor: int
    size_bytes: int
    _user_count: int = attrs.field(default=1, init=False)

    def retain(self) -> None:
        self._user_count += 1

    def release(self) -> None:
        """Count one user less; the last one closes the file."""
        self._user_count -= 1
        if not self._user_count:
            os.close(self.descriptor)


@attrs.define(eq=False, repr=False)
class FileRange:
    """Bytes `start` to `end` of a file, which transports take like buffers. Its holder owes `release`."""

    file: OpenFile
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def read(self, position: int, length_bytes: int) -> bytes:
        """Return bytes from `position` in the range; fewer at the end of the file."""
        return os.pread(self.file.descriptor, length_bytes, self.start + position)

    def release(self) -> None:
        self.file.release()


Sendable = Buffer | FileRange


@attrs.define(eq=False, repr=False)
class FileSource:
    """The files of a store that is a directory. Each range counts as a read of the store."""

    directory: Directory
    metrics: StoreMetrics

    def open(self, key: str) -> OpenFile:
        """Open an object's file. Raises NotFound, StoreError."""
        return OpenFile(*self.directory.open_object(key))

    def cached_range(self, file: OpenFile, start: int, end: int) -> FileRange | None:
        """Return a range if all of it is in the page cache, else None."""
        began = perf_counter()
        if end > file.size_bytes or not is_cached(file.descriptor, start, end - start):
            return None
        file.retain()
        self.metrics.operations.of("get_range", "ok").value += 1
        self.metrics.seconds.of("get_range", "ok").observe(perf_counter() - began)
        self.metrics.bytes.of("read").value += end - start
        return FileRange(file, start, end)


class _CachestatRange(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Statistics(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


_syscall = ctypes.CDLL(None, use_errno=True).syscall


def is_cached(descriptor: int, start: int, length_bytes: int) -> bool:
    """Tell whether the page cache has all of a range; False if the kernel can't tell."""
    found = _Statistics()
    wanted = _CachestatRange(start, length_bytes)
    if _syscall(CACHESTAT_NUMBER, descriptor, ctypes.byref(wanted), ctypes.byref(found), 0):
        return False
    page_count = (start + length_bytes - 1) // mmap.PAGESIZE - start // mmap.PAGESIZE + 1
    return bool(found.cached >= page_count)
