"""The broker-wide limit on operations at the object store.

`StoreLimiter` holds the only count of tokens: one `trio.CapacityLimiter`, FIFO, shared by everything that talks to the
store. `LimitedStore` makes each operation hold exactly one token while it is at the store, a listing one for each page.
Nothing holds a token while it waits for another one, so a limit of 1 works too.

Who waits in which order is decided in `StoreLimiter.acquire` alone.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType

import attrs
import trio

from kafscale.metrics import Histogram
from kafscale.store.base import Buffer, ObjectInfo, ObjectPart, ObjectStore
from kafscale.store.metered import StoreMetrics


@attrs.frozen(eq=False)
class Token:
    """A place at the store, for one operation; given back when the `with` block ends.

    It is its own borrower, so a task may have several operations under way.
    """

    _capacity: trio.CapacityLimiter

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._capacity.release_on_behalf_of(self)


@attrs.frozen
class LimiterStatistics:
    """Operations at the store, operations that wait, and the limit (`math.inf` without one)."""

    in_use_count: int
    waiting_count: int
    limit: float


class StoreLimiter:
    """How many operations may be at the store at once; `concurrency` 0 means as many as like."""

    def __init__(self, concurrency: int, metrics: StoreMetrics) -> None:
        self._capacity = trio.CapacityLimiter(concurrency or math.inf)
        self._wait_seconds: Histogram = metrics.wait_seconds
        gauge = metrics.registry.gauge
        gauge("kafscale_store_in_use", "Operations at the store", lambda: self.statistics().in_use_count)
        gauge("kafscale_store_waiting", "Operations that wait for the limiter", lambda: self.statistics().waiting_count)
        # Prometheus knows +Inf, but a limit that is off reads best as the option that turned it off.
        gauge("kafscale_store_limit", "Operations allowed at once, 0 for no limit", lambda: concurrency)

    async def acquire(self) -> Token:
        """Wait for a place, behind those who wait already. A cancelled wait leaves the line."""
        token = Token(self._capacity)
        started = trio.current_time()
        await self._capacity.acquire_on_behalf_of(token)
        self._wait_seconds.observe(trio.current_time() - started)
        return token

    def try_acquire(self) -> Token | None:
        """A place if one is free and nobody waits. For what may as well be left undone, such as prefetch."""
        token = Token(self._capacity)
        try:
            self._capacity.acquire_on_behalf_of_nowait(token)
        except trio.WouldBlock:
            return None
        return token

    def statistics(self) -> LimiterStatistics:
        found = self._capacity.statistics()
        return LimiterStatistics(found.borrowed_tokens, found.tasks_waiting, found.total_tokens)


@attrs.define(eq=False)
class LimitedStore:
    """An `ObjectStore` each of whose operations waits for a token first.

    `store` is the one behind, for who holds a token already, from `limiter.try_acquire`.
    """

    store: ObjectStore
    limiter: StoreLimiter

    async def get(self, key: str) -> ObjectPart:
        with await self.limiter.acquire():
            return await self.store.get(key)

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        with await self.limiter.acquire():
            return await self.store.get_range(key, start, length_bytes)

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        with await self.limiter.acquire():
            return await self.store.get_tail(key, length_bytes)

    async def head(self, key: str) -> ObjectInfo:
        with await self.limiter.acquire():
            return await self.store.head(key)

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        with await self.limiter.acquire():
            return await self.store.put(key, parts)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        with await self.limiter.acquire():
            return await self.store.put_if_absent(key, parts)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        with await self.limiter.acquire():
            return await self.store.put_if_match(key, parts, etag)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        async with aclosing(self.store.list(prefix, start_after=start_after)) as pages:
            while True:
                with await self.limiter.acquire():
                    page = await anext(pages, None)
                if page is None:
                    return
                yield page

    async def delete(self, keys: Sequence[str]) -> None:
        with await self.limiter.acquire():
            await self.store.delete(keys)

    async def aclose(self) -> None:
        await self.store.aclose()
