"""Decide which records and markers compaction keeps, as Kafka's Cleaner does, and rewrite batches. Sans-IO.

docs/discussion/compaction.md has the rules. Only records below `end_offset` are judged. `OutcomePass` learns aborted
transactions from the markers of the dirty part, which must not end inside a transaction. The dirty part is read with a
`KeyPass`; then each group of segments with a `RewritePass`. Both run in a thread.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from mmap import mmap
from typing import ClassVar, overload

import attrs
from crc32c import crc32c

from kafscale.buffers import Buffer
from kafscale.errors import CorruptBatch, DecodeError, KafkaError
from kafscale.wire import compression
from kafscale.wire.batch_header import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MIN_TIMESTAMP_UNKNOWN,
    TRANSACTIONAL,
    BatchHeader,
    compute_crc,
    encode_batch,
    parse_header,
    parse_whole,
)
from kafscale.wire.primitives import read_uvarint, read_varlong, varint
from kafscale.wire.records import MAX_DECOMPRESSED_BYTES, record_heads

SLOT_BYTES = 24
LOAD_FACTOR = 0.75  # Kafka's 0.9 costs it up to ten probes a look-up; here each one is interpreted
EMPTY = -1

_digest_halves = struct.Struct("<QQ").unpack


def capacity_of(size_bytes: int) -> int:
    return int(size_bytes // SLOT_BYTES * LOAD_FACTOR)


@attrs.define(eq=False, repr=False)
class OffsetMap:
    """An open-addressed table of 128-bit digests, like Kafka's SkimpyOffsetMap: 24 bytes a key (a dict takes 200).

    Nothing is ever removed. Memory is mapped as it is used: an offset is kept plus one, so that zeros are empty slots.
    """

    capacity: int
    key_count: int = attrs.field(default=0, init=False)
    _slots_count: int = attrs.field(init=False)
    _high_halves: memoryview[int] = attrs.field(init=False)
    _low_halves: memoryview[int] = attrs.field(init=False)
    _ends: memoryview[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        count = self._slots_count = int(self.capacity / LOAD_FACTOR) + 1
        words = memoryview(mmap(-1, SLOT_BYTES * count)).cast("Q")
        self._high_halves, self._low_halves, self._ends = words[:count], words[count : 2 * count], words[2 * count :]

    def put_all(self, keyed_offsets: Iterable[tuple[Buffer, int]]) -> int | None:
        """Remember these offsets, in order. Returns the first one that found no room, or None.

        Written out without calls, like `get_all`: these two are a third of the cost of compaction.
        """
        high_halves, low_halves, ends = self._high_halves, self._low_halves, self._ends
        slots_count = self._slots_count
        for key, offset in keyed_offsets:
            high, low = _digest_halves(blake2b(key, digest_size=16).digest())
            slot = high % slots_count
            while ends[slot] and (high_halves[slot] != high or low_halves[slot] != low):
                slot = slot + 1 if slot + 1 < slots_count else 0
            if not ends[slot]:
                if self.key_count == self.capacity:
                    return offset
                self.key_count += 1
                high_halves[slot] = high
                low_halves[slot] = low
            ends[slot] = offset + 1
        return None

    def get_all(self, keys: Iterable[Buffer]) -> Sequence[int]:
        """Return the latest offset of each key, EMPTY for an unknown one."""
        high_halves, low_halves, ends = self._high_halves, self._low_halves, self._ends
        slots_count = self._slots_count
        found = []
        for key in keys:
            high, low = _digest_halves(blake2b(key, digest_size=16).digest())
            slot = high % slots_count
            while ends[slot] and (high_halves[slot] != high or low_halves[slot] != low):
                slot = slot + 1 if slot + 1 < slots_count else 0
            found.append(ends[slot] - 1)
        return found


@attrs.frozen(kw_only=True)
class CompactionRules:
    """The rules of one compaction of a partition.

    end_offset: where the part ends whose keys are in the map. producers_last_offsets: where the last batch of each
    remembered producer ends.
    """

    end_offset: int
    now_ms: int
    delete_retention_ms: int
    producers_last_offsets: Collection[int]
    aborted: Sequence[AbortedRange] = ()


@attrs.define(eq=False, repr=False)
class CompactionFilter:
    """Takes the batches of a partition in order of offset."""

    rules: CompactionRules
    latest: OffsetMap
    removed_records_count: int = attrs.field(default=0, init=False)
    _observed: set[int] = attrs.field(factory=set, init=False)  # producers of whose transaction a batch was seen

    def compact(self, batch: memoryview, header: BatchHeader, *, ends_segment: bool) -> Buffer | None:
        """Return what is left of a batch: the batch itself if unchanged, None if nothing. Raises CorruptBatch."""
        if header.base_offset >= self.rules.end_offset:
            return batch
        is_done_with = self._is_done_with(header)
        marker_is_done = is_done_with and header.is_control
        if marker_is_done:
            all_go = not header.record_count or self._has_passed(header.delete_horizon_ms)
        else:
            all_go = is_done_with
        left: Buffer | None = None
        if not all_go:
            left = self._keep_some(batch, header, marker_is_done=marker_is_done)
        elif header.record_count:
            self.removed_records_count += header.record_count
        if left is None and (ends_segment or self._is_last_of_producer(header)):
            return batch if not header.record_count else without_records(header)
        return left

    def _is_done_with(self, header: BatchHeader) -> bool:
        """Tell whether a batch was aborted, or is a marker whose transaction has no batch left."""
        if header.is_control:
            is_needed = header.producer_id in self._observed
            self._observed.discard(header.producer_id)
            return not is_needed
        if not header.is_transactional:
            return False
        self._observed.add(header.producer_id)
        return any(transaction.holds(header) for transaction in self.rules.aborted)

    def _keep_some(self, batch: memoryview, header: BatchHeader, *, marker_is_done: bool) -> Buffer | None:
        if header.is_control and not marker_is_done:
            return batch
        places = locate_records(batch, header)
        kept = list(range(len(places))) if header.is_control else self._survivors(places, header)
        self.removed_records_count += len(places) - len(kept)
        if not kept:
            return None
        if header.delete_horizon_ms is None and (
            marker_is_done
            or any(places.tombstones[index] and places.offsets[index] < self.rules.end_offset for index in kept)
        ):
            horizon_ms = self.rules.now_ms + self.rules.delete_retention_ms
            return keep_records(header, places, kept, delete_horizon_ms=horizon_ms)
        return batch if len(kept) == len(places) else keep_records(header, places, kept)

    def _survivors(self, places: RecordPlaces, header: BatchHeader) -> Sequence[int]:
        tombstones_go = self._has_passed(header.delete_horizon_ms)
        end_offset = self.rules.end_offset
        latest = iter(self.latest.get_all(key for key in places.keys if key is not None))
        kept = []
        for index, (offset, key) in enumerate(zip(places.offsets, places.keys, strict=True)):
            is_latest = key is not None and offset >= next(latest)
            if offset >= end_offset or (is_latest and not (tombstones_go and places.tombstones[index])):
                kept.append(index)
        return kept

    def _has_passed(self, delete_horizon_ms: int | None) -> bool:
        return delete_horizon_ms is not None and delete_horizon_ms <= self.rules.now_ms

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        return header.has_producer_id and header.last_offset in self.rules.producers_last_offsets


ABORT = 0  # the type of a marker, the second field of a control record's key (KIP-98)
_marker_key = struct.Struct(">hh")


@attrs.frozen
class AbortedRange:
    """A producer's batches from `first_offset` up to the marker, which aborts them."""

    producer_id: int
    first_offset: int
    marker_offset: int

    def holds(self, header: BatchHeader) -> bool:
        is_between = self.first_offset <= header.base_offset < self.marker_offset
        return is_between and header.producer_id == self.producer_id


