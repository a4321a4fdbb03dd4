"""Columns to record batches: the bytes of all records are in one buffer, made by few array operations.

    record  = length | attributes 0 | timestamp delta 0 | offset delta | length of the key | key | length of the value
              | value | count of headers | headers
    header  = length of the key | key | length of the value | value

Lengths, deltas and counts are zigzag varints, and a length of -1 is null (KIP-98). The bytes between key and value, and
around them, are columns as well, and one `take` puts the pieces of all records in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafscale.spark.producing.rows import LENGTH_MAX_BYTES, Rows, list_bounds
from kafscale.spark.producing.transaction import WriterIdentity
from kafscale.spark.workers.slices import lengths_of, offsets_of
from kafscale.wire import compression
from kafscale.wire.batch_header import MAGIC, MAX_SEQUENCE, TRANSACTIONAL, BatchHeader, encode_batch

Numbers = NDArray[np.int64]

RECORD_OVERHEAD_BYTES = 5 * LENGTH_MAX_BYTES + 2  # of a record, beside what it is of, at most
_BETWEEN = b"\0\0"  # attributes and timestamp delta
_NO_HEADERS = pa.array([b"\0"], pa.binary())
_SEVEN_BITS = 7


@attrs.frozen(kw_only=True, eq=False)
class Encoded:
    """Records one after the other: that of number n goes from `bounds[n]` to `bounds[n + 1]`."""

    data: memoryview
    bounds: Numbers

    def records(self, start: int, end: int) -> memoryview:
        return self.data[int(self.bounds[start]) : int(self.bounds[end])]


def encode_records(rows: Rows, order: Numbers, offset_deltas: Numbers) -> Encoded:
    """Encode rows in this order, each with its place in its batch. All records have the time of their batch."""
    key_lengths, value_lengths = lengths_of(rows.keys)[order], lengths_of(rows.values)[order]
    headers = None if rows.headers is None else _Headers.of(rows.headers)
    header_bytes = 1 if headers is None else headers.sizes[order]
    keys, values, deltas = _zigzag(key_lengths), _zigzag(value_lengths), _zigzag(offset_deltas)
    lengths = len(_BETWEEN) + _widths(deltas) + _widths(keys) + _widths(values) + header_bytes
    lengths += np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0)
    heads = _varints_column([_zigzag(lengths), _BETWEEN, deltas, keys])
    tails = _NO_HEADERS if headers is None else headers.encoded
    return _interleave([heads, rows.keys, _varints_column([values]), rows.values, tails], order)


def _interleave(pieces: Sequence[pa.Array], order: Numbers) -> Encoded:
    """Put the five pieces of each record behind each other.

    The second, the fourth and the last pieces are in the order of rows, which `order` tells; the last one may be the
    same for all records.
    """
    count = len(order)
    starts = np.cumsum([0, *(len(piece) for piece in pieces)])
    places = np.empty((count, len(pieces)), np.int64)
    for number, start in enumerate(starts[:-1]):
        places[:, number] = start + (order if number % 2 or number == len(pieces) - 1 else np.arange(count))
    if len(pieces[-1]) == 1:
        places[:, -1] = starts[-2]
    taken = pa.concat_arrays([piece.cast(pa.binary()) for piece in pieces]).take(pa.array(places.reshape(-1)))
    data = taken.buffers()[2]
    return Encoded(data=memoryview(data or b""), bounds=offsets_of(taken)[:: len(pieces)])


@attrs.frozen(kw_only=True, eq=False)
class _Headers:
    encoded: pa.Array
    sizes: Numbers

    @classmethod
    def of(cls, headers: pa.Array) -> _Headers:
        entries = headers.flatten()
        names, values = entries.field("key"), entries.field("value")
        lengths = [_varints_column([_zigzag(lengths_of(column))]) for column in (names, values)]
        order = np.arange(len(entries))
        one_each = _interleave([lengths[0], names, lengths[1], values, pa.array([b""], pa.binary())], order)
        bounds = list_bounds(headers)
        counts = _varints_column([_zigzag(np.diff(bounds))])
        entry_bounds = one_each.bounds[bounds] if len(entries) else bounds
        listed = pa.Array.from_buffers(
            pa.binary(),
            len(headers),
            [None, pa.py_buffer(entry_bounds.astype(np.int32)), pa.py_buffer(one_each.data)],
        )
        both = _two(counts, listed)
        return cls(encoded=both, sizes=lengths_of(both))


def _two(first: pa.Array, second: pa.Array) -> pa.Array:
    count = len(first)
    places = np.arange(2 * count).reshape(2, count).T.reshape(-1)
    taken = pa.concat_arrays([first, second]).take(pa.array(places))
    bounds = offsets_of(taken)[::2].astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), taken.buffers()[2]])


def _zigzag(numbers: Numbers) -> Numbers:
    return np.where(numbers < 0, 1, numbers << 1)


def _widths(numbers: Numbers) -> Numbers:
    widths = np.ones(len(numbers), np.int64)
    for number in range(1, LENGTH_MAX_BYTES):
        is_longer = numbers >= 1 << _SEVEN_BITS * number
        if not is_longer.any():
            break
        widths += is_longer
    return widths


def _varints_column(parts: Sequence[Numbers | bytes]) -> pa.Array:
    count = next(len(part) for part in parts if not isinstance(part, bytes))
    widths = [len(part) if isinstance(part, bytes) else _widths(part) for part in parts]
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(sum(widths), out=bounds[1:])
    data = np.empty(int(bounds[-1]), np.uint8)
    positions = bounds[:-1].copy()
    for part, width in zip(parts, widths, strict=True):
        if isinstance(part, bytes):
            for number, byte in enumerate(part):
                data[positions + number] = byte
        else:
            _put_varints(data, positions, part, np.asarray(width))
        positions += width
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)])


def _put_varints(data: NDArray[np.uint8], positions: Numbers, numbers: Numbers, widths: Numbers) -> None:
    data[positions] = (numbers & 0x7F) | ((widths > 1) << _SEVEN_BITS)
    rows = np.flatnonzero(widths > 1)
    number = 1
    while len(rows):
        rest = numbers[rows] >> _SEVEN_BITS * number
        data[positions[rows] + number] = (rest & 0x7F) | ((widths[rows] > number + 1) << _SEVEN_BITS)
        number += 1
        rows = rows[widths[rows] > number]


@attrs.define(eq=False, kw_only=True, repr=False)
class RowBatch:
    """A batch of one partition and its rows. `until`: when to give it up, by `time.monotonic`."""

    topic: str
    partition: int
    base_sequence: int
    data: bytearray
    rows: Rows
    order: Numbers
    until: float

    @property
    def at(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def record_count(self) -> int:
        return len(self.order)


@attrs.frozen(kw_only=True, eq=False)
class EncodedPiece:
    """The encoded records of these rows, which become a batch."""

    partition: int
    records: memoryview
    order: Numbers


def pieces_of(rows: Rows, partitions: Numbers, batch_bytes: int) -> Iterator[EncodedPiece]:
    """Yield the records of each batch: of one partition, in order, up to a size in bytes."""
    small = partitions.astype(np.uint16) if int(partitions.max()) < 1 << 16 else partitions  # sorted by counting
    order = np.argsort(small, kind="stable")
    ends = np.cumsum(rows.payload_bytes[order] + RECORD_OVERHEAD_BYTES)
    bounds = [(part, start, end) for part, first, last in _runs(partitions[order])
              for start, end in _cut(ends, first, last, batch_bytes)]  # fmt: skip
    counts = np.array([end - start for _, start, end in bounds])
    deltas = np.arange(len(order)) - np.repeat([start for _, start, _ in bounds], counts)
    encoded = encode_records(rows, order, deltas)
    for partition, start, end in bounds:
        yield EncodedPiece(partition=partition, records=encoded.records(start, end), order=order[start:end])


def halves_of(batch: RowBatch) -> Iterator[EncodedPiece]:
    middle = batch.record_count // 2
    for order in (batch.order[:middle], batch.order[middle:]):
        encoded = encode_records(batch.rows, order, np.arange(len(order)))
        yield EncodedPiece(partition=batch.partition, records=encoded.records(0, len(order)), order=order)


def encode(
    piece: EncodedPiece,
    identity: WriterIdentity,
    base_sequence: int,
    *,
    codec: int,
    timestamp_ms: int,
    is_transactional: bool = False,
) -> bytearray:
    """Return a batch, compressed by a codec of `kafscale.wire.compression`."""
    records = piece.records if codec == compression.NONE else compression.compress(codec, piece.records)
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec | TRANSACTIONAL if is_transactional else codec,
        last_offset_delta=len(piece.order) - 1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=base_sequence,
        record_count=len(piece.order),
    )
    return encode_batch(header, records)


def next_sequence(base_sequence: int, record_count: int) -> int:
    """Return the sequence behind these records; 0 follows the greatest one."""
    return (base_sequence + record_count) & MAX_SEQUENCE


def _runs(partitions: Numbers) -> Iterator[tuple[int, int, int]]:
    bounds = np.flatnonzero(np.diff(partitions, prepend=-1, append=-1))
    for start, end in pairwise(bounds):
        yield int(partitions[start]), int(start), int(end)


def _cut(ends: Numbers, first: int, last: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    start = first
    while start < last:
        before = int(ends[start - 1]) if start else 0
        end = min(last, max(start + 1, int(np.searchsorted(ends, before + size_bytes, side="right"))))
        yield start, end
        start = end
