"""Record batches into Arrow columns, without a Python object per record.

Three passes over many batches at once:

1. headers, one batch after the other: CRC, attributes, and where the records are; compressed ones are decompressed into
   one buffer behind each other;
2. where each record begins. Only the length in front of it tells, so this has to go from record to record; it goes from
   the first records of all batches to all second ones, and so on, one array operation for each step. Batches that are
   left when few are left are walked one by one;
3. the fields of all records, each an array.

A column of bytes is made by one `take` from an Arrow array that alternates between values and the gaps between them:
the offsets of both are known, and nothing is copied before.

The format is KIP-98's; see `kafscale.wire.batch_header`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from kafscale.errors import CorruptBatch, KafkaError
from kafscale.spark.varints import Positions, Raw, read_varint, read_varints
from kafscale.wire import compression
from kafscale.wire.batch_header import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
)

CRC_FROM = 21  # what the CRC covers begins at the attributes
LANES_MIN_COUNT = 96  # fewer batches than this are walked one by one: a step costs as much as some twenty records
GROUP_BYTES = (
    16 << 20
)  # decompressed, of the batches that are decoded together: what compresses well must not fill memory
BATCH_MAX_DECOMPRESSED_BYTES = 1 << 30

_crc_and_attributes = struct.Struct(">BIhiqqqhii")  # from the magic on
_length = struct.Struct(">i")

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
    """Which records of a partition, and which columns of them. `end_offset` is exclusive."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    columns: Sequence[str] = tuple(COLUMN_TYPES)
    committed_only: bool = False


class UnknownOutcome(Exception):
    """A record of a transaction was met where only committed ones are wanted."""

    def __init__(self, offset: int) -> None:
        super().__init__(
            f"offset {offset} was written in a transaction, and whether that was committed is not looked up; "
            "set kafka.isolation.level to read_uncommitted to read such records"
        )


