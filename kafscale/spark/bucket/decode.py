"""Decodes record batches into Arrow columns, without a Python object for each record.

Three passes over many batches at once:

1. the batches (`batches`): CRC, attributes, and where the records are; compressed ones go decompressed into one buffer;
2. the beginning of each record. Only the length field tells the next one, so the first records of all batches are found
   together, then all second ones and so on, one array operation for each step. The last few batches are walked singly;
3. the fields of some thousands of records at a time, as many as a processor's cache holds. Offsets and timestamps come
   first, and nothing else is read of records that are not wanted.

Records of a batch are passed on once all of them have been checked. Where one of many batches can't be read, they are
halved until it is found. Columns that headers tell need none of that (`_told_by_headers`): the CRC is checked, and the
batch is not decompressed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafscale.errors import CorruptBatch, DecodeError
from kafscale.spark.bucket.aborted import AbortedBatches
from kafscale.spark.bucket.batches import Batches, BatchHeaders, OnUnreadable, check, check_crcs, refuse
from kafscale.spark.bucket.splits import ALWAYS, Period
from kafscale.spark.workers.slices import (
    Positions,
    Raw,
    bytes_column,
    pairs_of,
    read_varints,
    skip_sized,
    skip_varints,
)
from kafscale.wire.batch_header import CONTROL, LOG_APPEND_TIME
from kafscale.wire.primitives import MAX_VARLONG_BITS, read_uvarint

# fewer batches than this are walked one by one: a step of all costs as much as some ten records, one by one
LANES_MIN_COUNT = 16
RECORD_MIN_BYTES = 7
CHUNK_ROWS = 8 << 10  # records whose fields are read together
HEADER_ROWS = 64 << 10  # records of a batch that are made of headers alone: what says it has more is looked into

IN_HEADERS = frozenset(("topic", "partition", "offset", "timestampType"))  # columns that headers of batches can tell

HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
COLUMN_TYPES: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
"""The columns of Spark's Kafka source, in its order."""


@attrs.frozen(kw_only=True)
class Wanted:
    """The wanted records of a partition, and the wanted columns. `end_offset` is exclusive.

    Batches of `aborted` transactions are left out, and so are control batches, unless `with_markers`.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    columns: Sequence[str] = tuple(COLUMN_TYPES)
    period: Period = ALWAYS
    aborted: AbortedBatches | None = None
    with_markers: bool = False


def decode(data: bytes | bytearray | memoryview, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Decode whole batches that follow one another, without control batches. Raises CorruptBatch."""
    headers = BatchHeaders.of(memoryview(data))
    if headers.whole_bytes != len(data):
        raise CorruptBatch(f"a batch is cut off after {len(data) - headers.whole_bytes} bytes")
    yield from decode_batches(headers, wanted)


def decode_batches(
    headers: BatchHeaders, wanted: Wanted, on_unreadable: OnUnreadable = refuse
) -> Iterator[pa.RecordBatch]:
    """Decode whole batches. Each step decompresses no more than about GROUP_BYTES, or one larger batch."""
    kept = _wanted_of(headers, wanted)
    if _told_by_headers(kept, wanted):
        check_crcs(kept)
        for some, _, _ in _chunks(kept.rows["record_count"].astype(np.int64), HEADER_ROWS):
            yield _from_headers(kept.only(some), wanted)
        return
    for batches in check(kept, on_unreadable):
        yield from _decode_group(batches, wanted, on_unreadable)


def _decode_group(batches: Batches, wanted: Wanted, on_unreadable: OnUnreadable) -> Iterator[pa.RecordBatch]:
    try:
        records = _find_records(batches)
    except CorruptBatch as exc:
        yield from _decode_halves(batches, wanted, on_unreadable, exc)
        return
    for kept, first, last in _chunks(batches.counts):
        try:
            decoded = _decode_chunk(records.only(slice(first, last)), wanted)
        except CorruptBatch as exc:
            yield from _decode_halves(batches.only(kept), wanted, on_unreadable, exc)
        else:
            yield from decoded


