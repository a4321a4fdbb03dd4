"""The passes of a compaction over batches: learn the latest offset of each key, then rewrite. Sans-IO; run in a thread.

A compaction reads the dirty part twice: with a `KeyPass`, then with a `RewritePass` for each group of segments, from
the beginning of the partition on.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import overload

import attrs
from crc32c import crc32c

from kafscale.buffers import Buffer
from kafscale.errors import KafkaError
from kafscale.log.rewrite.compaction_filter import (
    AbortedTransaction,
    CompactionFilter,
    OffsetMap,
    Outcomes,
    locate_records,
)
from kafscale.wire.batch_header import MIN_TIMESTAMP_UNKNOWN, BatchHeader, compute_crc, parse_header, parse_whole


@attrs.frozen
class BatchSpan:
    """The fields of a written batch that the index needs."""

    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    size_bytes: int
    min_timestamp_ms: int = MIN_TIMESTAMP_UNKNOWN  # a batch may have lost the record that has it


@attrs.define(eq=False, repr=False)
class BatchSpans(Sequence[BatchSpan]):
    """Spans in columns, 32 bytes each: a segment may have a million batches."""

    _columns: tuple[array[int], ...] = attrs.field(factory=lambda: tuple(array("q") for _ in range(4)), init=False)

    def append(self, header: BatchHeader) -> None:
        told = (header.base_offset, header.last_offset, header.max_timestamp_ms, header.size_bytes)
        for column, value in zip(self._columns, told, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, index: int) -> BatchSpan: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[BatchSpan]: ...
    def __getitem__(self, index: int | slice) -> BatchSpan | Sequence[BatchSpan]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return BatchSpan(*(column[index] for column in self._columns))

    def __iter__(self) -> Iterator[BatchSpan]:
        return map(BatchSpan, *self._columns)


@attrs.define(eq=False, repr=False)
class OutcomePass:
    """Finds how the transactions of a stretch ended, and where the first one begins that has not."""

    outcomes: Outcomes = attrs.field(factory=Outcomes, init=False)

    @property
    def is_over(self) -> bool:
        return False

    def take(self, batch: memoryview) -> None:
        """Take the next batch. Raises CorruptBatch."""
        self.outcomes.read(batch, parse_whole(batch))


@attrs.define(eq=False, repr=False)
class Unreadable:
    """Batches that are as their clients sent them, and whose records are not what their lengths say, or too many.

    They were taken by a version that did not parse records. They stay as they are, and hold up nothing.
    """

    count: int = attrs.field(default=0, init=False)
    first_offset: int = attrs.field(default=-1, init=False)
    reason: str = attrs.field(default="", init=False)

    def note(self, batch: memoryview, header: BatchHeader, exc: KafkaError) -> None:
        """One of them. Raises `exc` if it was damaged since."""
        if compute_crc(batch) != header.crc:
            raise exc
        if not self.count:
            self.first_offset, self.reason = header.base_offset, str(exc)
        self.count += 1


@attrs.define(eq=False, kw_only=True, repr=False)
class KeyPass:
    """Puts the keys of dirty records into the map, until it is full: `end_offset` is then less.

    `aborted` is None before transactions were searched. If the pass meets one then, it must be repeated:
    `needs_outcomes`.
    """

    latest: OffsetMap
    start_offset: int
    end_offset: int
    aborted: Sequence[AbortedTransaction] | None = None
    needs_outcomes: bool = attrs.field(default=False, init=False)
    unreadable: Unreadable = attrs.field(factory=Unreadable, init=False)
    _is_full: bool = attrs.field(default=False, init=False)

    @property
    def is_over(self) -> bool:
        """Tell whether more batches would change nothing."""
        return self.needs_outcomes or self._is_full

    def take(self, batch: memoryview) -> None:
        """Take the next batch. Raises CorruptBatch: a damaged key would supersede the records of another one."""
        header = parse_whole(batch)
        if header.base_offset >= self.end_offset or header.is_control or not header.record_count:
            return
        if header.is_transactional:
            if self.aborted is None:
                self.needs_outcomes = True
                return
            if any(transaction.holds(header) for transaction in self.aborted):
                return
        try:
            places = locate_records(batch, header)
        except KafkaError as exc:
            self.unreadable.note(batch, header, exc)
            return
        wanted = [
            (key, offset)
            for key, offset in zip(places.keys, places.offsets, strict=True)
            if key is not None and offset >= self.start_offset
        ]
        full_at = self.latest.put_all(wanted)
        if full_at is not None:
            self.end_offset = full_at
            self._is_full = True


@attrs.define(eq=False, repr=False)
class RewritePass:
    """Gathers what is left of the batches of one group of segments, in one buffer.

    `last_offset` is that of the group, whose last batch stays in any case. `marker_offsets` are those of the markers
    that are left: a reader must not be told of an aborted transaction whose end it never meets.
    """

    filter: CompactionFilter
    last_offset: int
    body: bytearray = attrs.field(factory=bytearray, init=False)
    spans: BatchSpans = attrs.field(factory=BatchSpans, init=False)
    record_count: int = attrs.field(default=0, init=False)
    max_timestamp_ms: int = attrs.field(default=-1, init=False)
    has_changed: bool = attrs.field(default=False, init=False)
    marker_offsets: set[int] = attrs.field(factory=set, init=False)

    @property
    def is_over(self) -> bool:
        return False

    def take(self, batch: memoryview) -> None:
        """The next batch. Raises CorruptBatch: what is damaged must not get a new checksum."""
        header = parse_whole(batch)
        left: Buffer | None = batch
        with suppress(KafkaError):  # the pass before has noted it
            left = self.filter.compact(batch, header, ends_segment=header.last_offset == self.last_offset)
        if left is not batch:
            self.has_changed = True
        if left is None:
            return
        if left is not batch:
            header = parse_header(memoryview(left))
        self.body += left
        self.spans.append(header)
        self.record_count += header.record_count
        if header.is_control and header.record_count:
            self.marker_offsets.add(header.base_offset)
        self.max_timestamp_ms = max(self.max_timestamp_ms, header.max_timestamp_ms)

    def crc(self) -> int:
        """CRC-32C of all that is left."""
        return crc32c(self.body)
