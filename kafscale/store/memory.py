"""The object store in memory: the verified fake, and `--store memory:` for demonstrations and benchmarks.

It passes the contract suite that S3 passes. It starts no thread, so it works under an autojump clock, and each
operation is one checkpoint and then one synchronous effect, so a cancelled operation has had none.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from itertools import count

import attrs
import trio

from kafscale.errors import NotFound, PreconditionFailed, RangeNotSatisfiable
from kafscale.store.base import LIST_PAGE_MAX_COUNT, Buffer, ObjectInfo, ObjectPart
from kafscale.store.paths import check_key, check_prefix


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@attrs.frozen
class _Object:
    data: bytes
    etag: str
    modified_ms: int


@attrs.define(eq=False, kw_only=True)
class MemoryStore:
    """A bucket in memory.

    max_bytes: past it, the objects written longest ago are dropped, all but the newest. For benchmarks, which write
        more than the machine has memory for; None keeps everything.
    clock_ms: gives `ObjectInfo.modified_ms`.
    """

    max_bytes: int | None = None
    clock_ms: Callable[[], int] = _wall_clock_ms
    used_bytes: int = attrs.field(default=0, init=False)
    _objects: dict[str, _Object] = attrs.field(factory=dict, init=False)  # in the order of their last write
    _keys: list[str] = attrs.field(factory=list, init=False)  # sorted; order by code points is order by UTF-8 bytes
    _etags: Iterator[int] = attrs.field(factory=lambda: count(1), init=False)

    async def get(self, key: str) -> ObjectPart:
        await trio.lowlevel.checkpoint()
        found = self._find(key)
        return ObjectPart(found.data, len(found.data), found.etag)

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        assert start >= 0, start
        assert length_bytes > 0, length_bytes
        await trio.lowlevel.checkpoint()
        found = self._find(key)
        if start >= len(found.data):
            raise RangeNotSatisfiable(f"{key}: byte {start} of {len(found.data)}")
        return ObjectPart(memoryview(found.data)[start : start + length_bytes], len(found.data), found.etag)

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        assert length_bytes > 0, length_bytes
        await trio.lowlevel.checkpoint()
        found = self._find(key)
        return ObjectPart(memoryview(found.data)[-length_bytes:], len(found.data), found.etag)

    async def head(self, key: str) -> ObjectInfo:
        await trio.lowlevel.checkpoint()
        self._find(key)
        return self._info(key)

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        check_key(key)
        await trio.lowlevel.checkpoint()
        return self._write(key, parts)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        check_key(key)
        await trio.lowlevel.checkpoint()
        if key in self._objects:
            raise PreconditionFailed(f"{key} exists")
        return self._write(key, parts)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        check_key(key)
        await trio.lowlevel.checkpoint()
        current = self._objects.get(key)
        if current is None or current.etag != etag:
            raise PreconditionFailed(f"{key} has ETag {current and current.etag}, not {etag}")
        return self._write(key, parts)

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
        return ObjectInfo(key, len(found.data), found.etag, found.modified_ms)

    def _write(self, key: str, parts: Sequence[Buffer]) -> str:
        if key in self._objects:
            self._drop(key)
        data = b"".join(parts)
        etag = str(next(self._etags))
        self._objects[key] = _Object(data, etag, self.clock_ms())
        insort(self._keys, key)
        self.used_bytes += len(data)
        while self.max_bytes is not None and self.used_bytes > self.max_bytes and len(self._objects) > 1:
            self._drop(next(iter(self._objects)))
        return etag

    def _drop(self, key: str) -> None:
        self.used_bytes -= len(self._objects.pop(key).data)
        del self._keys[bisect_left(self._keys, key)]