def _decode_halves(
    batches: Batches, wanted: Wanted, on_unreadable: OnUnreadable, reason: CorruptBatch
) -> Iterator[pa.RecordBatch]:
    count = len(batches.starts)
    if count == 1:
        on_unreadable(batches.headers.offsets(0), reason)
        return
    for half in (slice(0, count // 2), slice(count // 2, count)):
        yield from _decode_group(batches.only(half), wanted, on_unreadable)


def _chunks(counts: NDArray[np.int64], rows: int = CHUNK_ROWS) -> Iterator[tuple[slice, int, int]]:
    """Yield some whole batches at a time, about `rows` records or one batch, with their first and last record.

    The last one is exclusive.
    """
    ends = np.cumsum(counts)
    begin, first = 0, 0
    while begin < len(ends):
        end = max(begin + 1, int(np.searchsorted(ends, first + rows, side="right")))
        last = int(ends[end - 1])
        yield slice(begin, end), first, last
        begin, first = end, last


def _wanted_of(headers: BatchHeaders, wanted: Wanted) -> BatchHeaders:
    kept = (headers.base_offsets < wanted.end_offset) & (headers.next_offsets > wanted.start_offset)
    kept &= headers.rows["record_count"] != 0
    if not wanted.with_markers:
        kept &= headers.attributes & CONTROL == 0
    if wanted.aborted is not None:
        kept &= ~wanted.aborted.among(headers)
    return headers if kept.all() else headers.only(kept)


# ---- headers alone --------------------------------------------------------------------------------------------------


def _told_by_headers(headers: BatchHeaders, wanted: Wanted) -> bool:
    """Tell whether headers have all wanted columns.

    They do for batches with as many records as offsets; of others, as compaction leaves them, they tell only the number
    of records.
    """
    if not IN_HEADERS.issuperset(wanted.columns) or wanted.period.is_bounded:
        return False
    counts = headers.rows["record_count"].astype(np.int64)
    spans = headers.next_offsets - headers.base_offsets
    is_whole = (headers.base_offsets >= wanted.start_offset) & (headers.next_offsets <= wanted.end_offset)
    is_told = counts == spans
    if "offset" not in wanted.columns:
        is_told |= is_whole & (counts < spans)
    return bool(np.all(is_told & (counts > 0) & (counts <= HEADER_ROWS)))


def _from_headers(headers: BatchHeaders, wanted: Wanted) -> pa.RecordBatch:
    counts = headers.rows["record_count"].astype(np.int64)
    firsts = np.cumsum(counts) - counts
    offsets = np.arange(int(counts.sum())) + np.repeat(headers.base_offsets - firsts, counts)
    has_append_time = np.repeat((headers.attributes & LOG_APPEND_TIME).astype(np.bool_), counts)
    kept = (offsets >= wanted.start_offset) & (offsets < wanted.end_offset)  # all of a batch that is wanted as a whole
    fields = _Fields(data=headers.data, offsets=offsets[kept], has_append_time=has_append_time[kept])
    return _to_columns(fields, wanted)


def _decode_chunk(records: _Records, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Decode at most CHUNK_ROWS records at a time. Raises CorruptBatch at once, and not in between."""
    if len(records.begins) <= CHUNK_ROWS:
        return iter([_to_columns(_parse_fields(records, wanted), wanted)])
    for part in records.parts():  # of one batch
        _parse_fields(part, wanted)
    return (_to_columns(_parse_fields(part, wanted), wanted) for part in records.parts())


def _to_columns(fields: _Fields, wanted: Wanted) -> pa.RecordBatch:
    columns = {name: _COLUMNS[name](fields, wanted) for name in wanted.columns}
    schema = pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in columns])
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


# ---- records --------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class _Records:
    data: memoryview
    begins: Positions
    ends: Positions
    base_offsets: NDArray[np.int64]
    next_offsets: NDArray[np.int64]  # behind its batch
    base_timestamps_ms: NDArray[np.int64]
    has_append_time: NDArray[np.bool_]  # then its timestamp is the base

    def parts(self) -> Iterator[_Records]:
        for start in range(0, len(self.begins), CHUNK_ROWS):
            yield self.only(slice(start, start + CHUNK_ROWS))

    def only(self, kept: Any) -> _Records:
        return _Records(self.data, *(column[kept] for column in attrs.astuple(self, recurse=False)[1:]))


def _find_records(batches: Batches) -> _Records:
    counts, sizes = batches.counts, batches.ends - batches.starts
    if np.any(counts < 0) or np.any(counts > sizes // RECORD_MIN_BYTES):
        raise CorruptBatch("a batch has more records than bytes")
    try:
        begins, ends = _walk(batches, counts)
    except IndexError as exc:
        raise CorruptBatch("a record begins behind its batch") from exc
    except DecodeError as exc:
        raise CorruptBatch(f"the length of a record is damaged: {exc}") from exc
    last = np.cumsum(counts) - 1
    if np.any(ends[last] != batches.ends) or np.any(begins >= ends):
        raise CorruptBatch("the records of a batch are not as long as the batch says")
    headers, has_append_time = batches.headers.rows, batches.has_append_time
    base_timestamps_ms = np.where(has_append_time, headers["max_timestamp_ms"], headers["base_timestamp_ms"])
    return _Records(
        data=batches.records,
        begins=begins,
        ends=ends,
        base_offsets=np.repeat(batches.headers.base_offsets, counts),
        next_offsets=np.repeat(batches.headers.next_offsets, counts),
        base_timestamps_ms=np.repeat(base_timestamps_ms, counts),
        has_append_time=np.repeat(has_append_time, counts),
    )


def _walk(batches: Batches, counts: NDArray[np.int64]) -> tuple[Positions, Positions]:
    pairs, raw = pairs_of(batches.records), np.frombuffer(batches.records, np.uint8)
    most_first = np.argsort(-counts, kind="stable")
    left = counts[most_first]
    positions = batches.starts[most_first]
    targets = (np.cumsum(counts) - counts)[most_first]  # of the next record of each batch
    found: list[tuple[Positions, Positions, Positions]] = []  # of each step: where to, begins, ends
    while (lanes_count := int(np.searchsorted(-left, 0, side="left"))) >= LANES_MIN_COUNT:
        for _ in range(int(left[lanes_count - 1])):
            begins, to = positions[:lanes_count], targets[:lanes_count]
            positions = skip_sized(pairs, raw, begins)
            targets = to + 1
            found.append((to, begins, positions))
        left = left[:lanes_count] - left[lanes_count - 1]
    for lane in range(lanes_count):
        end = batches.ends[most_first[lane]]
        begins = _walk_one(bytes(batches.records[positions[lane] : end]), int(left[lane])) + positions[lane]
        found.append((targets[lane] + np.arange(left[lane]), begins[:-1], begins[1:]))
    all_begins = np.empty(int(counts.sum()), np.int64)
    all_ends = np.empty_like(all_begins)
    if found:
        to, begins, ends = (np.concatenate(parts) for parts in zip(*found, strict=True))
        all_begins[to], all_ends[to] = begins, ends
    return all_begins, all_ends


def _walk_one(records: bytes, count: int) -> Positions:
    """Return the beginnings of the first records of a batch, and their end. Written out, as it runs for each record."""
    begins = [0]
    position = 0
    for _ in range(count):
        low = records[position]
        if low < 0x80:
            length, position = low, position + 1
        elif (high := records[position + 1]) < 0x80:
            length, position = low & 0x7F | high << 7, position + 2
        else:
            length, position = read_uvarint(records, position, MAX_VARLONG_BITS)
        if length & 1:
            raise CorruptBatch("a record has a length below 0")
        position += length >> 1
        begins.append(position)
    if position > len(records):
        raise CorruptBatch("a record ends behind its batch")
    return np.array(begins, np.int64)


# ---- fields ---------------------------------------------------------------------------------------------------------


_NOTHING = np.empty(0, np.int64)
Slices = tuple[Positions, Positions]  # where each begins and ends; an end before the beginning is null


@attrs.frozen(kw_only=True, eq=False, repr=False)
class _Fields:
    """The fields of records as arrays; slices are of `data`. header_counts: the number of headers of each record."""

    data: memoryview
    offsets: NDArray[np.int64]
    has_append_time: NDArray[np.bool_]
    timestamps_ms: NDArray[np.int64] = _NOTHING
    keys: Slices = (_NOTHING, _NOTHING)
    values: Slices = (_NOTHING, _NOTHING)
    header_counts: NDArray[np.int64] = _NOTHING
    header_keys: Slices = (_NOTHING, _NOTHING)
    header_values: Slices = (_NOTHING, _NOTHING)


def _parse_fields(records: _Records, wanted: Wanted) -> _Fields:
    raw = np.frombuffer(records.data, np.uint8)
    positions = skip_varints(raw, records.begins)
    timestamp_deltas, positions = read_varints(raw, positions + 1)  # behind the attributes, which are never set
    timestamp_deltas[records.has_append_time] = 0
    timestamps_ms = timestamp_deltas + records.base_timestamps_ms
    offset_deltas, positions = read_varints(raw, positions)
    offsets = offset_deltas + records.base_offsets
    _check((offset_deltas >= 0) & (offsets < records.next_offsets))
    kept = (offsets >= wanted.start_offset) & (offsets < wanted.end_offset)
    if wanted.period.is_bounded:
        kept &= (timestamps_ms >= wanted.period.first_ms) & (timestamps_ms <= wanted.period.last_ms)
    if not kept.all():
        records, offsets, timestamps_ms = records.only(kept), offsets[kept], timestamps_ms[kept]
        positions = positions[kept]
    keys, positions = _read_slices(raw, positions)
    values, positions = _read_slices(raw, positions)
    fields = _Fields(
        data=records.data,
        offsets=offsets,
        timestamps_ms=timestamps_ms,
        has_append_time=records.has_append_time,
        keys=keys,
        values=values,
    )
    if "headers" in wanted.columns:
        fields, positions = _with_headers(fields, raw, positions, records.ends)
        _check(positions == records.ends)
    _check(positions <= records.ends)
    return fields


def _read_slices(raw: Raw, positions: Positions) -> tuple[Slices, Positions]:
    """Read a length, below 0 for null, and skip as many bytes."""
    lengths, starts = read_varints(raw, positions)
    _check(lengths <= len(raw))
    return (starts, starts + np.maximum(lengths, -1)), starts + np.maximum(lengths, 0)


def _with_headers(fields: _Fields, raw: Raw, positions: Positions, ends: Positions) -> tuple[_Fields, Positions]:
    """Read the first headers of all records that have one, then all second ones, and so on."""
    counts, positions = read_varints(raw, positions)
    _check((counts >= 0) & (counts <= np.maximum(ends - positions, 0)))
    firsts = np.cumsum(counts) - counts
    keys, values = np.empty((2, int(counts.sum())), np.int64), np.empty((2, int(counts.sum())), np.int64)
    having = np.flatnonzero(counts)
    number = 0
    while len(having):
        targets = firsts[having] + number
        for slices in (keys, values):
            (slices[0, targets], slices[1, targets]), positions[having] = _read_slices(raw, positions[having])
        number += 1
        having = having[counts[having] > number]
    _check(keys[1] >= keys[0])
    fields = attrs.evolve(
        fields, header_counts=counts, header_keys=(keys[0], keys[1]), header_values=(values[0], values[1])
    )
    return fields, positions


def _check(holds: NDArray[np.bool_]) -> None:
    if not holds.all():
        raise CorruptBatch("the fields of a record are not as long as the record says")


# ---- columns --------------------------------------------------------------------------------------------------------


def _headers_column(fields: _Fields) -> pa.Array:
    bounds = np.zeros(len(fields.header_counts) + 1, np.int32)
    np.cumsum(fields.header_counts, out=bounds[1:])
    names = _text(bytes_column(fields.data, *fields.header_keys))
    values = bytes_column(fields.data, *fields.header_values)
    entries = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    is_null = fields.header_counts == 0  # as Spark's Kafka source has it
    return pa.ListArray.from_arrays(
        pa.array(bounds, pa.int32()), entries, type=HEADERS_TYPE, mask=pa.array(is_null) if is_null.any() else None
    )


def _text(encoded: pa.Array) -> pa.Array:
    try:
        return encoded.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text.decode("utf-8", "replace") for text in encoded.to_pylist()], pa.string())


_COLUMNS: Mapping[str, Any] = {
    "key": lambda fields, _: bytes_column(fields.data, *fields.keys),
    "value": lambda fields, _: bytes_column(fields.data, *fields.values),
    "topic": lambda fields, wanted: pa.repeat(pa.scalar(wanted.topic), len(fields.offsets)),
    "partition": lambda fields, wanted: pa.array(np.full(len(fields.offsets), wanted.partition, np.int32)),
    "offset": lambda fields, _: pa.array(fields.offsets),
    "timestamp": lambda fields, _: pa.array(fields.timestamps_ms * 1000).cast(COLUMN_TYPES["timestamp"]),
    "timestampType": lambda fields, _: pa.array(fields.has_append_time.astype(np.int32)),
    "headers": lambda fields, _: _headers_column(fields),
}


def columns_of(names: Collection[str]) -> Sequence[str]:
    return [name for name in COLUMN_TYPES if name in names]
