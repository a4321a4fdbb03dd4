"""Ranges of the write-ahead log, as a task reads them.

An object has batches of many partitions. A task gets the part that it needs of an object as one range, several objects
at once, and keeps it until its end. Ranges of objects that the planner has read go along with the plan (`give`), as a
GET of a small object costs more than its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from kafscale.formats.wal_entries import decode_run, run_bytes, run_start
from kafscale.spark.bucket.bucket import Bucket, Turned, get_many, get_part
from kafscale.spark.bucket.splits import AnyRange, GivenRange, LogRange, Split
from kafscale.store.paths import NumberedKey

READS_AT_ONCE_COUNT = 8
KEPT_MAX_BYTES = 64 << 20  # of a task that needs more, each partition gets its part of an object by itself


@attrs.define
class _ByteSpan:
    start: int
    end: int
    data: Turned[memoryview] | None = None

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    def read(self) -> memoryview | None:
        return None if self.data is None else self.data.result()


def _spans_of(splits: Iterable[Split]) -> dict[NumberedKey, _ByteSpan]:
    spans: dict[NumberedKey, _ByteSpan] = {}
    for logged in (range_ for split in splits for range_ in split.ranges if isinstance(range_, LogRange)):
        start = run_start(logged.places)
        end = start + run_bytes(logged.places)
        span = spans.setdefault(logged.key, _ByteSpan(start, end))
        span.start, span.end = min(span.start, start), max(span.end, end)
    return spans


@attrs.define(eq=False, repr=False)
class LoggedRanges:
    """The ranges of the write-ahead log that one task reads."""

    bucket: Bucket
    _spans: dict[NumberedKey, _ByteSpan] = attrs.field(factory=dict, init=False)

    def expect(self, splits: Iterable[Split]) -> None:
        """Begin to read the ranges of these splits."""
        self._spans = _spans_of(splits)
        spans = list(self._spans.items())
        if sum(span.size_bytes for _, span in spans) > KEPT_MAX_BYTES:
            return
        begun = get_many(self._get_span, spans, at_once_count=READS_AT_ONCE_COUNT)
        for (_, span), turned in zip(spans, begun, strict=True):
            span.data = turned

    def read(self, logged: LogRange | GivenRange) -> memoryview:
        """Return the batches of a range, one behind the other. Raises NotFound, DamagedObject, StoreError."""
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

    def _get_span(self, expected: tuple[NumberedKey, _ByteSpan]) -> memoryview:
        key, span = expected
        return self._get(key, span.start, span.size_bytes)

    def _get(self, key: NumberedKey, start: int, length_bytes: int) -> memoryview:
        return get_part(self.bucket, key.key, start, length_bytes)


Contents = Mapping[NumberedKey, memoryview]  # of whole objects, as they are in the bucket

GIVEN_MAX_BYTES = 900 << 10  # of a task: Spark warns of those that are larger than 1000 KiB
SMALL_MAX_BYTES = 64 << 10  # of an object that is given even where that makes more tasks


def give(task: Sequence[Split], contents: Contents, *, max_bytes: int = GIVEN_MAX_BYTES) -> Sequence[Sequence[Split]]:
    """Return the task with the contents that are at hand, as several tasks if they are too large."""
    logged = [
        range_ for split in task for range_ in split.ranges if isinstance(range_, LogRange) and range_.key in contents
    ]
    if not logged:
        return [task]
    if sum(range_.size_bytes for range_ in logged) > max_bytes:
        contents = {key: data for key, data in contents.items() if len(data) <= SMALL_MAX_BYTES}
    giving = _Giving(contents, max_bytes)
    for split in task:
        giving.add(split)
    return giving.tasks


@attrs.define(eq=False, repr=False)
class _Giving:
    """Tasks in the making: the last taken ranges are not in the last task yet."""

    contents: Contents
    max_bytes: int
    tasks: list[list[Split]] = attrs.field(factory=lambda: [[]], init=False)
    _given_bytes: int = attrs.field(default=0, init=False)  # of the last task
    _ranges: list[AnyRange] = attrs.field(factory=list, init=False)  # of a split
    _taken: list[LogRange] = attrs.field(factory=list, init=False)  # and of the range at its end

    def add(self, split: Split) -> None:
        start_offset = split.start_offset
        for range_ in split.ranges:
            if not isinstance(range_, LogRange) or range_.key not in self.contents:
                self._join_taken()
                self._ranges.append(range_)
                continue
            if self._given_bytes and self._given_bytes + range_.size_bytes > self.max_bytes:
                if self._ranges or self._taken:
                    self._end(attrs.evolve(split, start_offset=start_offset, end_offset=range_.start_offset))
                    start_offset = range_.start_offset
                self.tasks.append([])
                self._given_bytes = 0
            self._taken.append(range_)
            self._given_bytes += range_.size_bytes
        self._end(attrs.evolve(split, start_offset=start_offset))

    def _end(self, split: Split) -> None:
        self._join_taken()
        self.tasks[-1].append(attrs.evolve(split, ranges=self._ranges))
        self._ranges = []

    def _join_taken(self) -> None:
        if not self._taken:
            return
        first, last = self._taken[0], self._taken[-1]
        parts = [
            self.contents[taken.key][position : position + length_bytes]
            for taken in self._taken
            for position, length_bytes in taken.places
        ]
        self._ranges.append(
            GivenRange(first.key, last.key, first.topic_id, b"".join(parts), first.start_offset, last.end_offset)
        )
        self._taken = []
