"""Columns of bytes made of where each value begins and ends in one buffer. Nothing is copied but the values, once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from kafscale.spark.workers.varints import Positions

_INT32_MAX = 2**31 - 1


def bytes_column(data: Any, starts: Positions, ends: Positions) -> pa.Array:
    """Take each value from its start to its end, which do not go back from value to value; null if it ends before.

    Values and the gaps between them alternate; the `take` copies the values, and makes null of what is none.
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
    """Return where each value of a column of bytes, and of lists, begins in what it is of, and where the last one ends.

    A null may have anything between two offsets.
    """
    found = np.frombuffer(values.buffers()[1] or b"", np.int32)
    return found[values.offset : values.offset + len(values) + 1].astype(np.int64)


def starts_of(values: pa.Array) -> Positions:
    """Return where each value of a column of bytes begins in its buffer."""
    return offsets_of(values)[: len(values)]


def lengths_of(values: pa.Array) -> Positions:
    """Return the length of each value of a column of bytes, or of lists; -1 for a null."""
    lengths = np.diff(offsets_of(values))
    if values.null_count:
        lengths[values.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths
