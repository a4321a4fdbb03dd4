"""Objects of a directory as files that the kernel sends by itself, from the page cache to a socket (sendfile(2)).

Only what is in the page cache is sent like that, as anything else would have the event loop wait for the disk. Linux
tells since 6.5 (cachestat(2)); where it does not, nothing is, and ranges are read as those of any store.

An object's file never changes, so what is still in a socket's queue stays what it was, also when the file is deleted.
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
    """An object's file, open as long as somebody uses it. Made with one user."""

    descriptor: int
    size_bytes: int
    _user_count: int = attrs.field(default=1, init=False)

    def retain(self) -> None:
        """Count one more user of the file."""
        self._user_count += 1

    def release(self) -> None:
        """One user less; the last one closes it."""
        self._user_count -= 1
        if not self._user_count:
            os.close(self.descriptor)


@attrs.define(eq=False, repr=False)
class FileRange:
    """Bytes `start` to `end` of a file, which transports take as well as buffers. Its holder owes `release`."""

    file: OpenFile
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def read(self, position: int, length_bytes: int) -> bytes:
        """A few bytes, from `position` in the range on; fewer at the end of the file."""
        return os.pread(self.file.descriptor, length_bytes, self.start + position)

    def release(self) -> None:
        """Give up the range, which has been sent or is not wanted any more."""
        self.file.release()


Sendable = Buffer | FileRange


@attrs.define(eq=False, repr=False)
class FileSource:
    """The files of a store that is a directory. Each range counts as a read of the store, as any other."""

    directory: Directory
    metrics: StoreMetrics

    def open(self, key: str) -> OpenFile:
        """Raises NotFound, StoreError."""
        return OpenFile(*self.directory.open_object(key))

    def cached_range(self, file: OpenFile, start: int, end: int) -> FileRange | None:
        """A range of it, if all of that is in the page cache."""
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
    """Tell whether the page cache has all of a range of a file; False where the kernel does not tell."""
    found = _Statistics()
    wanted = _CachestatRange(start, length_bytes)
    if _syscall(CACHESTAT_NUMBER, descriptor, ctypes.byref(wanted), ctypes.byref(found), 0):
        return False
    page_count = (start + length_bytes - 1) // mmap.PAGESIZE - start // mmap.PAGESIZE + 1
    return bool(found.cached >= page_count)
