"""Columns of bytes in one buffer, and zigzag varints, many at a time: one for each element of an array of positions.

Values are copied once, when a column is made. `wire.primitives` reads single varints.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Raw = NDArray[np.uint8]

VARINT_MAX_BYTES = 10


def _signed(values: NDArray[Any]) -> NDArray[Any]:
    return (values >> 1) ^ -(values & 1)


def _sizes() -> NDArray[np.int64]:
    """Make a table by two bytes, the second one the higher: the length of a number that begins with them plus the bytes
    that it announces, or 0 if two bytes do not tell.
    """
    pairs = np.arange(1 << 16)
    first, second = pairs & 0xFF, pairs >> 8
    goes_on = first >= 0x80
    steps = np.where(goes_on, _signed(first & 0x7F | second << 7) + 2, _signed(first) + 1)
    return np.where(goes_on & (second >= 0x80), 0, steps)


_SIZES = _sizes()


def read_varints(raw: Raw, positions: Positions) -> tuple[NDArray[np.int64], Positions]:
    """Return the signed number at each position, and the position behind it.

    A position outside of `raw` reads its first or last byte: the caller checks where the reading has ended. Numbers of
    one and two bytes, which are nearly all, are read without asking for their length.
    """
    first = raw.take(positions, mode="clip")
    goes_on = first >= 0x80
    ends = positions + 1
    if not goes_on.any():
        return _signed(first).view(np.int8).astype(np.int64), ends
    second = raw.take(ends, mode="clip")
    second *= goes_on
    ends += goes_on
    pairs = (second & 0x7F).astype(np.uint16)
    pairs <<= 7
    pairs |= first & 0x7F
    values = _signed(pairs).view(np.int16).astype(np.int64)
    going_on = np.flatnonzero(second >= 0x80)
    if len(going_on):
        values[going_on], ends[going_on] = _read_long(raw, positions[going_on])
    return values, ends


def skip_varints(raw: Raw, positions: Positions) -> Positions:
    ends = positions + 1
    goes_on = raw.take(positions, mode="clip") >= 0x80
    ends += goes_on
    going_on = np.flatnonzero(goes_on)
    for _ in range(2, VARINT_MAX_BYTES):
        if not len(going_on):
            break
        going_on = going_on[raw.take(ends[going_on] - 1, mode="clip") >= 0x80]
        ends[going_on] += 1
    return ends


def pairs_of(data: memoryview) -> NDArray[np.uint16]:
    """Return the two bytes at each position, the second one the higher, uncopied; `data` has two at least."""
    return np.ndarray((len(data) - 1,), "<u2", buffer=data, strides=(1,))


def skip_sized(pairs: NDArray[np.uint16], raw: Raw, positions: Positions) -> Positions:
    """Return the position behind each number and the bytes that it announces. Raises IndexError.

    `pairs` are those of `raw`. Positions are few, and an array operation costs more than its work, so few are used. A
    negative position counts from the end: the caller checks that all grow.
    """
    steps = _SIZES.take(pairs[positions])
    found = positions + steps
    if np.count_nonzero(steps) != len(steps):
        going_on = np.flatnonzero(steps == 0)
        lengths, ends = _read_long(raw, positions[going_on])
        found[going_on] = lengths + ends
    return found


def _read_long(raw: Raw, positions: Positions) -> tuple[NDArray[np.int64], Positions]:
    values = np.zeros(len(positions), np.uint64)
    ends = positions.copy()
    going_on = np.arange(len(positions))
    for number in range(VARINT_MAX_BYTES):
        read = raw.take(positions[going_on] + number, mode="clip")
        values[going_on] |= (read & 0x7F).astype(np.uint64) << np.uint64(7 * number)
        ends[going_on] += 1
        going_on = going_on[read >= 0x80]
        if not len(going_on):
            break
    return _signed(values).view(np.int64), ends


_INT32_MAX = 2**31 - 1


def bytes_column(data: Any, starts: Positions, ends: Positions) -> pa.Array:
    """Make a column of the values from each start to its end, in order; null if the end is before the start.

    Values and the gaps between them alternate; `take` copies the values, and makes the nulls.
    """
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    is_null = ends < starts
    bounds = np.empty(2 * count + 1, np.int32 if len(data) <= _INT32_MAX else np.int64)
    bounds[0:-1:2] = starts
    bounds[1::2] = np.maximum(ends, starts)
    bounds[-1] = bounds[-2]
    wide = bounds.dtype == np.int64
    pieces = pa.Array.from_buffers(
        pa.large_binary() if wide else pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    wanted = pa.array(np.arange(0, 2 * count, 2), mask=is_null if is_null.any() else None)
    taken = pieces.take(wanted)
    return taken.cast(pa.binary()) if wide else taken


def offsets_of(values: pa.Array) -> Positions:
    """Return the bounds of the values of a column of bytes or lists. A null may have anything between two bounds."""
    found = np.frombuffer(values.buffers()[1] or b"", np.int32)
    return found[values.offset : values.offset + len(values) + 1].astype(np.int64)


def starts_of(values: pa.Array) -> Positions:
    return offsets_of(values)[: len(values)]


def lengths_of(values: pa.Array) -> Positions:
    """Return the length of each value of a column of bytes, or of lists; -1 for a null."""
    lengths = np.diff(offsets_of(values))
    if values.null_count:
        lengths[values.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths
