"""A store with a round-trip time, a shared bandwidth and a limit of operations, in simulated time.

Under an autojump clock hours of traffic take seconds, and are the same each time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import attrs
import trio

from kafscale.buffers import Buffer, size_of
from kafscale.errors import SlowDown
from kafscale.store.base import ForwardingStore, ObjectInfo, ObjectPart
from kafscale.testing.tcp_proxy import Link


@attrs.define(eq=False)
class SimulatedStore(ForwardingStore):
    """Wrapper of a store that is `latency_seconds` and one shared `link` away.

    slows_past_count: further operations at once are answered with SlowDown, in half the latency.
    """

    latency_seconds: float = 0.015
    link: Link = attrs.field(factory=lambda: Link(math.inf))
    slows_past_count: float = math.inf
    in_flight_count: int = attrs.field(default=0, init=False)
    max_in_flight_count: int = attrs.field(default=0, init=False)
    answers: Counter[str] = attrs.field(factory=Counter, init=False)

    @asynccontextmanager
    async def _exchange(self, sent_bytes: int = 0) -> AsyncIterator[None]:
        self.in_flight_count += 1
        self.max_in_flight_count = max(self.max_in_flight_count, self.in_flight_count)
        try:
            await trio.sleep(self.latency_seconds / 2)
            if self.in_flight_count > self.slows_past_count:
                self.answers["slow_down"] += 1
                raise SlowDown(f"{self.in_flight_count} operations at once")
            await self.link.carry(sent_bytes)
            await trio.sleep(self.latency_seconds / 2)
            yield
            self.answers["done"] += 1
        finally:
            self.in_flight_count -= 1

    async def _received(self, part: ObjectPart) -> ObjectPart:
        await self.link.carry(len(part.data))
        return part

    async def get(self, key: str) -> ObjectPart:
        async with self._exchange():
            return await self._received(await self.store.get(key))

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        async with self._exchange():
            return await self._received(await self.store.get_range(key, start, length_bytes))

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        async with self._exchange():
            return await self._received(await self.store.get_tail(key, length_bytes))

    async def head(self, key: str) -> ObjectInfo:
        async with self._exchange():
            return await self.store.head(key)

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        async with self._exchange(size_of(parts)):
            return await self.store.put(key, parts)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        async with self._exchange(size_of(parts)):
            return await self.store.put_if_absent(key, parts)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        async with self._exchange(size_of(parts)):
            return await self.store.put_if_match(key, parts, etag)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        async with aclosing(self.store.list(prefix, start_after=start_after)) as pages:
            async for page in pages:
                async with self._exchange():
                    pass
                yield page

    async def delete(self, keys: Sequence[str]) -> None:
        async with self._exchange():
            await self.store.delete(keys)
