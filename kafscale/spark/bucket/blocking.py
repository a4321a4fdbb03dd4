"""Runs the broker's coroutines on a bucket that blocks: they wait only for the store, so none ever suspends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

import attrs

from kafscale.buffers import Buffer
from kafscale.errors import AccessDenied, NotFound
from kafscale.spark.bucket.bucket import Bucket
from kafscale.store.base import LIST_PAGE_MAX_COUNT, ObjectInfo, ObjectPart

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine} waits for something else than the store")


@attrs.frozen(eq=False, repr=False)
class BlockingStore:
    """The reading half of an `ObjectStore`, on a `Bucket`. Writing is refused."""

    bucket: Bucket

    async def get(self, key: str) -> ObjectPart:
        return self.bucket.get(key)

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        return self.bucket.get_range(key, start, length_bytes)

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        return self.bucket.get_tail(key, length_bytes)

    async def head(self, key: str) -> ObjectInfo:
        """Find the object by a listing, which is allowed to readers that may not ask for single objects."""
        for info in self.bucket.list(key):
            if info.key == key:
                return info
            break
        raise NotFound(key)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        page: list[ObjectInfo] = []
        for info in self.bucket.list(prefix, start_after):
            page.append(info)
            if len(page) == LIST_PAGE_MAX_COUNT:
                yield page
                page = []
        if page:
            yield page

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        raise AccessDenied(f"put {key}: Spark's readers do not write")

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        return await self.put(key, parts)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        return await self.put(key, parts)

    async def delete(self, keys: Sequence[str]) -> None:
        raise AccessDenied(f"delete {keys[0]}: Spark's readers do not write")

    async def aclose(self) -> None:
        self.bucket.close()
