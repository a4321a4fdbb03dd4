"""Reads the splits of a task: ranges of objects by few large GETs, decoded into Arrow.

The rest of a range is lost where an object is damaged. A batch that is intact, and whose records can't be read, is left
out alone: older versions of the broker stored such batches.

A planned segment may be gone when it is read: merged, compacted or expired. The broker keeps such objects for a while;
a later task finds the same offsets elsewhere. An object of the write-ahead log goes once its records are in segments.

Such an object has batches of many partitions. A task gets the part that it needs of an object as one range, several
objects at once, and keeps it until its end. Ranges of objects that the planner has read go along with the plan
(`give`), as a GET of a small object costs more than its bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeGuard

import attrs
import pyarrow as pa

from kafscale.errors import CorruptBatch, DamagedObject, KafkaError, NotFound
from kafscale.formats.transactions import OpenTransaction
from kafscale.formats.wal_entries import decode_run, run_bytes, run_start
from kafscale.spark.brokers.newest import FetchedTopic, NewestReader
from kafscale.spark.bucket.aborted import AbortedBatches, aborted_in
from kafscale.spark.bucket.batches import BatchHeaders
from kafscale.spark.bucket.bucket import Bucket, Turned, get_many, get_part
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.decode import Wanted, decode_batches
from kafscale.spark.bucket.position import TopicPartition
from kafscale.spark.bucket.splits import (
    AnyRange,
    BrokerRange,
    Extent,
    GivenRange,
    LogRange,
    Split,
    SplitRange,
    holes,
    outcomes,
    plan,
)
from kafscale.store.paths import NumberedKey, SegmentKey
from kafscale.wire import error_codes

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


AnyKey = SegmentKey | NumberedKey
LOSS_ADVICE = "Some data may have been lost; to go on without it, set the option failOnDataLoss to false"
GET_BYTES = 16 << 20  # in memory at a time, and once more while the next one is decoded

logger = logging.getLogger(__name__)


class DataLoss(Exception):
    """Wanted offsets do not exist; the message says which, and why."""


class TopicCreatedAgain(DataLoss):
    """Offsets are of a topic that was deleted, and another one has its name."""


@attrs.frozen
class _Elsewhere:
    catalog: Catalog
    log: PartitionLog | None


@attrs.frozen(kw_only=True)
class SplitReader:
    """Reads splits of one bucket. `fail_on_data_loss` is Spark's option: raise, or report and go on.

    committed_only, with_log, brokers: as in the catalog that planned the splits.
    everything: read aborted transactions and control batches too, as a look-up by time does.
    """

    bucket: Bucket
    namespace: str
    columns: Sequence[str]
    fail_on_data_loss: bool
    committed_only: bool = False
    with_log: bool = False
    brokers: NewestReader | None = None
    everything: bool = False
    _logged: LoggedRanges = attrs.field(init=False)
    _elsewhere: dict[TopicPartition, _Elsewhere] = attrs.field(factory=dict, init=False)

    @_logged.default
    def _nothing_yet(self) -> LoggedRanges:
        return LoggedRanges(self.bucket)

    def read_all(self, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
        """Read all records of some splits, one after the other. Raises DataLoss, StoreError."""
        self._logged.expect(splits)
        for split in splits:
            yield from self.read(split)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Read all records of a split, in order. Raises DataLoss, StoreError."""
        groups = list(_decoded_together(split.ranges))
        following = [group[0].start_offset for group in groups[1:]]
        next_offset = split.start_offset
        aborted = None if self.everything else AbortedBatches.of(split.aborted)
        for group, end_offset in zip(groups, [*following, split.end_offset], strict=True):
            wanted = Wanted(
                topic=split.topic,
                partition=split.partition,
                start_offset=next_offset,
                end_offset=end_offset,
                columns=self.columns,
                period=split.period,
                aborted=aborted,
                with_markers=self.everything,
            )
            yield from self._read_or_find(group, wanted)
            next_offset = end_offset

    def _read_or_find(self, ranges: Sequence[AnyRange], wanted: Wanted) -> Iterator[pa.RecordBatch]:
        range, left = ranges[0], wanted
        if isinstance(range, BrokerRange):
            yield from self._fetch(range, wanted)
            return
        try:
            if not isinstance(range, SplitRange):
                yield from self._read_logged([range_ for range_ in ranges if _is_logged(range_)], wanted)
                return
            for headers in batches_in(self.bucket, range):
                yield from self._decode(range.key.key, headers, range, wanted)
                reached = max(left.start_offset, int(headers.next_offsets[-1]))
                left = attrs.evolve(left, start_offset=reached)
        except NotFound:
            yield from self._read_elsewhere(range, left)
        except DamagedObject as exc:
            self._lose(f"{exc}; {_named(left)} can't be read")

    def _decode(
        self, name: str, headers: BatchHeaders, range: SplitRange | LogRange | GivenRange, wanted: Wanted
    ) -> Iterator[pa.RecordBatch]:
        _check_offsets(headers, range)
        try:
            yield from decode_batches(headers, wanted, partial(self._leave_out, name, wanted))
        except CorruptBatch as exc:
            raise DamagedObject(f"{name}: {exc}") from exc

    def _read_logged(self, ranges: Sequence[LogRange | GivenRange], wanted: Wanted) -> Iterator[pa.RecordBatch]:
        first, last = ranges[0], ranges[-1]
        try:
            data = memoryview(b"".join(map(self._logged.read, ranges)))
        except (NotFound, DamagedObject):
            if first is last:
                raise
            starts = [wanted.start_offset, *(range_.start_offset for range_ in ranges[1:])]
            for range_, start, end in zip(ranges, starts, [*starts[1:], wanted.end_offset], strict=True):
                yield from self._read_or_find([range_], attrs.evolve(wanted, start_offset=start, end_offset=end))
            return
        last_key = last.last_key if isinstance(last, GivenRange) else last.key
        name = first.key.key if first.key == last_key else f"{first.key.key} to {last_key.key}"
        try:
            headers = BatchHeaders.of(data)
        except CorruptBatch as exc:
            raise DamagedObject(f"{name}: {exc}") from exc
        if headers.cut_bytes:
            raise DamagedObject(f"{name}: a batch is longer than its entry")
        yield from self._decode(name, headers, attrs.evolve(first, end_offset=last.end_offset), wanted)

    def _fetch(self, range: BrokerRange, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        assert self.brokers is not None
        of = FetchedTopic(name=wanted.topic, topic_id=range.topic_id, partition=wanted.partition)
        committed_only = self.committed_only and not self.everything
        left = wanted
        while left.start_offset < wanted.end_offset:
            try:
                fetched = self.brokers.fetch(of, left.start_offset, committed_only=committed_only)
            except KafkaError as exc:
                if exc.code != error_codes.OFFSET_NOT_AVAILABLE:
                    raise
                self._lose(f"{_named(left)} were planned, and brokers do not have them any more: {exc}")
                return
            if fetched is None:
                self._lose(f"{_named(left)} were planned, and that topic was deleted since")
                return
            next_offset = min(fetched.log_start_offset, wanted.end_offset)
            if next_offset > left.start_offset:
                gone = attrs.evolve(left, end_offset=next_offset)
                self._lose(f"{_named(gone)} were planned, and the log begins at {fetched.log_start_offset} now")
                left = attrs.evolve(left, start_offset=next_offset)
                continue
            try:
                headers = BatchHeaders.of(fetched.records).whole()
                if not headers.count or headers.next_offsets[-1] <= left.start_offset:
                    raise CorruptBatch("the answer does not go on there")
                here = attrs.evolve(left, aborted=aborted_in(fetched, headers) if committed_only else None)
                yield from decode_batches(headers, here, partial(self._leave_out, "a broker", left))
            except CorruptBatch as exc:
                self._lose(f"{_named(left)} can't be read, as a broker has them: {exc}")
                return
            left = attrs.evolve(left, start_offset=int(headers.next_offsets[-1]))

    def _leave_out(self, name: str, wanted: Wanted, offsets: range, reason: CorruptBatch) -> None:
        batch = attrs.evolve(wanted, start_offset=offsets.start, end_offset=offsets.stop)
        self._lose(f"{name}: {_named(batch)} are a batch whose records can't be read: {reason}")

    def _look_elsewhere(self, topic_id: bytes, wanted: Wanted) -> _Elsewhere:
        partition = (wanted.topic, wanted.partition)
        found = self._elsewhere.get(partition)
        if found is None or found.log is None or found.log.flushed_end_offset < wanted.end_offset:
            catalog = Catalog(self.bucket, self.namespace, self.committed_only, self.with_log, self.brokers)
            log = catalog.partitions(wanted.topic).get(wanted.partition)
            is_there = log is not None and log.topic_id == topic_id
            found = self._elsewhere[partition] = _Elsewhere(catalog, log if is_there else None)
        return found

    def _read_elsewhere(self, gone: SplitRange | LogRange | GivenRange, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        if isinstance(gone, SplitRange):
            self._elsewhere.pop((wanted.topic, wanted.partition), None)
        found = self._look_elsewhere(gone.topic_id, wanted)
        catalog, log = found.catalog, found.log
        if log is None or log.start_offset >= wanted.end_offset:
            deletion = catalog.metadata.deletions.get(gone.topic_id)
            why = f": {deletion}" if deletion is not None else ""
            self._lose(f"{gone.key.key} has gone, and nothing has {_named(wanted)}{why}")
            return
        if log.start_offset > wanted.start_offset:
            self._lose(f"{_named(wanted)} were planned, and the log begins at {log.start_offset} now")
        there: list[AnyKey] = [segment.key for segment in log.segments]
        there += [
            batch.key for batch in log.tail.batches if wanted.start_offset <= batch.base_offset < wanted.end_offset
        ]
        if gone.key in there:
            self._lose(f"{gone.key.key} is listed and can't be found, so {_named(wanted)} can't be read")
            return
        logger.info("%s has gone; reading its offsets from the objects that replaced it", gone.key.key)
        start_offset = max(wanted.start_offset, log.start_offset)
        extent = Extent(log=log, start_offset=start_offset, end_offset=wanted.end_offset, period=wanted.period)
        for hole in holes(catalog, extent):
            lost = attrs.evolve(wanted, start_offset=hole.start, end_offset=hole.stop)
            self._lose(f"{gone.key.key} has gone, and no intact segment has {_named(lost)}")
        for transaction in () if self.everything else outcomes(catalog, extent).unknown:
            self._lose(unknown_outcome(log, transaction))
        for split in plan(catalog, [extent]):
            yield from self.read(split)

    def _lose(self, message: str) -> None:
        report_loss(message, fail=self.fail_on_data_loss)


def batches_in(bucket: Bucket, range: SplitRange) -> Iterator[BatchHeaders]:
    """Get the batches of a range in pieces of about GET_BYTES. Raises DamagedObject, NotFound, StoreError.

    A batch that a GET has cut is read again by the next one, which is cheaper than to copy it.
    """
    name, position, get_bytes = range.key.key, range.start, GET_BYTES
    while position < range.end:
        data = get_part(bucket, name, position, min(get_bytes, range.end - position))
        try:
            headers = BatchHeaders.of(data)
        except CorruptBatch as exc:
            raise DamagedObject(f"{name}: {exc}") from exc
        whole = headers.whole()
        if whole.count:
            yield whole
            position, get_bytes = position + whole.whole_bytes, GET_BYTES
        elif headers.cut_bytes and len(data) == get_bytes:
            get_bytes = headers.cut_bytes  # of a batch that is larger than a GET
        else:
            raise DamagedObject(f"{name}: cut off at byte {position + len(data)}")


def get_count(task: Sequence[Split]) -> int:
    """Return about the number of GETs of a task that reads these splits as planned."""
    ranges = [range_ for split in task for range_ in split.ranges]
    of_segments = sum(-(-range_.size_bytes // GET_BYTES) for range_ in ranges if isinstance(range_, SplitRange))
    return of_segments + len({range_.key for range_ in ranges if isinstance(range_, LogRange)})


def _is_logged(range: AnyRange) -> TypeGuard[LogRange | GivenRange]:
    return isinstance(range, LogRange | GivenRange)


def _decoded_together(ranges: Sequence[AnyRange]) -> Iterator[Sequence[AnyRange]]:
    """Group ranges to decode: one of a segment or of brokers alone, neighbours in the log together."""
    group: list[AnyRange] = []
    size_bytes = 0
    for range_ in ranges:
        are_logged = group and _is_logged(range_) and _is_logged(group[0])
        if group and (not are_logged or size_bytes >= GET_BYTES):
            yield group
            group, size_bytes = [], 0
        group.append(range_)
        size_bytes += range_.size_bytes
    if group:
        yield group


def report_loss(message: str, *, fail: bool, kind: type[DataLoss] = DataLoss) -> None:
    """Raise DataLoss, of this kind, or log the message as an error."""
    if fail:
        raise kind(f"{message}. {LOSS_ADVICE}")
    logger.error("data loss, and failOnDataLoss is off: %s", message)


def unknown_outcome(log: PartitionLog, transaction: OpenTransaction) -> str:
    return (
        f"partition {log.partition} of {log.topic}: no intact segment tells whether the transaction of producer "
        f"{transaction.producer_id} from offset {transaction.first_offset} on was aborted, so isolationLevel "
        "read_committed leaves it out"
    )


def _named(wanted: Wanted) -> str:
    return f"offsets {wanted.start_offset} to {wanted.end_offset - 1} of partition {wanted.partition} of {wanted.topic}"


def _check_offsets(headers: BatchHeaders, range: SplitRange | LogRange | GivenRange) -> None:
    """Raise DamagedObject for batches of another segment, which are intact and would be left out silently."""
    is_outside = (headers.base_offsets < range.start_offset) | (headers.next_offsets > range.end_offset)
    for base_offset in headers.base_offsets[is_outside][:1]:
        raise DamagedObject(f"{range.key.key}: a batch of offset {base_offset} is where {range.start_offset} should be")