@attrs.define(eq=False, repr=False)
class OutcomePass:
    """Finds aborted transactions, and where the first one begins that has not ended."""

    is_over: ClassVar[bool] = False
    aborted: list[AbortedRange] = attrs.field(factory=list, init=False)
    _open: dict[int, int] = attrs.field(factory=dict, init=False)  # producer id -> first offset

    def take(self, batch: memoryview) -> None:
        """Take the next batch. Raises CorruptBatch."""
        header = parse_whole(batch)
        if not header.is_control:
            if header.is_transactional:
                self._open.setdefault(header.producer_id, header.base_offset)
        elif (first_offset := self._open.pop(header.producer_id, None)) is not None and _is_abort(batch, header):
            self.aborted.append(AbortedRange(header.producer_id, first_offset, header.base_offset))

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the oldest transaction without a marker, or None."""
        return min(self._open.values(), default=None)


def _is_abort(batch: memoryview, header: BatchHeader) -> bool:
    for key in locate_records(batch, header).keys:
        if key is not None and len(key) >= _marker_key.size:
            return bool(_marker_key.unpack_from(key)[1] == ABORT)
    return False


NO_TIMESTAMP = -1
RECORDS_MAX_COUNT = 1_000_000  # of a batch, at 150 bytes each: only what was made to unpack to a thousandfold has more


@attrs.frozen(eq=False, repr=False)
class RecordPlaces:
    """The decompressed records of one batch, in columns, which cost less than an object for each record.

    Record number i is `data[starts[i] : starts[i + 1]]`. A key is None if the record has none.
    """

    data: Buffer
    starts: Sequence[int]
    offsets: Sequence[int]
    keys: Sequence[bytes | bytearray | None]
    tombstones: Sequence[bool]

    def __len__(self) -> int:
        return len(self.offsets)


def locate_records(batch: memoryview, header: BatchHeader) -> RecordPlaces:
    """Find the records of a batch. Raises CorruptBatch, also for more than RECORDS_MAX_COUNT."""
    if header.record_count > RECORDS_MAX_COUNT:
        raise CorruptBatch(f"the batch at offset {header.base_offset} has {header.record_count} records")
    data: bytes | bytearray
    if header.codec == compression.NONE or not header.record_count:
        data = bytes(batch[HEADER_BYTES:])  # bytes are indexed and sliced in half the time that a view takes
    else:
        unpacked = compression.decompress(header.codec, batch[HEADER_BYTES:], MAX_DECOMPRESSED_BYTES)
        data = bytes(unpacked) if isinstance(unpacked, memoryview) else unpacked
    try:
        return _locate(data, header)
    except (IndexError, DecodeError) as exc:
        raise CorruptBatch(f"a record of the batch at offset {header.base_offset} is damaged: {exc}") from exc


def _locate(data: bytes | bytearray, header: BatchHeader) -> RecordPlaces:
    base_offset = header.base_offset
    starts, offsets, tombstones = [0], [], []
    keys: list[bytes | bytearray | None] = []
    end = 0
    for _, offset_delta, position, end in record_heads(data, header.record_count):
        key_length, position = (data[position], position + 1) if data[position] < 128 else read_uvarint(data, position)
        if key_length & 1:
            keys.append(None)
        else:
            key_end = position + (key_length >> 1)
            keys.append(data[position:key_end])
            position = key_end
        if position >= end:
            raise DecodeError(f"it ends at byte {end}, and its key at byte {position}")
        offsets.append(base_offset + offset_delta)
        tombstones.append(bool(data[position] & 1))  # a negative length, zigzag
        starts.append(end)
    if end != len(data):
        raise DecodeError(f"{header.record_count} records end at byte {end} of {len(data)}")
    return RecordPlaces(data, starts, offsets, keys, tombstones)


def keep_records(
    header: BatchHeader, places: RecordPlaces, kept: Sequence[int], *, delete_horizon_ms: int | None = None
) -> bytearray:
    """Return the batch with only the records of these numbers, at least one. It keeps its offsets and its codec.

    `delete_horizon_ms` is set if given. Raises CorruptBatch.
    """
    try:
        return _keep(header, places, kept, delete_horizon_ms)
    except (IndexError, DecodeError, struct.error) as exc:  # such as a timestamp of 70 bits
        raise CorruptBatch(f"a record of the batch at offset {header.base_offset} is damaged: {exc}") from exc


def _keep(header: BatchHeader, places: RecordPlaces, kept: Sequence[int], delete_horizon_ms: int | None) -> bytearray:
    base_timestamp_ms, attributes = header.base_timestamp_ms, header.attributes
    data, starts = places.data, places.starts
    timestamps_ms = [base_timestamp_ms + _timestamp_delta(data, starts[index]) for index in kept]
    if delete_horizon_ms is None:
        records = b"".join([data[starts[index] : starts[index + 1]] for index in kept])
    else:
        base_timestamp_ms, attributes = delete_horizon_ms, attributes | DELETE_HORIZON
        records = b"".join(
            _with_timestamp_delta(data, starts[index], timestamp_ms - delete_horizon_ms)
            for index, timestamp_ms in zip(kept, timestamps_ms, strict=True)
        )
    codec = header.codec
    changed = attrs.evolve(
        header,
        attributes=attributes,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms if header.is_log_append_time else max(timestamps_ms),
        record_count=len(kept),
    )
    return encode_batch(changed, records if codec == compression.NONE else compression.compress(codec, records))


def without_records(header: BatchHeader) -> bytearray:
    """Return the batch without records, which keeps a producer's last sequence number, or the last offset."""
    changed = attrs.evolve(
        header,
        attributes=header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL),
        base_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
        record_count=0,
    )
    return encode_batch(changed, b"")