def decode(data: bytes | bytearray | memoryview, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The records of whole batches that follow one another, without control batches. Raises CorruptBatch.

    Each step decompresses no more than about GROUP_BYTES, or one larger batch.
    """
    for batches in _find_batches(memoryview(data), wanted):
        yield _decode_group(batches, wanted)


def _decode_group(batches: _Batches, wanted: Wanted) -> pa.RecordBatch:
    fields = _parse_fields(_find_records(batches), with_headers="headers" in wanted.columns)
    kept = (fields.offsets >= wanted.start_offset) & (fields.offsets < wanted.end_offset)
    if not kept.all():
        fields = fields.only(kept)
    columns = {name: _COLUMNS[name](fields, wanted) for name in wanted.columns}
    schema = pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in columns])
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


# ---- batches --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class _Batches:
    """Arrays with one element per batch; positions are of `records`, a buffer that has nothing compressed in it."""

    records: memoryview
    starts: Positions
    ends: Positions
    counts: NDArray[np.int64]
    base_offsets: NDArray[np.int64]
    base_timestamps_ms: NDArray[np.int64]
    append_times_ms: NDArray[np.int64]  # _NO_APPEND_TIME where the records have times of their own


_NO_APPEND_TIME = np.iinfo(np.int64).min


def _find_batches(data: memoryview, wanted: Wanted) -> Iterator[_Batches]:
    """Groups of what is wanted, checked."""
    group = _Group(data)
    for start, end, base_offset in _cut(data):
        head = _crc_and_attributes.unpack_from(data, start + 16)
        magic, crc, attributes, last_offset_delta, base_timestamp, max_timestamp, _, _, _, count = head
        if magic != MAGIC:
            raise CorruptBatch(f"offset {base_offset}: a batch of magic {magic}")
        outside = base_offset >= wanted.end_offset or base_offset + last_offset_delta < wanted.start_offset
        if outside or attributes & CONTROL or not count:
            continue
        if wanted.committed_only and attributes & TRANSACTIONAL:
            raise UnknownOutcome(base_offset)
        if crc32c(data[start + CRC_FROM : end]) != crc:
            raise CorruptBatch(f"offset {base_offset}: the CRC-32C of the batch is wrong")
        append_time = max_timestamp if attributes & LOG_APPEND_TIME else _NO_APPEND_TIME
        group.add(start + HEADER_BYTES, end, attributes & CODEC_MASK, (count, base_offset, base_timestamp, append_time))
        if group.size_bytes >= GROUP_BYTES:
            yield group.batches()
            group = _Group(data)
    if group.rows:
        yield group.batches()


@attrs.define(eq=False)
class _Group:
    """Batches that are decoded together; as long as none is compressed, they stay where they are."""

    data: memoryview
    rows: list[tuple[int, int, int, int]] = attrs.field(factory=list, init=False)
    pieces: list[bytearray | memoryview] = attrs.field(factory=list, init=False)
    starts: list[int] = attrs.field(factory=list, init=False)
    size_bytes: int = attrs.field(default=0, init=False)
    has_compressed: bool = attrs.field(default=False, init=False)

    def add(self, start: int, end: int, codec: int, row: tuple[int, int, int, int]) -> None:
        """The records of a batch. `row` is its count, base offset, base timestamp and append time."""
        piece: bytearray | memoryview = self.data[start:end]
        if codec:
            piece = _decompress(codec, self.data[start:end], row[1])
            self.has_compressed = True
        self.rows.append(row)
        self.pieces.append(piece)
        self.starts.append(start)
        self.size_bytes += len(piece)

    def batches(self) -> _Batches:
        """All that were added, in one buffer."""
        table = np.array(self.rows, np.int64)
        starts = np.array(self.starts, np.int64)
        sizes = np.array([len(piece) for piece in self.pieces], np.int64)
        if self.has_compressed:
            starts = np.cumsum(sizes) - sizes
        return _Batches(
            records=memoryview(b"".join(self.pieces)) if self.has_compressed else self.data,
            starts=starts,
            ends=starts + sizes,
            counts=table[:, 0],
            base_offsets=table[:, 1],
            base_timestamps_ms=table[:, 2],
            append_times_ms=table[:, 3],
        )


def _cut(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """Start, end and base offset of each batch."""
    position = 0
    while position < len(data):
        if position + HEADER_BYTES > len(data):
            raise CorruptBatch(f"a batch is cut off after {len(data) - position} bytes")
        (length,) = _length.unpack_from(data, position + 8)
        end = position + LENGTH_END + length
        base_offset = int.from_bytes(data[position : position + 8], "big", signed=True)
        if end > len(data) or length < HEADER_BYTES - LENGTH_END:
            raise CorruptBatch(f"offset {base_offset}: a batch of length {length} in {len(data) - position} bytes")
        yield position, end, base_offset
        position = end


def _decompress(codec: int, piece: memoryview, base_offset: int) -> bytearray:
    try:
        return compression.decompress(codec, piece, BATCH_MAX_DECOMPRESSED_BYTES)
    except (CorruptBatch, KafkaError) as exc:
        raise CorruptBatch(f"offset {base_offset}: {exc}") from exc


# ---- records --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class _Records:
    """Where each record begins, behind its length, and which batch it is of; `ends` is what its length says."""

    batches: _Batches
    raw: Raw
    starts: Positions
    ends: Positions
    batch_numbers: NDArray[np.int64]


def _find_records(batches: _Batches) -> _Records:
    raw = np.frombuffer(batches.records, np.uint8)
    if np.any(batches.counts < 0) or np.any(batches.counts > batches.ends - batches.starts):
        raise CorruptBatch("a batch has more records than bytes")
    first_records = np.cumsum(batches.counts) - batches.counts
    starts = np.empty(int(batches.counts.sum()), np.int64)
    ends = np.empty_like(starts)
    largest_first = np.argsort(-batches.counts, kind="stable")
    counts = batches.counts[largest_first]
    positions = batches.starts[largest_first]
    targets = first_records[largest_first]
    step, lanes_count = 0, len(counts)
    while lanes_count >= LANES_MIN_COUNT:
        lengths, record_starts = read_varints(raw, positions[:lanes_count])
        starts[targets[:lanes_count] + step] = record_starts
        positions[:lanes_count] = record_starts + lengths
        ends[targets[:lanes_count] + step] = positions[:lanes_count]
        step += 1
        lanes_count = int(np.searchsorted(-counts[:lanes_count], -step, side="left"))
    for lane in range(lanes_count):
        positions[lane] = _walk(
            batches.records,
            int(positions[lane]),
            starts,
            ends,
            range(targets[lane] + step, targets[lane] + counts[lane]),
        )
    if np.any(positions != batches.ends[largest_first]) or np.any(starts > ends):
        raise CorruptBatch("the records of a batch are not as long as the batch says")
    return _Records(
        batches=batches,
        raw=raw,
        starts=starts,
        ends=ends,
        batch_numbers=np.repeat(np.arange(len(batches.counts)), batches.counts),
    )


def _walk(records: memoryview, position: int, starts: Positions, ends: Positions, targets: range) -> int:
    try:
        for target in targets:
            length, position = read_varint(records, position)
            starts[target] = position
            position += length
            ends[target] = position
    except IndexError as exc:
        raise CorruptBatch("a record ends behind its batch") from exc
    return position


# ---- fields ---------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class _Slices:
    """A run of bytes per record, or none: `ends` is before `starts` there."""

    starts: Positions
    ends: Positions

    def only(self, kept: NDArray[np.bool_]) -> _Slices:
        return _Slices(starts=self.starts[kept], ends=self.ends[kept])


@attrs.frozen(kw_only=True, eq=False)
class _Headers:
    """Headers of all records in order: how many each has, and where their keys and values are."""

    counts: NDArray[np.int64]
    keys: _Slices
    values: _Slices

    def only(self, kept: NDArray[np.bool_]) -> _Headers:
        of_kept = np.repeat(kept, self.counts)
        return _Headers(counts=self.counts[kept], keys=self.keys.only(of_kept), values=self.values.only(of_kept))


@attrs.frozen(kw_only=True, eq=False)
class _Fields:
    """All records as arrays. `raw` is what the positions are of."""

    raw: memoryview
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    timestamp_types: NDArray[np.int32]
    keys: _Slices
    values: _Slices
    headers: _Headers | None

    def only(self, kept: NDArray[np.bool_]) -> _Fields:
        return attrs.evolve(
            self,
            offsets=self.offsets[kept],
            timestamps_ms=self.timestamps_ms[kept],
            timestamp_types=self.timestamp_types[kept],
            keys=self.keys.only(kept),
            values=self.values.only(kept),
            headers=None if self.headers is None else self.headers.only(kept),
        )


def _parse_fields(found: _Records, *, with_headers: bool) -> _Fields:
    batches, raw, numbers = found.batches, found.raw, found.batch_numbers
    timestamp_deltas, positions = read_varints(raw, found.starts + 1)  # behind the attributes, which are never set
    offset_deltas, positions = read_varints(raw, positions)
    keys, positions = _read_slices(raw, positions)
    values, positions = _read_slices(raw, positions)
    headers = None
    if with_headers:
        headers, positions = _read_headers(raw, positions, found.ends)
        _check(positions == found.ends)
    _check(positions <= found.ends)
    append_times = batches.append_times_ms[numbers]
    has_append_time = append_times != _NO_APPEND_TIME
    return _Fields(
        raw=batches.records,
        offsets=batches.base_offsets[numbers] + offset_deltas,
        timestamps_ms=np.where(has_append_time, append_times, batches.base_timestamps_ms[numbers] + timestamp_deltas),
        timestamp_types=has_append_time.astype(np.int32),
        keys=keys,
        values=values,
        headers=headers,
    )


def _read_slices(raw: Raw, positions: Positions) -> tuple[_Slices, Positions]:
    """A length, -1 for null, and as many bytes."""
    lengths, starts = read_varints(raw, positions)
    _check((lengths >= -1) & (lengths <= len(raw)))
    return _Slices(starts=starts, ends=starts + lengths), starts + np.maximum(lengths, 0)


def _read_headers(raw: Raw, positions: Positions, ends: Positions) -> tuple[_Headers, Positions]:
    """The first headers of all records that have one, then all second ones, and so on."""
    counts, positions = read_varints(raw, positions)
    _check((counts >= 0) & (counts <= np.maximum(ends - positions, 0)))
    firsts = np.cumsum(counts) - counts
    total = int(counts.sum())
    keys = _Slices(starts=np.empty(total, np.int64), ends=np.empty(total, np.int64))
    values = _Slices(starts=np.empty(total, np.int64), ends=np.empty(total, np.int64))
    having = np.flatnonzero(counts)
    number = 0
    while len(having):
        targets = firsts[having] + number
        for slices in (keys, values):
            read, positions[having] = _read_slices(raw, positions[having])
            slices.starts[targets], slices.ends[targets] = read.starts, read.ends
        number += 1
        having = having[counts[having] > number]
    _check(keys.ends >= keys.starts)
    return _Headers(counts=counts, keys=keys, values=values), positions


def _check(holds: NDArray[np.bool_]) -> None:
    if not holds.all():
        raise CorruptBatch("the fields of a record are not as long as the record says")


# ---- columns --------------------------------------------------------------------------------------------------------


def _bytes_column(raw: memoryview, slices: _Slices, type_: pa.DataType) -> pa.Array:
    """Values and the gaps between them alternate; the `take` copies the values, and makes null of what is none."""
    count = len(slices.starts)
    if not count:
        return pa.array([], type_)
    is_null = slices.ends < slices.starts
    bounds = np.empty(2 * count + 1, np.int32 if len(raw) <= np.iinfo(np.int32).max else np.int64)
    bounds[0:-1:2] = slices.starts
    bounds[1::2] = np.maximum(slices.ends, slices.starts)
    bounds[-1] = bounds[-2]
    wide = bounds.dtype == np.int64
    pieces = pa.Array.from_buffers(
        pa.large_binary() if wide else pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(raw)]
    )
    wanted = pa.array(np.arange(0, 2 * count, 2), mask=is_null if is_null.any() else None)
    taken = pieces.take(wanted)
    return taken.cast(type_) if taken.type != type_ else taken


def _headers_column(fields: _Fields) -> pa.Array:
    assert fields.headers is not None
    headers = fields.headers
    bounds = np.zeros(len(headers.counts) + 1, np.int32)
    np.cumsum(headers.counts, out=bounds[1:])
    names = _bytes_column(fields.raw, headers.keys, pa.string())
    values = _bytes_column(fields.raw, headers.values, pa.binary())
    entries = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    is_null = headers.counts == 0  # as Spark's Kafka source has it
    return pa.ListArray.from_arrays(
        pa.array(bounds, pa.int32()), entries, type=HEADERS_TYPE, mask=pa.array(is_null) if is_null.any() else None
    )


_COLUMNS: Mapping[str, Any] = {
    "key": lambda fields, _: _bytes_column(fields.raw, fields.keys, pa.binary()),
    "value": lambda fields, _: _bytes_column(fields.raw, fields.values, pa.binary()),
    "topic": lambda fields, wanted: pa.repeat(pa.scalar(wanted.topic), len(fields.offsets)),
    "partition": lambda fields, wanted: pa.array(np.full(len(fields.offsets), wanted.partition, np.int32)),
    "offset": lambda fields, _: pa.array(fields.offsets),
    "timestamp": lambda fields, _: pa.array(fields.timestamps_ms * 1000).cast(COLUMN_TYPES["timestamp"]),
    "timestampType": lambda fields, _: pa.array(fields.timestamp_types),
    "headers": lambda fields, _: _headers_column(fields),
}


def columns_of(names: Collection[str]) -> Sequence[str]:
    """These of the columns there are, in the order of the Kafka source."""
    return [name for name in COLUMN_TYPES if name in names]
