"""The file store: a directory as a bucket, the default of `kafscale serve`.

`kafscale.store.file.directory` does the work in a thread, one hop for each operation or page; ranges in the page cache
are read at once. A cancelled large write gives up between two slices, without effect; other operations complete.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from itertools import islice

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.concurrency.metering import run_in_thread
from kafscale.store.base import LIST_PAGE_MAX_COUNT, ObjectInfo, ObjectPart
from kafscale.store.file.directory import Directory
from kafscale.store.paths import check_prefix

# Threads for each of reads and writes, so that reads don't queue behind syncs. Concurrent syncs share a commit of the
# file system's journal, so more threads than cores pay off.
THREADS_MAX_COUNT = 8

# What the page cache has is copied in the event loop where that takes less than 1 ms: a thread for it costs more, above
# all the wait for the interpreter's lock. CPU of a fetch of 960 KiB: 760 to 880 us, with a thread 910 to 1,110.
READ_AT_ONCE_MAX_BYTES = 4 << 20


def _limiter() -> trio.CapacityLimiter:
    return trio.CapacityLimiter(THREADS_MAX_COUNT)


@attrs.define(eq=False, repr=False)
class FileStore:
    """An `ObjectStore` in a directory that several processes may share."""

    directory: Directory
    _readers: trio.CapacityLimiter = attrs.field(factory=_limiter, init=False)
    _writers: trio.CapacityLimiter = attrs.field(factory=_limiter, init=False)

    @classmethod
    async def open(cls, path: str | os.PathLike[str]) -> FileStore:
        """Open the directory, and make it if it is missing. Raises AccessDenied, StoreUnavailable, StoreError."""
        return cls(await trio.to_thread.run_sync(Directory.open, path))

    async def get(self, key: str) -> ObjectPart:
        return await trio.to_thread.run_sync(self.directory.read, key, limiter=self._readers)

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        assert start >= 0, start
        assert length_bytes > 0, length_bytes
        if length_bytes <= READ_AT_ONCE_MAX_BYTES:
            part = self.directory.read_range_nowait(key, start, length_bytes)
            if part is not None:
                await trio.lowlevel.checkpoint()
                return part
        read = self.directory.read_range
        return await run_in_thread(read, key, start, length_bytes, limiter=self._readers)

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        assert length_bytes > 0, length_bytes
        return await trio.to_thread.run_sync(self.directory.read_tail, key, length_bytes, limiter=self._readers)

    async def head(self, key: str) -> ObjectInfo:
        return await trio.to_thread.run_sync(self.directory.info, key, limiter=self._readers)

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        return await self._write(partial(self.directory.write, key, parts))

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        return await self._write(partial(self.directory.write_if_absent, key, parts))

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        return await self._write(partial(self.directory.write_if_match, key, parts, etag))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        check_prefix(prefix)
        objects = self.directory.walk(prefix, start_after)
        while True:
            page = await trio.to_thread.run_sync(lambda: [*islice(objects, LIST_PAGE_MAX_COUNT)], limiter=self._readers)
            if not page:
                return
            yield page

    async def delete(self, keys: Sequence[str]) -> None:
        await trio.to_thread.run_sync(self.directory.delete, keys, limiter=self._writers)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _write(self, write: partial[str]) -> str:
        return await trio.to_thread.run_sync(
            partial(write, between_slices=trio.from_thread.check_cancelled), limiter=self._writers
        )
