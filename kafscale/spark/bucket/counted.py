"""A bucket that counts what is asked of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import attrs

from kafscale.spark.bucket.bucket import Bucket
from kafscale.store.base import ObjectInfo, ObjectPart


@attrs.define(eq=False, repr=False)
class CountedBucket:
    """Counts GETs and listings of the bucket that it asks. Retries and the pages of a listing are not counted."""

    bucket: Bucket
    get_count: int = attrs.field(default=0, init=False)
    list_count: int = attrs.field(default=0, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)  # footers are read by several threads

    def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        """See `Bucket`."""
        self._count_get()
        return self.bucket.get_range(key, start, length_bytes)

    def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        """See `Bucket`."""
        self._count_get()
        return self.bucket.get_tail(key, length_bytes)

    def get(self, key: str) -> ObjectPart:
        """See `Bucket`."""
        self._count_get()
        return self.bucket.get(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `Bucket`."""
        with self._lock:
            self.list_count += 1
        return self.bucket.list(prefix, start_after)

    def close(self) -> None:
        """See `Bucket`."""
        self.bucket.close()

    def _count_get(self) -> None:
        with self._lock:
            self.get_count += 1
