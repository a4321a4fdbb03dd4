"""Steps that read Protobuf messages into Arrow columns, a field of all messages at once.

Serializers write fields in the order of their numbers, and each field once, except repeated ones. So for each field, in
order, the messages with its tag next are found and read by array operations; the others lack it. A message with
something left then, or anything unexpected, is refused (`payloads`) and read by protobuf's library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafscale.spark.values.payloads import Numbers, PayloadCursor, in_order, offsets_column, texts, with_nulls
from kafscale.spark.workers.slices import VARINT_MAX_BYTES, Positions, bytes_column, read_varints

VARINT, FIXED64, SIZED, _, _, FIXED32 = range(6)
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
MICROSECONDS = 1_000_000
SECONDS_MAX = (1 << 62) // MICROSECONDS  # of a time, so that its microseconds are in 64 bits

Unsigned = NDArray[np.uint64]
Read = Callable[[PayloadCursor], pa.Array]  # of one value of each
Step = Callable[[PayloadCursor], Sequence[pa.Array]]
ToArray = Callable[[Unsigned], pa.Array]


@attrs.frozen(kw_only=True, eq=False)
class Scalar:
    """Numbers of one type: their wire type, and the conversion of their bits to a column.

    Null marks a number to refuse.
    """

    wire_type: int
    to_array: ToArray

    def read(self, cursor: PayloadCursor) -> pa.Array:
        if self.wire_type == VARINT:
            found = self.to_array(_bits(cursor.varints()))
        else:
            found = self.to_array(_fixed(cursor.fixed(FIXED_BYTES[self.wire_type])))
        if found.null_count:
            cursor.refuse(_is_null(found))
        return found


def _is_null(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


def _bits(values: Numbers) -> Unsigned:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _fixed(found: NDArray[np.uint8]) -> Unsigned:
    return found.view(f"<u{found.shape[1]}")[:, 0].astype(np.uint64)


# ---- numbers --------------------------------------------------------------------------------------------------------


def int32s(bits: Unsigned) -> pa.Array:
    return _plain(pa.int32(), bits.astype(np.uint32))


def int64s(bits: Unsigned) -> pa.Array:
    return _plain(pa.int64(), bits)


def uint32s(bits: Unsigned) -> pa.Array:
    return _plain(pa.int64(), bits.astype(np.uint32).astype(np.int64))


def uint64s(bits: Unsigned) -> pa.Array:
    """Convert to decimals of 20 digits, as Spark has no unsigned numbers."""
    words = np.zeros((len(bits), 2), "<u8")
    words[:, 0] = bits
    return _plain(pa.decimal128(20, 0), words)


def zigzag32s(bits: Unsigned) -> pa.Array:
    low = bits.astype(np.uint32)
    return _plain(pa.int32(), (low >> np.uint32(1)) ^ (np.uint32(0) - (low & np.uint32(1))))


def zigzag64s(bits: Unsigned) -> pa.Array:
    return _plain(pa.int64(), (bits >> np.uint64(1)) ^ (np.uint64(0) - (bits & np.uint64(1))))


def booleans(bits: Unsigned) -> pa.Array:
    return pa.array(bits != 0)


def floats(bits: Unsigned) -> pa.Array:
    return _plain(pa.float32(), bits.astype(np.uint32))


def doubles(bits: Unsigned) -> pa.Array:
    return _plain(pa.float64(), bits)


def _plain(type_: pa.DataType, values: NDArray[np.generic]) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def enums(names: Mapping[int, str]) -> Scalar:
    """Convert to names by number. Refuse an unknown number, which the library decides on."""
    known = np.array(sorted(names), np.int64)
    columns = pa.array([names[int(number)] for number in known], pa.string())

    def to_array(bits: Unsigned) -> pa.Array:
        numbers = bits.astype(np.uint32).view(np.int32).astype(np.int64)
        places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        is_unknown = known[places] != numbers
        return columns.take(pa.array(places, mask=is_unknown if is_unknown.any() else None))

    return Scalar(wire_type=VARINT, to_array=to_array)


# ---- what has a length ----------------------------------------------------------------------------------------------


def lengths(cursor: PayloadCursor) -> Numbers:
    """Read a length of each; one that is too large is negative, and refused later."""
    return _bits(cursor.varints()).view(np.int64)


def strings(cursor: PayloadCursor) -> pa.Array:
    return texts(bytes_of(cursor), cursor)


def bytes_of(cursor: PayloadCursor) -> pa.Array:
    return bytes_column(cursor.data, *cursor.slices(lengths(cursor)))


def within(cursor: PayloadCursor) -> PayloadCursor:
    """Return a cursor for the inner messages, passed over here; `leave` it when they are read."""
    starts, ends = cursor.slices(lengths(cursor))
    return PayloadCursor(
        data=cursor.data,
        raw=cursor.raw,
        positions=starts,
        ends=ends,
        is_good=cursor.is_good.copy(),
        lone_steps_left=cursor.lone_steps_left,
    )


def leave(cursor: PayloadCursor, inner: PayloadCursor) -> None:
    """Refuse messages that were not read to their end."""
    cursor.is_good &= inner.is_good & (inner.positions == inner.ends)


def packed(scalar: Scalar, cursor: PayloadCursor) -> tuple[Numbers, pa.Array]:
    """Read numbers without tags within a length: the count for each message, and all numbers."""
    starts, ends = cursor.slices(lengths(cursor))
    if scalar.wire_type == VARINT:
        counts, bits = _packed_varints(cursor, starts, ends)
    else:
        size = FIXED_BYTES[scalar.wire_type]
        cursor.refuse((ends - starts) % size != 0)
        counts = (ends - starts) // size
        positions = _spread(starts, counts, size)
        bits = _fixed(cursor.raw.take(positions[:, np.newaxis] + np.arange(size), mode="clip"))
    found = scalar.to_array(bits)
    if found.null_count:
        cursor.is_good[np.repeat(np.arange(len(cursor)), counts)[_is_null(found)]] = False
    return counts, found


def _packed_varints(cursor: PayloadCursor, starts: Positions, ends: Positions) -> tuple[Numbers, Unsigned]:
    places = _spread(starts, ends - starts, 1)
    is_last = cursor.raw.take(places, mode="clip") < 0x80
    owners = np.repeat(np.arange(len(cursor)), ends - starts)
    counts = np.bincount(owners[is_last], minlength=len(cursor))
    closes = (ends > starts) & (cursor.raw.take(np.maximum(ends - 1, 0), mode="clip") >= 0x80)
    cursor.refuse(closes)
    begins = np.empty(len(places), np.bool_)
    begins[:1], begins[1:] = True, is_last[:-1]
    begins[1:] |= owners[1:] != owners[:-1]
    begins &= ~closes[owners]
    is_last &= ~closes[owners]
    counts[closes] = 0
    values, behind = read_varints(cursor.raw, places[begins])
    long = np.flatnonzero(behind - places[begins] >= VARINT_MAX_BYTES)
    if len(long):
        cursor.is_good[owners[begins][long[cursor.raw.take(behind[long] - 1, mode="clip") > 1]]] = False
    return counts, _bits(values)


def _spread(starts: Positions, counts: Numbers, step: int) -> Positions:
    total = int(counts.sum())
    before = np.cumsum(counts) - counts
    return np.repeat(starts, counts) + step * (np.arange(total) - np.repeat(before, counts))


# ---- fields ---------------------------------------------------------------------------------------------------------


def has_next(cursor: PayloadCursor, tag: bytes) -> NDArray[np.bool_]:
    found = cursor.is_good & (cursor.left >= len(tag))
    for number, byte in enumerate(tag):
        found &= cursor.raw.take(cursor.positions + number, mode="clip") == byte
    return found


def singular(
    cursor: PayloadCursor, tag: bytes, read: Read, default: pa.Array | None
) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Read a field, and tell which messages have it. Others get `default`, of one element, or null."""
    is_there = has_next(cursor, tag)
    if is_there.all():
        cursor.positions = cursor.positions + len(tag)
        return read(cursor), is_there
    rows = np.flatnonzero(is_there)
    some = cursor.only(rows)
    some.positions += len(tag)
    found = read(some)
    cursor.join(rows, some)
    if default is None:
        return (with_nulls(found, ~is_there) if len(rows) else pa.nulls(len(cursor), found.type)), is_there
    places = np.full(len(cursor), len(found))
    places[rows] = np.arange(len(found))
    return pa.concat_arrays([found, default]).take(pa.array(places)), is_there


