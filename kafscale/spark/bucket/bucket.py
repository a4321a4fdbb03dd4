"""The bucket as Spark's driver and tasks read it: blocking, from any thread, without the right to write.

`run` runs the broker's coroutines on a `BlockingStore`: they wait only for the store, so none ever suspends.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, Protocol, TypeVar

import attrs

from kafscale.buffers import Buffer
from kafscale.config import StoreUrl
from kafscale.errors import AccessDenied, ConfigError, DamagedObject, NotFound, RangeNotSatisfiable
from kafscale.store.base import LIST_PAGE_MAX_COUNT, ObjectInfo, ObjectPart
from kafscale.store.file.directory import Directory
from kafscale.store.s3.sigv4 import S3Credentials


class Bucket(Protocol):
    """A bucket to read. Every method may raise AccessDenied and StoreUnavailable besides the listed errors."""

    def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        """Return bytes `start` to `start + length_bytes`, fewer at the end. Raises NotFound, RangeNotSatisfiable."""
        ...

    def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        """Return the last `length_bytes`, or all of a shorter object. Raises NotFound."""
        ...

    def get(self, key: str) -> ObjectPart:
        """Return the whole object. Raises NotFound."""
        ...

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Iterate over objects whose keys start with `prefix` and sort after `start_after`, in order of bytes."""
        ...

    def close(self) -> None: ...


@attrs.frozen(kw_only=True)
class BucketOptions:
    """The place of the bucket and the access to it; travels from the driver to the tasks.

    Without `credentials`, each process looks where AWS SDKs do.
    """

    url: StoreUrl
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    ca_file: str | None = None
    credentials: S3Credentials | None = attrs.field(default=None, repr=False)

    def open(self) -> Bucket:
        """Open the bucket. Raises ConfigError for a store that a job can't read."""
        if self.url.scheme == "file":
            if not self.url.path.is_dir():
                raise ConfigError(f"there is no bucket at {self.url}: give the --store of a broker, as file:PATH")
            return DirectoryBucket(Directory(os.path.abspath(os.fsencode(self.url.path))))
        if self.url.scheme == "s3":
            from kafscale.spark.bucket.s3_bucket import open_s3_bucket

            return open_s3_bucket(self)
        raise ConfigError("a memory: store is inside of its broker's process, and no job can read it")


@attrs.frozen(eq=False, repr=False)
class DirectoryBucket:
    """A bucket that is a directory, mounted at the same path wherever a task runs."""

    directory: Directory

    def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        return self.directory.read_range(key, start, length_bytes)

    def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        return self.directory.read_tail(key, length_bytes)

    def get(self, key: str) -> ObjectPart:
        return self.directory.read(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return self.directory.walk(prefix, start_after)

    def close(self) -> None:
        """Do nothing: a directory keeps nothing open."""


def get_part(bucket: Bucket, name: str, start: int, length_bytes: int) -> memoryview:
    """Return bytes that the object must have. Raises NotFound, StoreError, and DamagedObject if it is shorter."""
    try:
        return memoryview(bucket.get_range(name, start, length_bytes).data)
    except RangeNotSatisfiable as exc:
        raise DamagedObject(f"{name}: cut off at byte {start}") from exc


@attrs.define(eq=False, repr=False)
class CountedBucket:
    """Counts GETs and listings of another bucket. Retries and the pages of a listing do not count."""

    bucket: Bucket
    get_count: int = attrs.field(default=0, init=False)
    list_count: int = attrs.field(default=0, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)  # footers are read by several threads

    def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        self._count_get()
        return self.bucket.get_range(key, start, length_bytes)

    def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        self._count_get()
        return self.bucket.get_tail(key, length_bytes)

    def get(self, key: str) -> ObjectPart:
        self._count_get()
        return self.bucket.get(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        with self._lock:
            self.list_count += 1
        return self.bucket.list(prefix, start_after)

    def close(self) -> None:
        self.bucket.close()

    def _count_get(self) -> None:
        with self._lock:
            self.get_count += 1


TURN_MAX_COUNT: Final = 16

K = TypeVar("K")
T = TypeVar("T")


@attrs.frozen(eq=False, repr=False)
class Turned(Generic[T]):
    """The result of getting one object, once its turn has ended."""

    turn: Future[Sequence[T | Exception]]
    index: int

    def result(self) -> T:
        """Wait for the object. Raises the error of getting it, or the error that ended its turn before."""
        found = self.turn.result()[self.index]
        if isinstance(found, Exception):
            raise found
        return found


def get_many(get: Callable[[K], T], keys: Sequence[K], *, at_once_count: int) -> Sequence[Turned[T]]:
    """Begin to get objects in order, on several threads, and return their results to come.

    A thread gets several objects in each turn, as a turn costs as much as a small object. Turns are short where there
    are few objects, so that as many requests as allowed are under way.
    """
    if not keys:
        return []
    turn_count = min(TURN_MAX_COUNT, math.ceil(len(keys) / at_once_count))
    turns = [keys[first : first + turn_count] for first in range(0, len(keys), turn_count)]
    threads = ThreadPoolExecutor(min(at_once_count, len(turns)))
    futures = [threads.submit(_take_turn, get, turn) for turn in turns]
    threads.shutdown(wait=False)
    return [Turned(future, index) for future, turn in zip(futures, turns, strict=True) for index in range(len(turn))]


def _take_turn(get: Callable[[K], T], keys: Sequence[K]) -> Sequence[T | Exception]:
    found: list[T | Exception] = []
    for key in keys:
        try:
            found.append(get(key))
        except (NotFound, DamagedObject) as exc:
            found.append(exc)
        except Exception as exc:  # of the store, which has been tried for long: the others are not tried for as long
            return [*found, *[exc] * (len(keys) - len(found))]
    return found


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
