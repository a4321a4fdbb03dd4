"""Parts of objects of the write-ahead log, as a task gets them: each object once, for all partitions that it reads.

An object has batches of many partitions, of each of which a task may read some. So what a task will need of an object
is got as one range, several objects at once, and kept until the task has ended. What it needs
of small objects that were read last to plan it need not be got again: that goes along with the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from types import MappingProxyType

import attrs

from kafscale.formats.wal_entries import decode_run, run_bytes, run_start
from kafscale.spark.bucket.bucket import Bucket, get_part
from kafscale.spark.bucket.parallel import Turned, get_many
from kafscale.spark.bucket.splits import LogRange, Split
from kafscale.store.paths import NumberedKey

READS_AT_ONCE_COUNT = 8
KEPT_MAX_BYTES = 64 << 20  # of a task that needs more, each partition gets its part of an object by itself
GIVEN_MAX_BYTES = 640 << 10  # of a task, with its plan: Spark warns of tasks that are larger than 1000 KiB

NOTHING_GIVEN: Mapping[NumberedKey, bytes] = MappingProxyType({})


@attrs.define
class _Span:
    """The bytes of an object that a task needs."""

    start: int
    end: int
    data: Turned[memoryview] | memoryview | None = None

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    def read(self) -> memoryview | None:
        """Return them, if they were given, or are being got. Raises what getting them has raised."""
        return self.data.result() if isinstance(self.data, Turned) else self.data


def _spans_of(splits: Iterable[Split]) -> dict[NumberedKey, _Span]:
    spans: dict[NumberedKey, _Span] = {}
    for each in (each for split in splits for each in split.ranges if isinstance(each, LogRange)):
        start = run_start(each.places)
        end = start + run_bytes(each.places)
        span = spans.setdefault(each.key, _Span(start, end))
        span.start, span.end = min(span.start, start), max(span.end, end)
    return spans


def keys_given(
    splits: Iterable[Split], contents: Container[NumberedKey], *, max_bytes: int = GIVEN_MAX_BYTES
) -> Collection[NumberedKey]:
    """Return the objects of which a task is given what it needs, as their contents are at hand: the smallest first."""
    spans = [(span.size_bytes, key) for key, span in _spans_of(splits).items() if key in contents]
    spans.sort(key=itemgetter(0))
    ends = accumulate(size_bytes for size_bytes, _ in spans)
    return {key for (_, key), end in zip(spans, ends, strict=True) if end <= max_bytes}


def given_of(
    splits: Sequence[Split], contents: Mapping[NumberedKey, memoryview], *, max_bytes: int = GIVEN_MAX_BYTES
) -> Mapping[NumberedKey, bytes]:
    """Return what a task needs of objects whose contents are at hand."""
    keys = keys_given(splits, contents, max_bytes=max_bytes)
    return {key: bytes(contents[key][each.start : each.end]) for key, each in _spans_of(splits).items() if key in keys}


@attrs.define(eq=False, repr=False)
class LoggedRanges:
    """What one task reads of the write-ahead log."""

    bucket: Bucket
    _spans: dict[NumberedKey, _Span] = attrs.field(factory=dict, init=False)

    def expect(self, splits: Iterable[Split], given: Mapping[NumberedKey, bytes] = NOTHING_GIVEN) -> None:
        """Begin to get what these have, but for what is `given`, as `given_of` has made it of the same splits."""
        spans = _spans_of(splits)
        for key, data in given.items():
            spans[key].data = memoryview(data)
        self._spans = spans
        missing = [(key, span) for key, span in spans.items() if span.data is None]
        if sum(span.size_bytes for _, span in missing) > KEPT_MAX_BYTES:
            return
        begun = get_many(self._get_span, missing, at_once_count=READS_AT_ONCE_COUNT)
        for (_, span), turned in zip(missing, begun, strict=True):
            span.data = turned

    def read(self, logged: LogRange) -> memoryview:
        """Return its batches, one behind the other. Raises NotFound, DamagedObject, StoreError."""
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
