"""The interface of an object store, and classes that wrappers begin with.

The implementations are `s3`, `file` and `memory`; one contract suite holds for them and for all wrappers. Keys are
relative, separated by `/`, without a leading slash; `kafscale.store.paths` makes all of them. Imports no trio.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar, runtime_checkable

import attrs

from kafscale.buffers import Buffer

T = TypeVar("T")

LIST_PAGE_MAX_COUNT = 1000  # S3's


@attrs.frozen
class ObjectInfo:
    """One row of a listing. `modified_ms` is the store's clock, in milliseconds since the epoch."""

    key: str
    size_bytes: int
    etag: str
    modified_ms: int


@attrs.frozen
class ObjectPart:
    """A range of an object: its bytes, the size of the whole object, and the ETag it had."""

    data: Buffer
    object_size_bytes: int
    etag: str


class ObjectStore(Protocol):
    """An object store with strong read-after-write consistency and conditional writes.

    Every method may raise `AccessDenied`, `SlowDown` and `StoreUnavailable` besides what it lists. A write that raises
    `StoreUnavailable` may or may not have taken effect. A key that `kafscale.store.paths.check_key` refuses is a
    ValueError. An ETag is opaque, changes with each write, and stays the same over a restart.
    """

    async def get(self, key: str) -> ObjectPart:
        """The whole object. Raises NotFound."""
        ...

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        """Bytes `start` to `start + length_bytes` (> 0), fewer at the end. Raises NotFound, RangeNotSatisfiable."""
        ...

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        """The last `length_bytes` (> 0), or all of a shorter object, which may be empty. Raises NotFound."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Raises NotFound."""
        ...

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        """Write the parts, joined, as one object, replacing what was there, all or nothing. Returns the ETag."""
        ...

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        """`put` if no object has the key (If-None-Match: *). Raises PreconditionFailed, Conflict."""
        ...

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        """`put` if the object has this ETag (If-Match). Raises PreconditionFailed, Conflict."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        """Pages (at most 1,000 rows each) of the objects whose key starts with `prefix` and sorts after `start_after`.

        In order of the keys' UTF-8 bytes. Use inside `async with contextlib.aclosing(...)` if you may leave early.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects; a key that does not exist is not an error."""
        ...

    async def aclose(self) -> None:
        """Close connections and files."""
        ...


@attrs.define(eq=False, repr=False)
class ForwardingStore:
    """An `ObjectStore` that passes every operation on to another one; wrappers of few operations begin with it."""

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


@attrs.define(eq=False, repr=False)
class WrappingStore:
    """An `ObjectStore` that does the operations of another one by `perform`; a listing is one for each page."""

    store: ObjectStore

    def perform(self, operation: str, call: Callable[..., Awaitable[T]], *args: Any) -> Coroutine[Any, Any, T]:
        """Return what `call(*args)` returns, an operation of the store; its name is for metrics."""
        raise NotImplementedError

    def get(self, key: str) -> Coroutine[Any, Any, ObjectPart]:
        return self.perform("get", self.store.get, key)

    def get_range(self, key: str, start: int, length_bytes: int) -> Coroutine[Any, Any, ObjectPart]:
        return self.perform("get_range", self.store.get_range, key, start, length_bytes)

    def get_tail(self, key: str, length_bytes: int) -> Coroutine[Any, Any, ObjectPart]:
        return self.perform("get_tail", self.store.get_tail, key, length_bytes)

    def head(self, key: str) -> Coroutine[Any, Any, ObjectInfo]:
        return self.perform("head", self.store.head, key)

    def put(self, key: str, parts: Sequence[Buffer]) -> Coroutine[Any, Any, str]:
        return self.perform("put", self.store.put, key, parts)

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> Coroutine[Any, Any, str]:
        return self.perform("put_if_absent", self.store.put_if_absent, key, parts)

    def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> Coroutine[Any, Any, str]:
        return self.perform("put_if_match", self.store.put_if_match, key, parts, etag)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        async with aclosing(self.store.list(prefix, start_after=start_after)) as pages:
            while (page := await self.perform("list", anext, pages, None)) is not None:
                yield page

    def delete(self, keys: Sequence[str]) -> Coroutine[Any, Any, None]:
        return self.perform("delete", self.store.delete, keys)

    async def aclose(self) -> None:
        await self.store.aclose()


@attrs.frozen
class Upload:
    """An upload that has begun."""

    key: str
    upload_id: str


@attrs.frozen(kw_only=True)
class UploadedPart:
    """A part that the store has: its number, from 1, and what completing the upload must say of it."""

    number: int
    etag: str
    crc32c: str


@runtime_checkable
class MultipartUploads(Protocol):
    """A store that takes an object in parts. Every method may raise what those of `ObjectStore` may."""

    async def begin_upload(self, key: str) -> Upload:
        """Begin an upload; there is no object yet."""
        ...

    async def put_part(self, upload: Upload, number: int, parts: Sequence[Buffer]) -> UploadedPart:
        """Send a part, numbered from 1. Doing it again replaces it. Raises NotFound if there is no such upload."""
        ...

    async def complete_upload(self, upload: Upload, uploaded: Sequence[UploadedPart], *, if_absent: bool) -> str:
        """Make the parts an object, and return its ETag. Raises NotFound, and if `if_absent` PreconditionFailed,
        Conflict.
        """
        ...

    async def abort_upload(self, upload: Upload) -> None:
        """Forget the upload. An unknown upload is not an error."""
        ...
