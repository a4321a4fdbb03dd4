"""Parts of objects of the write-ahead log, as a task gets them: each object once, for all partitions that it reads.

An object has batches of many partitions, of each of which a task may read some. So what a task will need of an object
is got as one range, several objects at once, and kept until the task has ended. Of small objects, it came with the plan
(`kafscale.spark.bucket.log_ranges`).
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


Contents = Mapping[NumberedKey, memoryview]  # of whole objects, as they are in the bucket

GIVEN_MAX_BYTES = 900 << 10  # of a task: Spark warns of those that are larger than 1000 KiB
SMALL_MAX_BYTES = 64 << 10  # of an object that is given even where that makes more tasks


def give(task: Sequence[Split], contents: Contents, *, max_bytes: int = GIVEN_MAX_BYTES) -> Sequence[Sequence[Split]]:
    """Return the task with what is at hand of the log, or as many as are needed in its place."""
    logged = [each for split in task for each in split.ranges if isinstance(each, LogRange) and each.key in contents]
    if not logged:
        return [task]
    if sum(each.size_bytes for each in logged) > max_bytes:
        contents = {key: data for key, data in contents.items() if len(data) <= SMALL_MAX_BYTES}
    giving = _Giving(contents, max_bytes)
    for split in task:
        giving.add(split)
    return giving.tasks


@attrs.define(eq=False, repr=False)
class _Giving:
    """Tasks as they become: what was taken last is not in the last one of them yet."""

    contents: Contents
    max_bytes: int
    tasks: list[list[Split]] = attrs.field(factory=lambda: [[]], init=False)
    _given_bytes: int = attrs.field(default=0, init=False)  # of the last task
    _ranges: list[AnyRange] = attrs.field(factory=list, init=False)  # of a split
    _taken: list[LogRange] = attrs.field(factory=list, init=False)  # and of the range at its end

    def add(self, split: Split) -> None:
        """Add all of a split, cut where a task has been given enough."""
        start_offset = split.start_offset
        for each in split.ranges:
            if not isinstance(each, LogRange) or each.key not in self.contents:
                self._join_taken()
                self._ranges.append(each)
                continue
            if self._given_bytes and self._given_bytes + each.size_bytes > self.max_bytes:
                if self._ranges or self._taken:
                    self._end(attrs.evolve(split, start_offset=start_offset, end_offset=each.start_offset))
                    start_offset = each.start_offset
                self.tasks.append([])
                self._given_bytes = 0
            self._taken.append(each)
            self._given_bytes += each.size_bytes
        self._end(attrs.evolve(split, start_offset=start_offset))

    def _end(self, split: Split) -> None:
        self._join_taken()
        self.tasks[-1].append(attrs.evolve(split, ranges=self._ranges))
        self._ranges = []

    def _join_taken(self) -> None:
        """Make one range of neighbours that are given."""
        if not self._taken:
            return
        first, last = self._taken[0], self._taken[-1]
        parts = [
            self.contents[each.key][position : position + length_bytes]
            for each in self._taken
            for position, length_bytes in each.places
        ]
        self._ranges.append(
            GivenRange(first.key, last.key, first.topic_id, b"".join(parts), first.start_offset, last.end_offset)
        )
        self._taken = []
