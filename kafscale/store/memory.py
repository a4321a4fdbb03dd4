"""The object store in memory: a verified fake, and `--store memory:` for demonstrations and benchmarks.

Each operation takes effect synchronously after its waits, so a cancelled one has none. Without a limit it starts no
thread, and works with an autojump clock; with one, large objects are copied in a thread (`kafscale.store.blocks`).
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, Callable, Sequence

import attrs
import trio

from kafscale.buffers import Buffer, size_of
from kafscale.errors import NotFound, PreconditionFailed, RangeNotSatisfiable
from kafscale.store.base import LIST_PAGE_MAX_COUNT, ObjectInfo, ObjectPart
from kafscale.store.blocks import BLOCK_BYTES, BlockObject, BlockPool, fill
from kafscale.store.paths import check_key, check_prefix


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@attrs.frozen(eq=False, repr=False)
class _JoinedObject:
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, start: int, length_bytes: int) -> Buffer:
        return memoryview(self.data)[start : start + length_bytes]


@attrs.frozen
class _Object:
    content: _JoinedObject | BlockObject
    etag: str
    modified_ms: int

    def part(self, start: int, length_bytes: int) -> ObjectPart:
        return ObjectPart(self.content.read(start, length_bytes), self.content.size_bytes, self.etag)


@attrs.define(eq=False, kw_only=True, repr=False)
class MemoryStore:
    """A bucket in memory.

    max_bytes: above it, the oldest objects are dropped, except for the newest; None keeps everything. clock_ms: returns
    `ObjectInfo.modified_ms`.
    """

    max_bytes: int | None = None
    clock_ms: Callable[[], int] = _wall_clock_ms
    used_bytes: int = attrs.field(default=0, init=False)
    blocks: BlockPool = attrs.field(factory=BlockPool, init=False)
    _objects: dict[str, _Object] = attrs.field(factory=dict, init=False)  # in the order of their last write
    _keys: list[str] = attrs.field(factory=list, init=False)  # sorted; order by code points is order by UTF-8 bytes
    _last_etag: int = attrs.field(default=0, init=False)
    _copier: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    def copy(self) -> MemoryStore:
        """Return another bucket with the same objects. Only for a bucket without `max_bytes`, which reuses memory."""
        assert self.max_bytes is None
        other = MemoryStore(clock_ms=self.clock_ms)
        other.used_bytes, other._last_etag = self.used_bytes, self._last_etag
        other._objects, other._keys = self._objects.copy(), self._keys.copy()
        return other

    async def get(self, key: str) -> ObjectPart:
        await trio.lowlevel.checkpoint()
        found = self._find(key)
        return found.part(0, found.content.size_bytes)

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        assert start >= 0, start
        assert length_bytes > 0, length_bytes
        await trio.lowlevel.checkpoint()
        found = self._find(key)
        if start >= found.content.size_bytes:
            raise RangeNotSatisfiable(f"{key}: byte {start} of {found.content.size_bytes}")
        return found.part(start, length_bytes)

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        assert length_bytes > 0, length_bytes
        await trio.lowlevel.checkpoint()
        found = self._find(key)
        return found.part(max(0, found.content.size_bytes - length_bytes), length_bytes)

    async def head(self, key: str) -> ObjectInfo:
        await trio.lowlevel.checkpoint()
        self._find(key)
        return self._info(key)

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        return await self._write(key, parts, lambda: None)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        def check() -> None:
            if key in self._objects:
                raise PreconditionFailed(f"{key} exists")

        return await self._write(key, parts, check)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        def check() -> None:
            current = self._objects.get(key)
            if current is None or current.etag != etag:
                raise PreconditionFailed(f"{key} has ETag {current and current.etag}, not {etag}")

        return await self._write(key, parts, check)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        check_prefix(prefix)
        while True:
            await trio.lowlevel.checkpoint()
            # Found again for each page: keys come and go meanwhile.
            index = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after))
            keys = [key for key in self._keys[index : index + LIST_PAGE_MAX_COUNT] if key.startswith(prefix)]
            if keys:
                yield [self._info(key) for key in keys]
            if len(keys) < LIST_PAGE_MAX_COUNT:
                return
            start_after = keys[-1]

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        await trio.lowlevel.checkpoint()
        for key in keys:
            if key in self._objects:
                self._drop(key)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def _find(self, key: str) -> _Object:
        check_key(key)
        found = self._objects.get(key)
        if found is None:
            raise NotFound(key)
        return found

    def _info(self, key: str) -> ObjectInfo:
        found = self._objects[key]
        return ObjectInfo(key, found.content.size_bytes, found.etag, found.modified_ms)

    async def _write(self, key: str, parts: Sequence[Buffer], check: Callable[[], None]) -> str:
        """Write an object; `check` raises PreconditionFailed."""
        check_key(key)
        await trio.lowlevel.checkpoint()
        size_bytes = size_of(parts)
        if self.max_bytes is None or size_bytes < BLOCK_BYTES:
            check()
            return self._publish(key, _JoinedObject(b"".join(parts)))
        content = self.blocks.take(size_bytes)
        try:
            await trio.to_thread.run_sync(fill, content, parts, limiter=self._copier)
            check()
        except BaseException:
            self.blocks.give_back(content)
            raise
        return self._publish(key, content)

    def _publish(self, key: str, content: _JoinedObject | BlockObject) -> str:
        if key in self._objects:
            self._drop(key)
        self._last_etag += 1
        etag = str(self._last_etag)
        self._objects[key] = _Object(content, etag, self.clock_ms())
        insort(self._keys, key)
        self.used_bytes += content.size_bytes
        while self.max_bytes is not None and self.used_bytes > self.max_bytes and len(self._objects) > 1:
            self._drop(next(iter(self._objects)))
        return etag

    def _drop(self, key: str) -> None:
        content = self._objects.pop(key).content
        self.used_bytes -= content.size_bytes
        del self._keys[bisect_left(self._keys, key)]
        if isinstance(content, BlockObject):
            self.blocks.give_back(content)
