"""Plans the steps of `protobuf_columns` that read messages of one writer's type into a reader's columns.

Plans exist for types without JSON in their columns. The library reads messages with recursion or Google's types for
JSON, with extensions, and with fields out of order; types with groups have no plan. By columns 2.8 million orders/s are
read, by the library 300,000 (decision 0046).
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

from kafscale.spark.values import protobuf_columns
from kafscale.spark.values.payloads import PayloadCursor, Payloads, offsets_column, refuse_repeated_keys
from kafscale.spark.values.protobuf_columns import FIXED32, FIXED64, SIZED, VARINT, Read, Scalar
from kafscale.wire.primitives import uvarint

STEPS_MAX = 2000  # of a plan: a schema of few lines can have any number of fields
DEPTH_MAX = 50  # of messages within each other; the library reads no more than 100

_VARINTS = {
    FieldDescriptor.TYPE_INT32: protobuf_columns.int32s,
    FieldDescriptor.TYPE_INT64: protobuf_columns.int64s,
    FieldDescriptor.TYPE_UINT32: protobuf_columns.uint32s,
    FieldDescriptor.TYPE_UINT64: protobuf_columns.uint64s,
    FieldDescriptor.TYPE_SINT32: protobuf_columns.zigzag32s,
    FieldDescriptor.TYPE_SINT64: protobuf_columns.zigzag64s,
    FieldDescriptor.TYPE_BOOL: protobuf_columns.booleans,
}
_FIXED32S = {
    FieldDescriptor.TYPE_FIXED32: protobuf_columns.uint32s,
    FieldDescriptor.TYPE_SFIXED32: protobuf_columns.int32s,
    FieldDescriptor.TYPE_FLOAT: protobuf_columns.floats,
}
_FIXED64S = {
    FieldDescriptor.TYPE_FIXED64: protobuf_columns.uint64s,
    FieldDescriptor.TYPE_SFIXED64: protobuf_columns.int64s,
    FieldDescriptor.TYPE_DOUBLE: protobuf_columns.doubles,
}
_SCALARS = {
    type_: Scalar(wire_type=wire_type, to_array=to_array)
    for wire_type, of_type in ((VARINT, _VARINTS), (FIXED32, _FIXED32S), (FIXED64, _FIXED64S))
    for type_, to_array in of_type.items()
}
_SIZED_TYPES = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)
_TIMES = {
    "google.protobuf.Timestamp": protobuf_columns.timestamps,
    "google.protobuf.Duration": protobuf_columns.durations,
}

Columns = Sequence[pa.Array]
ReadField = Callable[
    [PayloadCursor], tuple[Columns, NDArray[np.bool_]]
]  # with which messages have it; no column if skipped


class _UnplannedProtobuf(Exception):
    """The schemas have something that only the library reads."""


@attrs.frozen(kw_only=True)
class ProtobufPlan:
    type: pa.DataType
    _read: Callable[[PayloadCursor], Columns]

    @classmethod
    def of(cls, writer: Descriptor, reader: Descriptor, type_: pa.DataType) -> ProtobufPlan | None:
        """Return None for types whose messages only the library reads."""
        if not pa.types.is_struct(type_):
            return None
        try:
            read = _ProtobufPlanner().message(writer, reader, type_, 0)
        except _UnplannedProtobuf:
            return None
        return cls(type=type_, read=read)

    def decode(self, payloads: Payloads, *, max_bytes: int) -> tuple[pa.Array, NDArray[np.bool_]]:
        """Return the values of the messages that were read, and which these are; none longer than `max_bytes`."""
        cursor = PayloadCursor.of(payloads)
        cursor.refuse(payloads.lengths > max_bytes)
        found = pa.StructArray.from_arrays(self._read(cursor), fields=list(self.type))
        is_read = cursor.is_good & (cursor.positions == cursor.ends)
        return found if is_read.all() else found.filter(pa.array(is_read)), is_read


@attrs.define(eq=False, repr=False)
class _ProtobufPlanner:
    _steps_left: int = attrs.field(default=STEPS_MAX, init=False)

    def message(
        self, writer: Descriptor | None, reader: Descriptor, type_: pa.StructType, depth: int
    ) -> Callable[[PayloadCursor], Columns]:
        if depth > DEPTH_MAX:
            raise _UnplannedProtobuf
        of_writer = {} if writer is None else dict(writer.fields_by_number)
        places = {field.number: place for place, field in enumerate(reader.fields)}
        numbers = sorted(places | of_writer)
        steps: list[tuple[int | None, ReadField]] = []
        for number in numbers:
            self._take_step()
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

    def _take_step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise _UnplannedProtobuf

    def _field(
        self, writer: FieldDescriptor | None, field: FieldDescriptor, type_: pa.DataType, depth: int
    ) -> ReadField:
        if _is_json(field, type_):
            return _refused(field, type_)
        if not field.is_repeated:
            return _singular(field, self._value(writer, field, type_, depth))
        if pa.types.is_map(type_):
            return self._map(writer, field, type_, depth)
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
        return protobuf_columns.strings if field.type == FieldDescriptor.TYPE_STRING else protobuf_columns.bytes_of

    def _inner(self, writer: Descriptor | None, reader: Descriptor, type_: pa.DataType, depth: int) -> Read:
        to_array: Callable[[Columns, PayloadCursor], pa.Array]
        if reader.full_name in _TIMES:
            fields = pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
            to_array = _TIMES[reader.full_name]
        elif pa.types.is_struct(type_):
            fields, to_array = type_, partial(_struct, type_)
        else:  # one of Google's messages that wrap a value
            fields, to_array = pa.struct([("value", type_)]), _only
        read = self.message(writer, reader, fields, depth)

        def one_each(cursor: PayloadCursor) -> pa.Array:
            inner = protobuf_columns.within(cursor)
            found = to_array(read(inner), inner)
            protobuf_columns.leave(cursor, inner)
            return found

        return one_each

    def _map(self, writer: FieldDescriptor | None, field: FieldDescriptor, type_: pa.MapType, depth: int) -> ReadField:
        entry = pa.struct([("key", type_.key_type), ("value", type_.item_type)])
        of_writer = None if writer is None else writer.message_type
        read = self.message(of_writer, field.message_type, entry, depth + 1)
        tag = _tag(field, SIZED)

        def step(lane: PayloadCursor) -> Columns:
            inner = protobuf_columns.within(lane)
            found = read(inner)
            protobuf_columns.leave(lane, inner)
            return found

        def all_of(cursor: PayloadCursor) -> tuple[Columns, NDArray[np.bool_]]:
            counts, columns = protobuf_columns.repeated(cursor, tag, step)
            keys, values = columns or (pa.array([], type_.key_type), pa.array([], type_.item_type))
            refuse_repeated_keys(cursor, counts, keys)
            return (pa.MapArray.from_arrays(offsets_column(counts), keys, values, type=type_),), counts > 0

        return all_of


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


def _struct(type_: pa.StructType, columns: Columns, cursor: PayloadCursor) -> pa.Array:
    return pa.StructArray.from_arrays(columns, fields=list(type_))


def _only(columns: Columns, cursor: PayloadCursor) -> pa.Array:
    return columns[0]


def _scalar(field: FieldDescriptor) -> Scalar | None:
    if field.enum_type is not None:
        return protobuf_columns.enums(
            {number: value.name for number, value in field.enum_type.values_by_number.items()}
        )
    return _SCALARS.get(field.type)


def _wire_type(field: FieldDescriptor) -> int:
    scalar = _scalar(field)
    if scalar is not None:
        return scalar.wire_type
    if field.type not in _SIZED_TYPES:
        raise _UnplannedProtobuf
    return SIZED


def _tag(field: FieldDescriptor, wire_type: int) -> bytes:
    return uvarint(field.number << 3 | wire_type)


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
        is_there = protobuf_columns.has_next(cursor, tag)
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
        found, is_there = protobuf_columns.singular(cursor, tag, read, default)
        return (found,), is_there

    return one


def _default(field: FieldDescriptor) -> pa.Array:
    scalar = _scalar(field)
    if scalar is not None:
        return scalar.to_array(
            np.array([field.default_value if field.enum_type is not None else 0], np.int64).view("u8")
        )
    return pa.array([""]) if field.type == FieldDescriptor.TYPE_STRING else pa.array([b""], pa.binary())


def _packed(field: FieldDescriptor, scalar: Scalar, type_: pa.ListType) -> ReadField:
    tag = _tag(field, SIZED)

    def all_of(cursor: PayloadCursor) -> tuple[Columns, NDArray[np.bool_]]:
        is_there = protobuf_columns.has_next(cursor, tag)
        counts = np.zeros(len(cursor), np.int64)
        rows = np.flatnonzero(is_there)
        some = cursor.only(rows)
        some.positions += len(tag)
        counts[rows], items = protobuf_columns.packed(scalar, some)
        cursor.join(rows, some)
        return (protobuf_columns.lists(counts, items, type_),), is_there

    return all_of


def _repeated(field: FieldDescriptor, read: Read, type_: pa.ListType) -> ReadField:
    tag = _tag(field, _wire_type(field))

    def all_of(cursor: PayloadCursor) -> tuple[Columns, NDArray[np.bool_]]:
        counts, columns = protobuf_columns.repeated(cursor, tag, lambda lane: (read(lane),))
        items = columns[0] if columns else pa.array([], type_.value_type)
        return (protobuf_columns.lists(counts, items, type_),), counts > 0

    return all_of


def _skipped(field: FieldDescriptor) -> ReadField:
    wire_type = SIZED if field.is_repeated and field.is_packed else _wire_type(field)
    tag, step = _tag(field, wire_type), protobuf_columns.skip(wire_type)

    def skip(cursor: PayloadCursor) -> tuple[Columns, NDArray[np.bool_]]:
        counts, _ = protobuf_columns.repeated(cursor, tag, step)
        return (), counts > 0

    return skip
