"""Columns to the bytes of records, as they are in a batch: all in one buffer, made by few array operations.

    record  = length | attributes 0 | timestamp delta 0 | offset delta | length of the key | key | length of the value
              | value | count of headers | headers
    header  = length of the key | key | length of the value | value

Lengths, deltas and counts are zigzag varints, and a length of -1 is null (KIP-98). What is between key and value, and
around them, is made as columns of bytes as well, and one `take` puts the pieces of all records in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafscale.spark.producing.rows import LENGTH_MAX_BYTES, Rows, list_bounds
from kafscale.spark.workers.slices import lengths_of, offsets_of

RECORD_OVERHEAD_BYTES = 5 * LENGTH_MAX_BYTES + 2  # of a record, beside what it is of, at most
_BETWEEN = b"\0\0"  # attributes and timestamp delta
_NO_HEADERS = pa.array([b"\0"], pa.binary())
_SEVEN_BITS = 7

Numbers = NDArray[np.int64]


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
