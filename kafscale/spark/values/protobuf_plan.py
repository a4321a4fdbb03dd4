"""Plans of steps that read Protobuf messages of one writer's type into a reader's Arrow columns, many at once.

Serializers write fields in the order of their numbers, and each field once, except repeated ones. So for each field, in
order, the messages with its tag next are found and read by array operations; the others lack it. A message with
something left then, or anything unexpected, is refused (`payloads`) and read by protobuf's library.

The library also reads messages with recursion or Google's types for JSON, with extensions, and with fields out of
order; types with groups have no plan. By columns 2.8 million orders/s are read, by the library 300,000 (decision 0046).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from numpy.typing import NDArray

from kafscale.spark.values.payloads import (
    Numbers,
    PayloadCursor,
    Plan,
    Planner,
    Unplanned,
    in_order,
    offsets_column,
    refuse_repeated_keys,
    texts,
    with_nulls,
)
from kafscale.spark.workers.slices import VARINT_MAX_BYTES, Positions, bytes_column, read_varints
from kafscale.wire.primitives import uvarint

DEPTH_MAX = 50  # of messages within each other; the library reads no more than 100
VARINT, FIXED64, SIZED, _, _, FIXED32 = range(6)
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
MICROSECONDS = 1_000_000
SECONDS_MAX = (1 << 62) // MICROSECONDS  # of a time, so that its microseconds are in 64 bits
_SIZED_TYPES = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)

Unsigned = NDArray[np.uint64]
Columns = Sequence[pa.Array]
Read = Callable[[PayloadCursor], pa.Array]  # of one value of each
ReadField = Callable[[PayloadCursor], tuple[Columns, NDArray[np.bool_]]]  # its column, and which messages have it


# ---- numbers --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class Scalar:
    """Numbers of one wire type, and the conversion of their bits to a column. Null marks a number to refuse."""

    wire_type: int
    to_array: Callable[[Unsigned], pa.Array]

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


def _bits(values: Numbers) -> Unsigned:  # undoing zigzag, as `varints` has applied it
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _fixed(found: NDArray[np.uint8]) -> Unsigned:
    return found.view(f"<u{found.shape[1]}")[:, 0].astype(np.uint64)


def _plain(type_: pa.DataType, values: NDArray[np.generic]) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _uint64s(bits: Unsigned) -> pa.Array:  # decimals, as Spark has no unsigned numbers
    words = np.zeros((len(bits), 2), "<u8")
    words[:, 0] = bits
    return _plain(pa.decimal128(20, 0), words)


def _zigzag32s(bits: Unsigned) -> pa.Array:
    low = bits.astype(np.uint32)
    return _plain(pa.int32(), (low >> np.uint32(1)) ^ (np.uint32(0) - (low & np.uint32(1))))


def _zigzag64s(bits: Unsigned) -> pa.Array:
    return _plain(pa.int64(), (bits >> np.uint64(1)) ^ (np.uint64(0) - (bits & np.uint64(1))))


def _scalar_of(wire_type: int, type_: pa.DataType, stored: type[np.generic], widened: type[np.generic]) -> Scalar:
    def to_array(bits: Unsigned) -> pa.Array:
        return _plain(type_, bits.astype(stored, copy=False).astype(widened, copy=False))

    return Scalar(wire_type=wire_type, to_array=to_array)


_SCALARS = {
    FieldDescriptor.TYPE_INT32: _scalar_of(VARINT, pa.int32(), np.uint32, np.uint32),
    FieldDescriptor.TYPE_INT64: _scalar_of(VARINT, pa.int64(), np.uint64, np.uint64),
    FieldDescriptor.TYPE_UINT32: _scalar_of(VARINT, pa.int64(), np.uint32, np.int64),
    FieldDescriptor.TYPE_UINT64: Scalar(wire_type=VARINT, to_array=_uint64s),
    FieldDescriptor.TYPE_SINT32: Scalar(wire_type=VARINT, to_array=_zigzag32s),
    FieldDescriptor.TYPE_SINT64: Scalar(wire_type=VARINT, to_array=_zigzag64s),
    FieldDescriptor.TYPE_BOOL: Scalar(wire_type=VARINT, to_array=lambda bits: pa.array(bits != 0)),
    FieldDescriptor.TYPE_FIXED32: _scalar_of(FIXED32, pa.int64(), np.uint32, np.int64),
    FieldDescriptor.TYPE_SFIXED32: _scalar_of(FIXED32, pa.int32(), np.uint32, np.uint32),
    FieldDescriptor.TYPE_FLOAT: _scalar_of(FIXED32, pa.float32(), np.uint32, np.uint32),
    FieldDescriptor.TYPE_FIXED64: Scalar(wire_type=FIXED64, to_array=_uint64s),
    FieldDescriptor.TYPE_SFIXED64: _scalar_of(FIXED64, pa.int64(), np.uint64, np.uint64),
    FieldDescriptor.TYPE_DOUBLE: _scalar_of(FIXED64, pa.float64(), np.uint64, np.uint64),
}


def _scalar(field: FieldDescriptor) -> Scalar | None:
    if field.enum_type is None:
        return _SCALARS.get(field.type)
    names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
    known = np.array(sorted(names), np.int64)
    columns = pa.array([names[int(number)] for number in known], pa.string())

    def to_array(bits: Unsigned) -> pa.Array:
        numbers = bits.astype(np.uint32).view(np.int32).astype(np.int64)
        places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        is_unknown = known[places] != numbers  # the library decides on those
        return columns.take(pa.array(places, mask=is_unknown if is_unknown.any() else None))

    return Scalar(wire_type=VARINT, to_array=to_array)


# ---- what has a length ----------------------------------------------------------------------------------------------


def _lengths(cursor: PayloadCursor) -> Numbers:
    return _bits(cursor.varints()).view(np.int64)  # one that is too large is negative, and refused later


def _bytes_of(cursor: PayloadCursor) -> pa.Array:
    return bytes_column(cursor.data, *cursor.slices(_lengths(cursor)))


def _read_inner(cursor: PayloadCursor, read: Callable[[PayloadCursor], Any]) -> Any:
    """Read inner messages, and refuse those that are not read to their end."""
    starts, ends = cursor.slices(_lengths(cursor))
    inner = attrs.evolve(cursor, positions=starts, ends=ends, is_good=cursor.is_good.copy())
    found = read(inner)
    cursor.is_good &= inner.is_good & (inner.positions == inner.ends)
    return found


def _times(round_down: bool, type_: pa.DataType, columns: Columns, cursor: PayloadCursor) -> pa.Array:
    """Convert seconds and nanoseconds: of a Timestamp rounded down, of a Duration to zero, as the library does."""
    whole, parts = (column.to_numpy(zero_copy_only=False).astype(np.int64) for column in columns)
    is_far = (whole > SECONDS_MAX) | (whole < -SECONDS_MAX)
    cursor.refuse(is_far)
    rounded = parts // 1000 if round_down else np.sign(parts) * (np.abs(parts) // 1000)
    return _plain(type_, np.where(is_far, 0, whole) * MICROSECONDS + rounded)


_TIMES = {
    "google.protobuf.Timestamp": partial(_times, True, pa.timestamp("us", "UTC")),
    "google.protobuf.Duration": partial(_times, False, pa.duration("us")),
}


# ---- fields ---------------------------------------------------------------------------------------------------------


def _wire_type(field: FieldDescriptor) -> int:
    scalar = _scalar(field)
    if scalar is not None:
        return scalar.wire_type
    if field.type not in _SIZED_TYPES:  # a group
        raise Unplanned
    return SIZED


def _tag(field: FieldDescriptor, wire_type: int) -> bytes:
    return uvarint(field.number << 3 | wire_type)


def _has_next(cursor: PayloadCursor, tag: bytes) -> NDArray[np.bool_]:
    found = cursor.is_good & (cursor.left >= len(tag))
    for number, byte in enumerate(tag):
        found &= cursor.raw.take(cursor.positions + number, mode="clip") == byte
    return found


def _is_json(field: FieldDescriptor, type_: pa.DataType) -> bool:
    if field.message_type is None:
        return False
    if field.message_type.GetOptions().map_entry:
        return _is_json(field.message_type.fields_by_name["value"], type_.item_type)
    item = type_.value_type if field.is_repeated else type_
    return bool(pa.types.is_string(item)) and field.message_type.full_name != "google.protobuf.StringValue"


def _refused(field: FieldDescriptor, type_: pa.DataType) -> ReadField:
    """Leave messages that have the field to the library."""
    tag = _tag(field, _wire_type(field))

    def read(cursor: PayloadCursor) -> tuple[Columns, NDArray[np.bool_]]:
        is_there = _has_next(cursor, tag)
        cursor.refuse(is_there)
        empty: Any = [] if field.is_repeated else None
        return (pa.array([empty] * len(cursor), type_),), is_there

    return read


def _singular(field: FieldDescriptor, read: Read) -> ReadField:
    tag = _tag(field, _wire_type(field))
    is_of_map = field.containing_type.GetOptions().map_entry
    has_null = field.message_type is not None or (field.has_presence and not is_of_map)
    default = None if has_null else _default(field)

    def one(cursor: PayloadCursor) -> tuple[Columns, NDArray[np.bool_]]:
        is_there = _has_next(cursor, tag)
        if is_there.all():
            cursor.positions = cursor.positions + len(tag)
            return (read(cursor),), is_there
        rows = np.flatnonzero(is_there)
        some = cursor.only(rows)
        some.positions += len(tag)
        found = read(some)
        cursor.join(rows, some)
        if default is None:
            return (with_nulls(found, ~is_there) if len(rows) else pa.nulls(len(cursor), found.type),), is_there
        places = np.full(len(cursor), len(found))
        places[rows] = np.arange(len(found))
        return (pa.concat_arrays([found, default]).take(pa.array(places)),), is_there

    return one


def _default(field: FieldDescriptor) -> pa.Array:
    scalar = _scalar(field)
    if scalar is not None:
        number = field.default_value if field.enum_type is not None else 0
        return scalar.to_array(np.array([number], np.int64).view("u8"))
    return pa.array([""]) if field.type == FieldDescriptor.TYPE_STRING else pa.array([b""], pa.binary())


def _repeat(cursor: PayloadCursor, tag: bytes, step: Callable[[PayloadCursor], Columns]) -> tuple[Numbers, Columns]:
    """Read elements with a tag each: the count for each message, and their columns, in the order of the messages.

    The first elements of all messages are read together, then the second ones, and so on.
    """
    counts = np.zeros(len(cursor), np.int64)
    parts: list[Columns] = []
    owners: list[Positions] = []
    rows = np.flatnonzero(_has_next(cursor, tag))
    while len(rows) and cursor.may_step(rows):
        lane = cursor.only(rows)
        lane.positions += len(tag)
        parts.append(step(lane))
        cursor.join(rows, lane)
        owners.append(rows)
        counts[rows] += 1
        rows = rows[_has_next(lane, tag)]
    return counts, in_order(parts, owners)


def _repeated(field: FieldDescriptor, read: Read, type_: pa.ListType) -> ReadField:
    tag = _tag(field, _wire_type(field))

    def all_of(cursor: PayloadCursor) -> tuple[Columns, NDArray[np.bool_]]:
        counts, columns = _repeat(cursor, tag, lambda lane: (read(lane),))
        items = columns[0] if columns else pa.array([], type_.value_type)
        return (pa.ListArray.from_arrays(offsets_column(counts), items, type=type_),), counts > 0

    return all_of


def _map(field: FieldDescriptor, read: Callable[[PayloadCursor], Columns], type_: pa.MapType) -> ReadField:
    tag = _tag(field, SIZED)

    def all_of(cursor: PayloadCursor) -> tuple[Columns, NDArray[np.bool_]]:
        counts, columns = _repeat(cursor, tag, partial(_read_inner, read=read))
        keys, values = columns or (pa.array([], type_.key_type), pa.array([], type_.item_type))
        refuse_repeated_keys(cursor, counts, keys)
        return (pa.MapArray.from_arrays(offsets_column(counts), keys, values, type=type_),), counts > 0

    return all_of


def _skipped(field: FieldDescriptor) -> ReadField:
    wire_type = SIZED if field.is_repeated and field.is_packed else _wire_type(field)
    tag = _tag(field, wire_type)

    def step(cursor: PayloadCursor) -> Columns:
        if wire_type == VARINT:
            cursor.varints()
        else:
            cursor.slices(_lengths(cursor) if wire_type == SIZED else FIXED_BYTES[wire_type])
        return ()

    def skip(cursor: PayloadCursor) -> tuple[Columns, NDArray[np.bool_]]:
        counts, _ = _repeat(cursor, tag, step)
        return (), counts > 0

    return skip


def _packed(field: FieldDescriptor, scalar: Scalar, type_: pa.ListType) -> ReadField:
    tag = _tag(field, SIZED)

    def all_of(cursor: PayloadCursor) -> tuple[Columns, NDArray[np.bool_]]:
        is_there = _has_next(cursor, tag)
        counts = np.zeros(len(cursor), np.int64)
        rows = np.flatnonzero(is_there)
        some = cursor.only(rows)
        some.positions += len(tag)
        counts[rows], items = _packed_numbers(scalar, some)
        cursor.join(rows, some)
        return (pa.ListArray.from_arrays(offsets_column(counts), items, type=type_),), is_there

    return all_of


def _packed_numbers(scalar: Scalar, cursor: PayloadCursor) -> tuple[Numbers, pa.Array]:
    starts, ends = cursor.slices(_lengths(cursor))
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


# ---- plans ----------------------------------------------------------------------------------------------------------


def plan_protobuf(writer: Descriptor, reader: Descriptor, type_: pa.DataType) -> Plan | None:
    """Plan the read of messages; None for types whose messages only protobuf's library reads."""
    if not pa.types.is_struct(type_):
        return None

    def make() -> Read:
        read = _ProtobufPlanner().message(writer, reader, type_, 0)
        return lambda cursor: pa.StructArray.from_arrays(read(cursor), fields=list(type_))

    return Plan.of(make, type_)


