"""The disk part of the segment cache: ranges that memory has no room for.

A range is written shortly before memory evicts it, one at a time by a thread, while memory is nearly full. Ranges that
come faster are evicted without. Nothing relies on it: a file that can't be written or read costs a GET and a log line.
Files of an earlier run are removed at a start.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from secrets import token_hex

import attrs
import trio

from kafscale.concurrency.metering import run_in_thread
from kafscale.concurrency.signals import Signal
from kafscale.log.read.checking import are_whole
from kafscale.log.read.segment_cache import Range, RangeMap, SegmentCache
from kafscale.metrics import Metrics
from kafscale.store.paths import SegmentKey

logger = logging.getLogger(__name__)

SUFFIX = ".range"
FILLED_FRACTION = 0.875  # of the memory cache, from which on its oldest ranges go to disk
BLOCK_BYTES = 4096  # what a file takes at least
FAILED_PAUSE_SECONDS = 60.0  # without the disk, after a write has failed
THREADS_COUNT = 4  # to read with


@attrs.frozen(eq=False, repr=False)
class _File:
    key: SegmentKey
    start: int
    end: int
    name: str

    @property
    def counted_bytes(self) -> int:
        return -(-(self.end - self.start) // BLOCK_BYTES) * BLOCK_BYTES


@attrs.define(eq=False, repr=False, kw_only=True)
class DiskCache:
    """Keeps at most `max_bytes` of files in a directory; the least recently used one goes first."""

    directory: Path
    max_bytes: int
    memory: SegmentCache
    size_bytes: int = attrs.field(default=0, init=False)
    hit_count: int = attrs.field(default=0, init=False)
    hit_bytes: int = attrs.field(default=0, init=False)
    written_bytes: int = attrs.field(default=0, init=False)
    failed_count: int = attrs.field(default=0, init=False)
    _files: RangeMap[_File] = attrs.field(factory=RangeMap, init=False)
    _by_use: OrderedDict[_File, None] = attrs.field(factory=OrderedDict, init=False)  # least recent first
    _dropped_names: list[str] = attrs.field(factory=list, init=False)  # of files that are to be removed
    _names: count[int] = attrs.field(factory=count, init=False)
    _run_id: str = attrs.field(factory=lambda: token_hex(8), init=False)  # so that no other process uses the same names
    _wake: Signal = attrs.field(factory=Signal, init=False)
    _readers: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(THREADS_COUNT), init=False)
    _writer: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    def __attrs_post_init__(self) -> None:
        self.memory.on_idle.append(self._wake.set)
        self.memory.on_forget.append(self.forget)

    def register(self, metrics: Metrics) -> None:
        metrics.gauge("kafscale_disk_cache_bytes", "Bytes of segments in the disk cache.", lambda: self.size_bytes)
        metrics.count(
            "kafscale_disk_cache_hits_total", "Ranges of segments found in the disk cache.", lambda: self.hit_count
        )
        metrics.count(
            "kafscale_disk_cache_written_bytes_total", "Bytes written to the disk cache.", lambda: self.written_bytes
        )
        metrics.count(
            "kafscale_disk_cache_failures_total", "Errors of the disk of --cache-directory.", lambda: self.failed_count
        )

    async def run(self) -> None:
        """Empty the directory, then keep what memory is about to evict, until cancelled."""
        if not await self._in_writer(self._empty):
            return
        while True:
            self._wake.clear()
            while self.memory.size_bytes > self.memory.max_bytes * FILLED_FRACTION:
                oldest = self.memory.pin_oldest()
                if oldest is None:
                    break
                if not await self._keep(oldest):
                    await trio.sleep(FAILED_PAUSE_SECONDS)
            await self._wake.wait()

    def end_of(self, key: SegmentKey, start: int, end: int) -> int:
        """Return the end of the cached file with the byte at `start`, at most `end`; `end` if no file has it."""
        found = self._files.find(key, start)
        return end if found is None else min(end, found.end)

    async def read(self, wanted: Range) -> memoryview | None:
        """Return the bytes of a range; None if the disk has not all of them."""
        file = self._files.find(wanted.key, wanted.start)
        if file is None or file.end < wanted.end:
            return None
        self._by_use.move_to_end(file)
        path, position = self.directory / file.name, wanted.start - file.start
        try:
            data = await run_in_thread(_read, path, position, wanted.size_bytes, limiter=self._readers)
            if len(data) != wanted.size_bytes:
                raise OSError(errno.EIO, "cut off", file.name)
            if not await are_whole(memoryview(data)):
                raise OSError(errno.EIO, "damaged", file.name)
        except OSError as exc:
            self._failed(exc)
            self._drop(file)
            return None
        self.hit_count += 1
        self.hit_bytes += len(data)
        return memoryview(data)

    def forget(self, key: SegmentKey) -> None:
        for file in self._files.of(key):
            self._drop(file)

    async def _keep(self, evicted: Range) -> bool:
        file = _File(evicted.key, evicted.start, evicted.end, f"{self._run_id}-{next(self._names)}{SUFFIX}")
        is_new = self._files.gap_end(file.key, file.start, file.end) == file.end
        try:
            if not is_new or file.counted_bytes > self.max_bytes:
                return True
            while self.size_bytes + file.counted_bytes > self.max_bytes:
                self._drop(next(iter(self._by_use)))
            assert evicted.data is not None
            dropped, self._dropped_names = self._dropped_names, []
            if not await self._in_writer(self._write, file.name, evicted.data, dropped):
                return False
            if evicted.is_current:
                self._add(file)
            else:
                self._dropped_names.append(file.name)  # its object was deleted meanwhile
            return True
        finally:
            self.memory.evict(evicted)

    def _add(self, file: _File) -> None:
        self._files.add(file)
        self._by_use[file] = None
        self.size_bytes += file.counted_bytes
        self.written_bytes += file.end - file.start

    def _drop(self, file: _File) -> None:
        if file in self._by_use:  # who reads it may find it damaged when somebody else has already
            del self._by_use[file]
            self._files.remove(file)
            self.size_bytes -= file.counted_bytes
            self._dropped_names.append(file.name)

    async def _in_writer(self, work: Callable[..., None], *args: object) -> bool:
        """Do some work in the writer's thread; False if the disk failed."""
        try:
            await trio.to_thread.run_sync(work, *args, limiter=self._writer)
        except OSError as exc:
            self._failed(exc)
            return False
        return True

    def _failed(self, exc: OSError) -> None:
        self.failed_count += 1
        logger.warning("the cache in %s failed, and does without what it was about: %s", self.directory, exc)

    # ---- in a thread --------------------------------------------------------------------------------------------

    def _empty(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self.directory.glob(f"*{SUFFIX}"):
            path.unlink(missing_ok=True)

    def _write(self, name: str, data: memoryview, dropped: Sequence[str]) -> None:
        for entry in dropped:
            (self.directory / entry).unlink(missing_ok=True)
        path = self.directory / name
        try:
            path.write_bytes(data)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _read(path: Path, position: int, length_bytes: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), length_bytes, position)
