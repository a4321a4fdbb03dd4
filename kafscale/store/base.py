"""The interface of an object store, and the base of wrappers.

The implementations are `s3`, `file` and `memory`; one contract suite holds for them and for all wrappers. Keys are
relative, separated by `/`; `kafscale.store.paths` makes them. Imports no trio.
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
    """A row of a listing. `modified_ms` is the store's clock since the epoch."""

    key: str
    size_bytes: int
    etag: str
    modified_ms: int


@attrs.frozen
class ObjectPart:
    """A range of an object, with the size and ETag of the whole object."""

    data: Buffer
    object_size_bytes: int
    etag: str


class ObjectStore(Protocol):
    """An object store with strong read-after-write consistency and conditional writes.

    Every method may raise `AccessDenied`, `SlowDown` and `StoreUnavailable`. A write that raises `StoreUnavailable` may
    have taken effect. A key that `kafscale.store.paths.check_key` refuses is a ValueError. An ETag is opaque, changes
    with each write, and survives restarts.
    """

    async def get(self, key: str) -> ObjectPart:
        """Return the whole object. Raises NotFound."""
        ...

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        """Return `length_bytes` (> 0) from `start`, fewer at the end. Raises NotFound, RangeNotSatisfiable."""
        ...

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        """Return the last `length_bytes` (> 0), or a shorter object, which may be empty. Raises NotFound."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Raises NotFound."""
        ...

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        """Write the joined parts as one object, all or nothing, replacing an earlier one. Returns the ETag."""
        ...

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        """Write if no object has the key (If-None-Match: *). Raises PreconditionFailed, Conflict."""
        ...

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        """Write if the object has this ETag (If-Match). Raises PreconditionFailed, Conflict."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        """Yield pages of at most 1,000 objects whose keys start with `prefix` and sort after `start_after`.

        The order is that of the keys' UTF-8 bytes. Use it inside `async with contextlib.aclosing(...)` if you may leave
        early.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects that exist."""
        ...

    async def aclose(self) -> None: ...


@attrs.define(eq=False, repr=False)
class ForwardingStore:
    """An `ObjectStore` that performs the operations of another one; each page of a listing is one, too."""

    store: ObjectStore

    def perform(self, operation: str, call: Callable[..., Awaitable[T]], *args: Any) -> Coroutine[Any, Any, T]:
        """Perform an operation of the store, by `call(*args)`; its name is for metrics."""
        return call(*args)  # type: ignore[return-value]  # it is a coroutine, or can be awaited like one

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
    key: str
    upload_id: str


@attrs.frozen(kw_only=True)
class UploadedPart:
    """An uploaded part: its number, from 1, and the values that complete the upload."""

    number: int
    etag: str
    crc32c: str


@runtime_checkable
class MultipartUploads(Protocol):
    """A store that takes an object in parts. Methods may raise what those of `ObjectStore` may."""

    async def begin_upload(self, key: str) -> Upload: ...

    async def put_part(self, upload: Upload, number: int, parts: Sequence[Buffer]) -> UploadedPart:
        """Send a part, numbered from 1, in place of an earlier one. Raises NotFound for an unknown upload."""
        ...

    async def complete_upload(self, upload: Upload, uploaded: Sequence[UploadedPart], *, if_absent: bool) -> str:
        """Make the parts an object, and return its ETag.

        Raises NotFound, and with `if_absent` PreconditionFailed, Conflict.
        """
        ...

    async def abort_upload(self, upload: Upload) -> None:
        """Forget the upload if it exists."""
        ...