def repeated(cursor: PayloadCursor, tag: bytes, step: Step) -> tuple[Numbers, Sequence[pa.Array]]:
    """Read elements with a tag each: the count for each message, and their columns, in the order of the messages.

    The first elements of all messages are read together, then the second ones, and so on.
    """
    counts = np.zeros(len(cursor), np.int64)
    parts: list[Sequence[pa.Array]] = []
    owners: list[Positions] = []
    rows = np.flatnonzero(has_next(cursor, tag))
    while len(rows) and cursor.may_step(rows):
        lane = cursor.only(rows)
        lane.positions += len(tag)
        parts.append(step(lane))
        cursor.join(rows, lane)
        owners.append(rows)
        counts[rows] += 1
        rows = rows[has_next(lane, tag)]
    return counts, in_order(parts, owners)


def lists(counts: Numbers, items: pa.Array, type_: pa.ListType) -> pa.Array:
    return pa.ListArray.from_arrays(offsets_column(counts), items, type=type_)


def skip(wire_type: int) -> Step:
    def step(cursor: PayloadCursor) -> Sequence[pa.Array]:
        if wire_type == VARINT:
            cursor.varints()
        else:
            cursor.slices(lengths(cursor) if wire_type == SIZED else FIXED_BYTES[wire_type])
        return ()

    return step


# ---- types of Google's ----------------------------------------------------------------------------------------------


def timestamps(columns: Sequence[pa.Array], cursor: PayloadCursor) -> pa.Array:
    """Convert to times since the epoch, with microseconds rounded down, as Python's division does."""
    whole, parts = _time(columns, cursor)
    return _plain(pa.timestamp("us", "UTC"), whole + parts // 1000)


def durations(columns: Sequence[pa.Array], cursor: PayloadCursor) -> pa.Array:
    """Convert to spans of time, with microseconds rounded to zero."""
    whole, parts = _time(columns, cursor)
    return _plain(pa.duration("us"), whole + np.sign(parts) * (np.abs(parts) // 1000))


def _time(columns: Sequence[pa.Array], cursor: PayloadCursor) -> tuple[Numbers, Numbers]:
    whole, parts = (column.to_numpy(zero_copy_only=False).astype(np.int64) for column in columns)
    is_far = (whole > SECONDS_MAX) | (whole < -SECONDS_MAX)
    cursor.refuse(is_far)
    return np.where(is_far, 0, whole) * MICROSECONDS, parts
