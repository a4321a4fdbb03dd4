"""Parts of objects of the write-ahead log, as a task gets them: each object once, for all partitions that it reads.

An object has batches of many partitions, of each of which a task may read some. So what a task will need of an object
is got as one range, several objects at once, and kept until the task has ended. Of small objects, it came with the plan
(`kafscale.spark.bucket.giving`).
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from kafscale.formats.wal_entries import decode_run, run_bytes, run_start
from kafscale.spark.bucket.bucket import Bucket, get_part
from kafscale.spark.bucket.parallel import Turned, get_many
from kafscale.spark.bucket.splits import GivenRange, LogRange, Split
from kafscale.store.paths import NumberedKey

READS_AT_ONCE_COUNT = 8
KEPT_MAX_BYTES = 64 << 20  # of a task that needs more, each partition gets its part of an object by itself


@attrs.define
class _Span:
    """The bytes of an object that a task needs."""

    start: int
    end: int
    data: Turned[memoryview] | None = None

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    def read(self) -> memoryview | None:
        """Return them, if they are being got. Raises what getting them has raised."""
        return None if self.data is None else self.data.result()


def _spans_of(splits: Iterable[Split]) -> dict[NumberedKey, _Span]:
    spans: dict[NumberedKey, _Span] = {}
    for each in (each for split in splits for each in split.ranges if isinstance(each, LogRange)):
        start = run_start(each.places)
        end = start + run_bytes(each.places)
        span = spans.setdefault(each.key, _Span(start, end))
        span.start, span.end = min(span.start, start), max(span.end, end)
    return spans


@attrs.define(eq=False, repr=False)
class LoggedRanges:
    """What one task reads of the write-ahead log."""

    bucket: Bucket
    _spans: dict[NumberedKey, _Span] = attrs.field(factory=dict, init=False)

    def expect(self, splits: Iterable[Split]) -> None:
        """Begin to get what these have."""
        self._spans = _spans_of(splits)
        spans = list(self._spans.items())
        if sum(span.size_bytes for _, span in spans) > KEPT_MAX_BYTES:
            return
        begun = get_many(self._get_span, spans, at_once_count=READS_AT_ONCE_COUNT)
        for (_, span), turned in zip(spans, begun, strict=True):
            span.data = turned

    def read(self, logged: LogRange | GivenRange) -> memoryview:
        """Return its batches, one behind the other. Raises NotFound, DamagedObject, StoreError."""
        if isinstance(logged, GivenRange):
            return memoryview(logged.data)
        start, length_bytes = run_start(logged.places), run_bytes(logged.places)
        span = self._spans.get(logged.key)
        data = None if span is None else span.read()
        if span is None or data is None or not span.start <= start <= start + length_bytes <= span.end:
            part = self._get(logged.key, start, length_bytes)
        else:
            part = data[start - span.start : start - span.start + length_bytes]
        return memoryview(decode_run(part, logged.places, name=logged.key.key, salt=logged.salt))

    def _get_span(self, expected: tuple[NumberedKey, _Span]) -> memoryview:
        key, span = expected
        return self._get(key, span.start, span.size_bytes)

    def _get(self, key: NumberedKey, start: int, length_bytes: int) -> memoryview:
        return get_part(self.bucket, key.key, start, length_bytes)
