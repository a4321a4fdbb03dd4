"""Reads Protobuf values by protobuf's own library, and makes columns of them field by field.

The payload is parsed as the reader's message, which is Protobuf's schema evolution: fields go by number, unknown ones
are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import Message

from kafscale.errors import ConfigError, DecodeError
from kafscale.spark.values.columns import (
    Decode,
    Decoded,
    RowMemory,
    SchemaPlace,
    check_cells,
    decode_each,
    joined,
    to_columns,
    uncounted_bytes,
)
from kafscale.spark.values.payloads import LANES_MIN_COUNT, Payloads, Plan
from kafscale.spark.values.protobuf_plan import plan_protobuf
from kafscale.values import protobuf_schema
from kafscale.values.protobuf_bounds import MemoryBounds
from kafscale.values.registry import Schema

Values = Sequence[Any]  # of one field in many messages, None where it is absent


@attrs.define(frozen=True, kw_only=True)
class Element:
    """The conversion of a field's values, or of their elements, to an array."""

    type: pa.DataType
    to_array: Callable[[Values], pa.Array]


@attrs.define(frozen=True, kw_only=True)
class FieldColumn:
    """A field's column, filled from messages other than None."""

    field: pa.Field
    to_array: Callable[[Sequence[Message]], pa.Array]


@attrs.define(eq=False, kw_only=True, repr=False)
class _Writer:
    """A writer's file: the full names of messages by indexes, and plans by the bytes of indexes."""

    file: FileDescriptor
    names: dict[tuple[int, ...], str] = attrs.field(factory=dict)
    plans: dict[bytes, Plan | None] = attrs.field(factory=dict)


@attrs.define(eq=False, kw_only=True, repr=False)
class ProtobufReader:
    """Reads values into a message. Raises ConfigError, when made, if the schema is invalid or lacks the message.

    message: the full name; None for the first of the file.
    """

    schema: Schema
    message: str | None = None
    memory: RowMemory = attrs.field(init=False)
    _descriptor: Descriptor = attrs.field(init=False)
    _element: Element = attrs.field(init=False)
    _bounds: MemoryBounds = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        try:
            file = protobuf_schema.load(self.schema)
            found = (
                protobuf_schema.message_at(file, (0,))
                if self.message is None
                else protobuf_schema.message_named(file, self.message)
            )
        except DecodeError as exc:
            raise ConfigError(str(exc)) from exc
        if found is None:
            names = ", ".join(sorted(one.full_name for one in file.message_types_by_name.values()))
            raise ConfigError(f"{self.schema} has no message {self.message!r}; it has {names}")
        self._descriptor = found
        self._element = _message_element(found, SchemaPlace())
        self._bounds = MemoryBounds.of(found)
        self.memory = RowMemory.of(self.type, more_per_byte=self._bounds.most_per_byte)

    @property
    def type(self) -> pa.DataType:
        return self._element.type

    def of_writer(self, schema: Schema) -> Decode:
        """Make the decoder of a writer schema. Raises DecodeError unless it is Protobuf."""
        return partial(self._decode, _Writer(file=protobuf_schema.load(schema)))

    def _decode(self, writer: _Writer, payloads: Payloads | Sequence[bytes]) -> Decoded:
        payloads = Payloads.of(payloads)
        prefix = _indexes(payloads[0]) if len(payloads) >= LANES_MIN_COUNT else None
        plan = None if prefix is None else self._plan(writer, prefix)
        if prefix is None or plan is None:
            return self._decode_each(writer, payloads)
        rows = np.flatnonzero(payloads.begin_with(prefix))
        found, is_read = plan.decode(payloads.only(rows, len(prefix)), max_bytes=self._uncounted_bytes - len(prefix))
        return joined(Decoded(values=found, errors=[None] * len(found)), rows[is_read], payloads,
                      partial(self._decode_each, writer))  # fmt: skip

    @property
    def _uncounted_bytes(self) -> int:
        return min(self._bounds.unchecked_bytes, uncounted_bytes(self.type))

    def _plan(self, writer: _Writer, prefix: bytes) -> Plan | None:
        if prefix not in writer.plans:
            indexes, _ = protobuf_schema.read_indexes(prefix)
            try:
                found = protobuf_schema.message_at(writer.file, indexes)
            except DecodeError:
                return None
            is_wanted = found.full_name == self._descriptor.full_name
            writer.plans[prefix] = plan_protobuf(found, self._descriptor, self.type) if is_wanted else None
        return writer.plans[prefix]

    def _decode_each(self, writer: _Writer, payloads: Sequence[bytes]) -> Decoded:
        parse = message_factory.GetMessageClass(self._descriptor).FromString
        wanted, type_ = self._descriptor.full_name, self.type
        uncounted, bounds = uncounted_bytes(type_), self._bounds

        def one(payload: bytes) -> Message:
            indexes, start = protobuf_schema.read_indexes(payload)
            name = writer.names.get(indexes)
            if name is None:
                name = protobuf_schema.message_at(writer.file, indexes).full_name
                writer.names[indexes] = name
            if name != wanted:
                raise DecodeError(f"the value is a {name}, not a {wanted}")
            bounds.check(payload, start)
            message = parse(payload[start:])
            if len(payload) > uncounted:
                check_cells(message, type_, getattr)
            return message

        rows, errors = decode_each(payloads, one)
        return to_columns(rows, errors, self._element.to_array, self.type)


