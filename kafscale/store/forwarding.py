"""A store that passes every operation on to another one: what a wrapper of few operations begins with."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import attrs

from kafscale.buffers import Buffer
from kafscale.store.base import ObjectInfo, ObjectPart, ObjectStore


@attrs.define(eq=False, repr=False)
class ForwardingStore:
    """An `ObjectStore` that does nothing by itself."""

    store: ObjectStore

    async def get(self, key: str) -> ObjectPart:
        return await self.store.get(key)

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        return await self.store.get_range(key, start, length_bytes)

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        return await self.store.get_tail(key, length_bytes)

    async def head(self, key: str) -> ObjectInfo:
        return await self.store.head(key)

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        return await self.store.put(key, parts)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        return await self.store.put_if_absent(key, parts)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        return await self.store.put_if_match(key, parts, etag)

    def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        return self.store.list(prefix, start_after=start_after)

    async def delete(self, keys: Sequence[str]) -> None:
        await self.store.delete(keys)

    async def aclose(self) -> None:
        await self.store.aclose()
