"""Zigzag varints, many at a time: one per element of an array of positions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Raw = NDArray[np.uint8]

VARINT_MAX_BYTES = 10


def read_varints(raw: Raw, positions: Positions) -> tuple[NDArray[np.int64], Positions]:
    """The signed number at each position, and the position behind it.

    A position outside of `raw` reads its last byte: who calls checks where the reading has ended.
    """
    values, ends = _read_unsigned(raw, positions)
    return (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64), ends


def _read_unsigned(raw: Raw, positions: Positions) -> tuple[NDArray[np.uint64], Positions]:
    read = raw.take(positions, mode="clip")
    values = (read & 0x7F).astype(np.uint64)
    ends = positions + 1
    going_on = np.flatnonzero(read & 0x80)
    for number in range(1, VARINT_MAX_BYTES):
        if not len(going_on):
            break
        read = raw.take(positions[going_on] + number, mode="clip")
        values[going_on] |= (read & 0x7F).astype(np.uint64) << np.uint64(7 * number)
        ends[going_on] += 1
        going_on = going_on[read >= 0x80]
    return values, ends


def read_varint(raw: memoryview, position: int) -> tuple[int, int]:
    """A single one, for where there are too few to make an array pay. Raises IndexError."""
    byte = raw[position]
    position += 1
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), position