def _indexes(payload: bytes) -> bytes | None:
    try:
        return payload[: protobuf_schema.read_indexes(payload)[1]]
    except DecodeError:
        return None


def _struct_element(descriptor: Descriptor, place: SchemaPlace) -> Element:
    inside = place.within(descriptor.full_name)
    columns = [_column(field, inside) for field in descriptor.fields]
    fields = [column.field for column in columns]
    empty = message_factory.GetMessageClass(descriptor)()

    def to_array(messages: Values) -> pa.Array:
        absent = [message is None for message in messages]
        mask = None
        if any(absent):
            messages = [empty if message is None else message for message in messages]
            mask = pa.array(absent, pa.bool_())
        return pa.StructArray.from_arrays([column.to_array(messages) for column in columns], fields=fields, mask=mask)

    return Element(type=pa.struct(fields), to_array=to_array)


def _column(field: FieldDescriptor, place: SchemaPlace) -> FieldColumn:
    place.columns.take()
    name = field.name
    if field.is_repeated:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        element = _map_element(field.message_type, place) if is_map else _list_element(field, place)
    else:
        element = _value_element(field, place)
    if field.is_repeated or not field.has_presence:
        return FieldColumn(
            field=pa.field(name, element.type, nullable=False),
            to_array=lambda messages: element.to_array([getattr(message, name) for message in messages]),
        )
    return FieldColumn(
        field=pa.field(name, element.type),
        to_array=lambda messages: element.to_array(
            [getattr(message, name) if message.HasField(name) else None for message in messages]
        ),
    )


def _offsets(lists: Values) -> pa.Array:
    return pa.array(accumulate((len(one) for one in lists), initial=0), pa.int32())


def _list_element(field: FieldDescriptor, place: SchemaPlace) -> Element:
    element = _value_element(field, place)
    type_ = pa.list_(pa.field("element", element.type, nullable=False))

    def to_array(lists: Values) -> pa.Array:
        flat = element.to_array(list(chain.from_iterable(lists)))
        return pa.ListArray.from_arrays(_offsets(lists), flat, type=type_)

    return Element(type=type_, to_array=to_array)


def _map_element(entry: Descriptor, place: SchemaPlace) -> Element:
    key = _value_element(entry.fields_by_name["key"], place)
    value = _value_element(entry.fields_by_name["value"], place)
    type_ = pa.map_(key.type, pa.field("value", value.type, nullable=False))

    def to_array(maps: Values) -> pa.Array:
        pairs = list(chain.from_iterable(one.items() for one in maps))
        keys, values = key.to_array([one for one, _ in pairs]), value.to_array([other for _, other in pairs])
        return pa.MapArray.from_arrays(_offsets(maps), keys, values, type=type_)

    return Element(type=type_, to_array=to_array)


_SCALARS: dict[int, pa.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),  # Spark has no unsigned numbers, and none is to wrap around
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}


def _value_element(field: FieldDescriptor, place: SchemaPlace) -> Element:
    if field.message_type is not None:
        return _message_element(field.message_type, place)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return _mapped(pa.string(), lambda number: names.get(number) or str(number))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _plain(pa.binary())
    return _plain(_SCALARS[field.cpp_type])


def _message_element(descriptor: Descriptor, place: SchemaPlace) -> Element:
    name = descriptor.full_name
    if name == "google.protobuf.Timestamp":
        return _mapped(pa.timestamp("us", "UTC"), lambda time: time.seconds * 1_000_000 + time.nanos // 1000)
    if name == "google.protobuf.Duration":
        return _mapped(pa.duration("us"), lambda time: time.seconds * 1_000_000 + int(time.nanos / 1000))
    if name in _WRAPPERS:
        scalar = _value_element(descriptor.fields_by_name["value"], place)
        return _mapped(scalar.type, lambda wrapper: wrapper.value)
    if name in _AS_JSON or name in place.around or not descriptor.fields:
        return _mapped(pa.string(), partial(json_format.MessageToJson, indent=None, preserving_proto_field_name=True))
    return _struct_element(descriptor, place)


_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_AS_JSON = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})


def _plain(type_: pa.DataType) -> Element:
    return Element(type=type_, to_array=lambda values: pa.array(values, type_))


def _mapped(type_: pa.DataType, convert: Callable[[Any], Any]) -> Element:
    return Element(
        type=type_,
        to_array=lambda values: pa.array([None if value is None else convert(value) for value in values], type_),
    )
