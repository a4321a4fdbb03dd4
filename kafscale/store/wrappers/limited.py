"""Stores that need a token of the broker-wide limiter (`kafscale.store.wrappers.limiter`) for each operation.

Each operation holds exactly one while it is at the store, and none while it waits.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import attrs

from kafscale.buffers import Buffer
from kafscale.metrics import Counter
from kafscale.store.base import ObjectInfo, ObjectPart, ObjectStore
from kafscale.store.wrappers.limiter import StoreLimiter, WorkClass


@attrs.define(eq=False, repr=False)
class LimitedStore:
    """An `ObjectStore` each of whose operations waits for a token of one class first; a listing for each page."""

    store: ObjectStore
    _limiter: StoreLimiter
    _work_class: WorkClass = WorkClass.ACKNOWLEDGE

    async def get(self, key: str) -> ObjectPart:
        with await self._limiter.acquire(self._work_class):
            return await self.store.get(key)

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        with await self._limiter.acquire(self._work_class):
            return await self.store.get_range(key, start, length_bytes)

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        with await self._limiter.acquire(self._work_class):
            return await self.store.get_tail(key, length_bytes)

    async def head(self, key: str) -> ObjectInfo:
        with await self._limiter.acquire(self._work_class):
            return await self.store.head(key)

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        with await self._limiter.acquire(self._work_class):
            return await self.store.put(key, parts)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        with await self._limiter.acquire(self._work_class):
            return await self.store.put_if_absent(key, parts)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        with await self._limiter.acquire(self._work_class):
            return await self.store.put_if_match(key, parts, etag)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        async with aclosing(self.store.list(prefix, start_after=start_after)) as pages:
            while True:
                with await self._limiter.acquire(self._work_class):
                    page = await anext(pages, None)
                if page is None:
                    return
                yield page

    async def delete(self, keys: Sequence[str]) -> None:
        with await self._limiter.acquire(self._work_class):
            await self.store.delete(keys)

    async def aclose(self) -> None:
        await self.store.aclose()


@attrs.define(eq=False, repr=False)
class PrefetchStore:
    """Reads that are made only if there is a place for them right now, and skipped otherwise: nobody waits for them.

    They are not retried either. A store without a limiter has always a place.
    """

    _store: ObjectStore
    _limiter: StoreLimiter | None = None
    skipped_count: Counter = attrs.field(factory=Counter)

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart | None:
        """Get a range as `ObjectStore.get_range` does, or return None at once if no token is free."""
        return await self._read(lambda: self._store.get_range(key, start, length_bytes))

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart | None:
        """Get a tail as `ObjectStore.get_tail` does, or return None at once if no token is free."""
        return await self._read(lambda: self._store.get_tail(key, length_bytes))

    async def _read(self, read: Callable[[], Awaitable[ObjectPart]]) -> ObjectPart | None:
        if self._limiter is None:
            return await read()
        token = self._limiter.try_acquire(WorkClass.PREFETCH)
        if token is None:
            self.skipped_count.value += 1
            return None
        with token:
            return await read()
