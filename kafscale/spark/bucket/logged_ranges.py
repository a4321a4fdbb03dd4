"""Parts of objects of the write-ahead log, as a task gets them: each object once, for all partitions that it reads.

An object has batches of many partitions, of each of which a task may read some. So what a task will need of an object
is got as one range, several objects at once, and kept until the task has ended.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from kafscale.formats.wal_entries import decode_run, run_bytes, run_start
from kafscale.spark.bucket.bucket import Bucket, get_part
from kafscale.spark.bucket.parallel import Turned, get_many
from kafscale.spark.bucket.splits import LogRange, Split
from kafscale.store.paths import NumberedKey

READS_AT_ONCE_COUNT = 8
KEPT_MAX_BYTES = 64 << 20  # of a task that needs more, each partition gets its part of an object by itself


@attrs.define
class _Span:
    """The bytes of an object that a task needs."""

    start: int
    end: int
    data: Turned[memoryview] | None = None


@attrs.define(eq=False, repr=False)
class LoggedRanges:
    """What one task reads of the write-ahead log."""

    bucket: Bucket
    _spans: dict[NumberedKey, _Span] = attrs.field(factory=dict, init=False)

    def expect(self, splits: Iterable[Split]) -> None:
        """Begin to get what these have."""
        spans: dict[NumberedKey, _Span] = {}
        for each in (each for split in splits for each in split.ranges if isinstance(each, LogRange)):
            start = run_start(each.places)
            end = start + run_bytes(each.places)
            span = spans.setdefault(each.key, _Span(start, end))
            span.start, span.end = min(span.start, start), max(span.end, end)
        if not spans or sum(each.end - each.start for each in spans.values()) > KEPT_MAX_BYTES:
            return
        begun = get_many(self._get_span, list(spans.items()), at_once_count=READS_AT_ONCE_COUNT)
        for span, data in zip(spans.values(), begun, strict=True):
            span.data = data
        self._spans = spans

    def read(self, logged: LogRange) -> memoryview:
        """Return its batches, one behind the other. Raises NotFound, DamagedObject, StoreError."""
        start, length_bytes = run_start(logged.places), run_bytes(logged.places)
        span = self._spans.get(logged.key)
        if span is None or span.data is None or not span.start <= start <= start + length_bytes <= span.end:
            part = self._get(logged.key, start, length_bytes)
        else:
            part = span.data.result()[start - span.start : start - span.start + length_bytes]
        return memoryview(decode_run(part, logged.places, name=logged.key.key, salt=logged.salt))

    def _get_span(self, expected: tuple[NumberedKey, _Span]) -> memoryview:
        key, span = expected
        return self._get(key, span.start, span.end - span.start)

    def _get(self, key: NumberedKey, start: int, length_bytes: int) -> memoryview:
        return get_part(self.bucket, key.key, start, length_bytes)