class _ProtobufPlanner(Planner):
    def message(
        self, writer: Descriptor | None, reader: Descriptor, type_: pa.StructType, depth: int
    ) -> Callable[[PayloadCursor], Columns]:
        if depth > DEPTH_MAX:
            raise Unplanned
        of_writer = {} if writer is None else dict(writer.fields_by_number)
        places = {field.number: place for place, field in enumerate(reader.fields)}
        numbers = sorted(places | of_writer)
        steps: list[tuple[int | None, ReadField]] = []
        for number in numbers:
            self.take_step()
            place = places.get(number)
            if place is None:
                steps.append((None, _skipped(of_writer[number])))
            else:
                column = type_.field(place).type
                steps.append((place, self._field(of_writer.get(number), reader.fields[place], column, depth)))
        is_entry = reader.GetOptions().map_entry
        required = [numbers.index(field.number) for field in reader.fields if field.is_required or is_entry]
        choices = [[numbers.index(field.number) for field in choice.fields] for choice in reader.oneofs]
        return _PlannedMessage(steps=steps, width=len(places), choices=choices, required=required).read

    def _field(
        self, writer: FieldDescriptor | None, field: FieldDescriptor, type_: pa.DataType, depth: int
    ) -> ReadField:
        if _is_json(field, type_):
            return _refused(field, type_)
        if not field.is_repeated:
            return _singular(field, self._value(writer, field, type_, depth))
        if pa.types.is_map(type_):
            entry = pa.struct([("key", type_.key_type), ("value", type_.item_type)])
            of_writer = None if writer is None else writer.message_type
            return _map(field, self.message(of_writer, field.message_type, entry, depth + 1), type_)
        scalar = _scalar(field)
        if scalar is not None and (writer or field).is_packed:
            return _packed(field, scalar, type_)
        return _repeated(field, self._value(writer, field, type_.value_type, depth), type_)

    def _value(self, writer: FieldDescriptor | None, field: FieldDescriptor, type_: pa.DataType, depth: int) -> Read:
        if field.message_type is not None:
            return self._inner(None if writer is None else writer.message_type, field.message_type, type_, depth + 1)
        scalar = _scalar(field)
        if scalar is not None:
            return scalar.read
        if field.type == FieldDescriptor.TYPE_BYTES:
            return _bytes_of
        return lambda cursor: texts(_bytes_of(cursor), cursor)

    def _inner(self, writer: Descriptor | None, reader: Descriptor, type_: pa.DataType, depth: int) -> Read:
        to_array: Callable[[Columns, PayloadCursor], pa.Array]
        if reader.full_name in _TIMES:
            fields = pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
            to_array = _TIMES[reader.full_name]
        elif pa.types.is_struct(type_):
            fields = type_
            to_array = lambda columns, _: pa.StructArray.from_arrays(columns, fields=list(type_))  # noqa: E731
        else:  # one of Google's messages that wrap a value
            fields = pa.struct([("value", type_)])
            to_array = lambda columns, _: columns[0]  # noqa: E731
        read = self.message(writer, reader, fields, depth)
        return partial(_read_inner, read=lambda inner: to_array(read(inner), inner))


@attrs.frozen(kw_only=True, eq=False)
class _PlannedMessage:
    """Steps of fields in the order of their numbers, with the place of the column, if any.

    choices: steps that exclude each other; the library keeps the last of these. required: steps that must find a value.
    """

    steps: Sequence[tuple[int | None, ReadField]]
    width: int
    choices: Sequence[Sequence[int]]
    required: Sequence[int]

    def read(self, cursor: PayloadCursor) -> Columns:
        columns: list[pa.Array] = [None] * self.width
        is_there = []
        for place, step in self.steps:
            found, has_it = step(cursor)
            is_there.append(has_it)
            if place is not None:
                columns[place] = found[0]
        for choice in self.choices:
            cursor.refuse(np.sum([is_there[number] for number in choice], axis=0) > 1)
        for number in self.required:
            cursor.refuse(~is_there[number])
        return columns