def _timestamp_delta(data: Buffer, start: int) -> int:
    _, position = read_uvarint(data, start)
    return read_varlong(data, position + 1)[0]


def _with_timestamp_delta(data: Buffer, start: int, delta: int) -> bytes:
    length, position = read_uvarint(data, start)
    end = position + (length >> 1)
    _, after_delta = read_varlong(data, position + 1)
    encoded = b"".join((data[position : position + 1], varint(delta), data[after_delta:end]))
    return varint(len(encoded)) + encoded


@attrs.frozen
class BatchSpan:
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
class Unreadable:
    """Batches whose malformed records an earlier version accepted. They stay as they are."""

    count: int = attrs.field(default=0, init=False)
    first_offset: int = attrs.field(default=-1, init=False)
    reason: str = attrs.field(default="", init=False)

    def note(self, batch: memoryview, header: BatchHeader, exc: KafkaError) -> None:
        """Count such a batch. Raises `exc` if it was damaged since."""
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
    aborted: Sequence[AbortedRange] | None = None
    needs_outcomes: bool = attrs.field(default=False, init=False)
    unreadable: Unreadable = attrs.field(factory=Unreadable, init=False)
    _is_full: bool = attrs.field(default=False, init=False)

    @property
    def is_over(self) -> bool:
        return self.needs_outcomes or self._is_full

    def take(self, batch: memoryview) -> None:
        """Take the next batch. Raises CorruptBatch: a damaged key would supersede another one's records."""
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
    """Gathers what is left of a group of segments in one buffer.

    The batch that ends at `last_offset`, the group's, stays in any case. `marker_offsets` are those of the remaining
    markers: a reader must not be told of an aborted transaction whose end it never meets.
    """

    is_over: ClassVar[bool] = False
    filter: CompactionFilter
    last_offset: int
    body: bytearray = attrs.field(factory=bytearray, init=False)
    spans: BatchSpans = attrs.field(factory=BatchSpans, init=False)
    record_count: int = attrs.field(default=0, init=False)
    max_timestamp_ms: int = attrs.field(default=-1, init=False)
    has_changed: bool = attrs.field(default=False, init=False)
    marker_offsets: set[int] = attrs.field(factory=set, init=False)

    def take(self, batch: memoryview) -> None:
        """Take the next batch. Raises CorruptBatch: damaged batches must not get a new checksum."""
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
        return crc32c(self.body)
