"""Steps that read Avro payloads into Arrow columns, a field of all payloads at once, by array operations.

A payload that does not match its schema is refused (`payloads`), and fastavro reads it. `avro_plan` joins the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafscale.spark.values.payloads import (
    Numbers,
    PayloadCursor,
    in_order,
    offsets_column,
    refuse_repeated_keys,
    texts,
    with_nulls,
)
from kafscale.spark.workers.slices import Positions, bytes_column

INT32 = np.iinfo(np.int32)

Read = Callable[[PayloadCursor], pa.Array]
Skip = Callable[[PayloadCursor], None]
Step = Callable[[PayloadCursor], Sequence[pa.Array]]  # of an item: its columns, or none where it is passed over


# ---- values ---------------------------------------------------------------------------------------------------------


def whole_numbers(type_: pa.DataType) -> Read:
    """Read numbers, dates or times; refuse one that is too large for the type."""

    def read(cursor: PayloadCursor) -> pa.Array:
        values = cursor.varints()
        if type_.bit_width == 64:
            return _plain(type_, values)
        is_bad = (values < INT32.min) | (values > INT32.max)
        if is_bad.any():
            cursor.refuse(is_bad)
        return _plain(type_, values.astype(np.int32))

    return read


def floats_of_numbers(type_: pa.DataType) -> Read:
    """Read whole numbers as floating-point ones, by way of 64 bits, as Python does."""
    return lambda cursor: pa.array(cursor.varints().astype(np.float64)).cast(type_)


def floats(written: str, type_: pa.DataType) -> Read:
    """Read float or double, as `written`, into either."""
    size, dtype = (4, "<f4") if written == "float" else (8, "<f8")
    return lambda cursor: pa.array(cursor.fixed(size).view(dtype)[:, 0]).cast(type_)


def booleans(cursor: PayloadCursor) -> pa.Array:
    values = cursor.fixed(1)[:, 0]
    cursor.refuse(values > 1)
    return pa.array(values == 1)


def sized(type_: pa.DataType) -> Read:
    is_text = type_ == pa.string()

    def read(cursor: PayloadCursor) -> pa.Array:
        found = bytes_column(cursor.data, *cursor.slices(cursor.varints()))
        return texts(found, cursor) if is_text else found

    return read


def fixed(size: int) -> Read:
    return lambda cursor: bytes_column(cursor.data, *cursor.slices(size))


def enums(symbols: Sequence[str | None]) -> Read:
    """Read texts by number; None stands for a symbol that the reader does not know."""
    texts = pa.array([*symbols, None], pa.string())
    is_unknown = np.array([symbol is None for symbol in symbols] + [True])

    def read(cursor: PayloadCursor) -> pa.Array:
        numbers = cursor.varints()
        numbers = np.where((numbers >= 0) & (numbers < len(symbols)), numbers, len(symbols))
        cursor.refuse(is_unknown[numbers])
        return texts.take(pa.array(numbers))

    return read


def decimals(type_: pa.Decimal128Type, size: int | None) -> Read:
    """Read decimals of at most 16 bytes, behind their length if `size` is None. Refuse too many digits."""
    high, low = divmod(10**type_.precision, 1 << 64)

    def read(cursor: PayloadCursor) -> pa.Array:
        starts, ends = cursor.slices(cursor.varints() if size is None else size)
        lengths = ends - starts
        cursor.refuse((lengths < 1) | (lengths > 16))
        found = cursor.raw.take(ends[:, np.newaxis] - 1 - np.arange(16), mode="clip")  # the lowest byte first
        is_negative = cursor.raw.take(starts, mode="clip") >= 0x80
        fill = np.where(is_negative, 0xFF, 0).astype(np.uint8)
        words = np.where(np.arange(16) < lengths[:, np.newaxis], found, fill[:, np.newaxis]).view("<u8")
        lows, highs = words[:, 0].copy(), words[:, 1].copy()
        lows[is_negative] = ~lows[is_negative] + np.uint64(1)
        highs[is_negative] = ~highs[is_negative] + (lows[is_negative] == 0)
        cursor.refuse((highs > high) | ((highs == high) & (lows >= low)))
        return pa.Array.from_buffers(type_, len(cursor), [None, pa.py_buffer(np.ascontiguousarray(words))])

    return read


def _plain(type_: pa.DataType, values: NDArray[np.int32] | Numbers) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


# ---- what has others within it --------------------------------------------------------------------------------------


def nullable(read: Read, type_: pa.DataType, branch: int, null_branch: int | None) -> Read:
    """Read a union of one type and null; `null_branch` is None if the writer or the reader has no null."""

    def read_some(cursor: PayloadCursor) -> pa.Array:
        branches = cursor.varints()
        has_value = branches == branch
        cursor.refuse(~has_value & ((branches != null_branch) if null_branch is not None else True))
        if has_value.all():
            return read(cursor)
        rows = np.flatnonzero(has_value)
        if not len(rows):
            return pa.array([None] * len(cursor), type_)
        some = cursor.only(rows)
        found = read(some)
        cursor.join(rows, some)
        return with_nulls(found, ~has_value)

    return read_some


def skip_union(branches: Sequence[Skip]) -> Skip:
    def skip(cursor: PayloadCursor) -> None:
        found = cursor.varints()
        cursor.refuse((found < 0) | (found >= len(branches)))
        for number, skip_branch in enumerate(branches):
            rows = np.flatnonzero(found == number)
            if len(rows):
                some = cursor.only(rows)
                skip_branch(some)
                cursor.join(rows, some)

    return skip


def blocks(cursor: PayloadCursor, step: Step) -> tuple[Numbers, Sequence[pa.Array]]:
    """Read the number of items of each payload's array or map, and their columns, in the order of the payloads.

    The first items of all payloads are read together, then the second ones, and so on.
    """
    counts = np.zeros(len(cursor), np.int64)
    parts: list[Sequence[pa.Array]] = []
    owners: list[Positions] = []
    rows = np.arange(len(cursor))
    while len(rows):
        some = cursor.only(rows)
        item_counts = _item_counts(some)
        cursor.join(rows, some)
        rows, item_counts = rows[item_counts > 0], item_counts[item_counts > 0]
        active, number = rows, 0
        while len(active) and cursor.may_step(active):
            lane = cursor.only(active)
            parts.append(step(lane))
            cursor.join(active, lane)
            owners.append(active)
            counts[active] += 1
            number += 1
            active = rows[(item_counts > number) & cursor.is_good[rows]]
        rows = rows[cursor.is_good[rows]]
    return counts, in_order(parts, owners)


def _item_counts(cursor: PayloadCursor) -> Numbers:
    counts = cursor.varints()
    with_size = np.flatnonzero(counts < 0)
    if len(with_size):
        some = cursor.only(with_size)
        some.varints()
        cursor.join(with_size, some)
        counts = np.abs(counts)
    cursor.refuse((counts < 0) | (counts > np.maximum(cursor.left, 0)))  # an item takes a byte at least
    return np.where(cursor.is_good, counts, 0)


def arrays(read_item: Read, type_: pa.ListType) -> Read:
    def read(cursor: PayloadCursor) -> pa.Array:
        counts, columns = blocks(cursor, lambda lane: (read_item(lane),))
        items = columns[0] if columns else pa.array([], type_.value_type)
        return pa.ListArray.from_arrays(offsets_column(counts), items, type=type_)

    return read


def maps(read_value: Read, type_: pa.MapType) -> Read:
    """Read maps by text. Refuse a repeated key, as Python keeps the last of its values."""
    read_key = sized(pa.string())

    def read(cursor: PayloadCursor) -> pa.Array:
        counts, columns = blocks(cursor, lambda lane: (read_key(lane), read_value(lane)))
        keys, values = columns or (pa.array([], pa.string()), pa.array([], type_.item_type))
        refuse_repeated_keys(cursor, counts, keys)
        return pa.MapArray.from_arrays(offsets_column(counts), keys, values, type=type_)

    return read
