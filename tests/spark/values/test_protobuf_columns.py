"""Messages read by columns are what protobuf's library makes of each: values, errors, and what is left to it."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafscale.spark.values import protobuf, protobuf_plan
from kafscale.spark.values.columns import Decode, Decoded
from kafscale.spark.values.payloads import STEPS_MAX, Payloads, Plan
from kafscale.spark.values.protobuf import ProtobufReader
from kafscale.spark.workers import slices
from kafscale.values.registry import Schema
from kafscale.wire.primitives import uvarint
from tests.spark.values import decoded

Field = descriptor_pb2.FieldDescriptorProto
GOOGLES = ("Timestamp", "Duration", "StringValue", "Int64Value", "BoolValue", "Struct")
SCALARS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 18)  # FieldDescriptor.TYPE_…
ENUM, MESSAGE = Field.TYPE_ENUM, Field.TYPE_MESSAGE
COUNTS = st.integers(0, 4)
HEALTH = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def schema_of(message: descriptor_pb2.DescriptorProto, syntax: str = "proto3") -> Schema:
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax=syntax, message_type=[message])
    file.dependency.extend(f"google/protobuf/{each}.proto" for each in ("timestamp", "duration", "wrappers", "struct"))
    enum = file.enum_type.add(name="State")
    for name, number in (("NEW", 0), ("OLD", 1), ("LAST", 77), ("BELOW", -1)):
        enum.value.add(name=name, number=number)
    return Schema(format="PROTOBUF", text=base64.b64encode(file.SerializeToString()).decode())


@st.composite
def messages(draw: st.DrawFn, syntax: str, name: str = "Row", depth: int = 0) -> descriptor_pb2.DescriptorProto:
    """A type of up to five fields, of which some have others within them."""
    message = descriptor_pb2.DescriptorProto(name=name)
    path = f".{name}" if depth == 0 else f".Row.{name}"
    numbers = draw(st.lists(st.sampled_from([1, 2, 3, 15, 16, 17, 2047, 2048]), max_size=5, unique=True))
    for number in numbers:
        field = message.field.add(name=f"f{number}", number=number, label=Field.LABEL_OPTIONAL)
        kind = draw(st.sampled_from(("scalar", "scalar", "enum", "google", "inner", "map", "itself")))
        form = draw(st.sampled_from(("plain", "repeated", "optional", "choice")))
        set_type(draw, message, field, kind, path, depth, syntax)
        if kind != "map":
            set_form(draw, message, field, form, syntax)
    for field in message.field:  # those that are in a oneof of their own come after the others
        if field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
    return message


def set_type(draw, message, field, kind, path, depth, syntax) -> None:
    if kind == "scalar":
        field.type = draw(st.sampled_from(SCALARS))
    elif kind == "enum":
        field.type, field.type_name = ENUM, ".State"
    elif kind == "google":
        field.type, field.type_name = MESSAGE, f".google.protobuf.{draw(st.sampled_from(GOOGLES))}"
    elif kind == "itself":
        field.type, field.type_name = MESSAGE, path
    elif kind == "inner" and depth == 0:
        inner = draw(messages(syntax, f"Inner{field.number}", 1))
        message.nested_type.append(inner)
        field.type, field.type_name = MESSAGE, f"{path}.{inner.name}"
    elif kind == "map":
        entry = message.nested_type.add(name=f"F{field.number}Entry")
        entry.options.map_entry = True
        key_types = [each for each in SCALARS if each not in (1, 2, 12)]
        entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL, type=draw(st.sampled_from(key_types)))
        value = entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL)
        set_type(draw, message, value, draw(st.sampled_from(("scalar", "enum", "google"))), path, depth, syntax)
        field.label, field.type = Field.LABEL_REPEATED, MESSAGE
        field.type_name = f"{path}.{entry.name}"
    else:
        field.type = Field.TYPE_STRING


def set_form(draw, message, field, form, syntax) -> None:
    if form == "repeated":
        field.label = Field.LABEL_REPEATED
        if field.type not in (Field.TYPE_STRING, Field.TYPE_BYTES, MESSAGE) and draw(st.booleans()):
            field.options.packed = draw(st.booleans())
    elif form == "choice":
        if not message.oneof_decl:
            message.oneof_decl.add(name="choice")
        field.oneof_index = 0
    elif form == "optional" and syntax == "proto3" and field.type != MESSAGE:
        field.proto3_optional = True
    elif form == "optional" and syntax == "proto2" and draw(st.integers(0, 3)) == 0:
        field.label = Field.LABEL_REQUIRED


def changed(draw: st.DrawFn, writer: descriptor_pb2.DescriptorProto) -> descriptor_pb2.DescriptorProto:
    """The writer's type with fields that came, went and changed their types."""
    reader = descriptor_pb2.DescriptorProto.FromString(writer.SerializeToString())
    for field in list(reader.field):
        change = draw(st.sampled_from(("same", "same", "same", "gone", "type")))
        if change == "gone" and not field.HasField("oneof_index"):
            reader.field.remove(field)
        elif change == "type" and field.type in SCALARS:
            field.type = draw(st.sampled_from(SCALARS))
            field.options.ClearField("packed")
    if draw(st.booleans()):
        reader.field.add(name="new", number=9, label=Field.LABEL_OPTIONAL, type=Field.TYPE_INT32)
    return reader


VALUES = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1) | COUNTS,
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1) | COUNTS,
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1) | COUNTS,
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1) | COUNTS,
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
}


def value_of(draw: st.DrawFn, field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return draw(st.sampled_from([0, 1, 77, -1]))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draw(st.binary(max_size=200))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return draw(st.text(max_size=4))
    return draw(VALUES[field.cpp_type])


def fill(draw: st.DrawFn, message: Any, depth: int = 0) -> Any:
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and draw(st.integers(0, 3)) == 0:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            fill_map(draw, message, field)
        elif field.message_type is not None:
            if depth < 3:
                inner = getattr(message, field.name)
                for _ in range(draw(COUNTS)) if field.is_repeated else ():
                    fill(draw, inner.add(), depth + 1)
                if not field.is_repeated:
                    inner.SetInParent()
                    fill(draw, inner, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(value_of(draw, field) for _ in range(draw(COUNTS)))
        else:
            setattr(message, field.name, value_of(draw, field))
    return message


def fill_map(draw: st.DrawFn, message: Any, field: FieldDescriptor) -> None:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    found = getattr(message, field.name)
    for _ in range(draw(COUNTS)):
        if value.message_type is not None:
            found[value_of(draw, key)].SetInParent()
        else:
            found[value_of(draw, key)] = value_of(draw, value)


def damaged(draw: st.DrawFn, payload: bytes) -> bytes:
    """Bytes that are lost, changed, repeated or put in."""
    place = draw(st.integers(0, len(payload)))
    how = draw(st.sampled_from(("cut", "change", "twice", "insert", "append")))
    some = draw(st.binary(min_size=1, max_size=3))
    if how == "cut":
        return payload[:place]
    if how == "twice":
        return payload + payload[1:]
    if how == "append":
        return payload + draw(
            st.sampled_from([b"\x08\x01", b"\x0a\x00", b"\x0a\x01\x80", b"\x0b\x0c", b"\x12\x02\x08\x01", some])
        )
    return payload[:place] + some + payload[place + (len(some) if how == "change" else 0) :]


def decode_of(reader: Schema, writer: Schema) -> Decode:
    return ProtobufReader(schema=reader).of_writer(writer)


def by_columns(decode: Decode, payloads: Any, monkeypatch: pytest.MonkeyPatch, *, count: int = 1) -> Decoded:
    monkeypatch.setattr(protobuf, "LANES_MIN_COUNT", count)
    return decode(payloads)


def one_by_one(decode: Decode, payloads: Any, monkeypatch: pytest.MonkeyPatch) -> Decoded:
    return by_columns(decode, payloads, monkeypatch, count=len(payloads) + 1)


same = partial(decoded.same, maps_have_order=False)


@settings(max_examples=150, deadline=None, suppress_health_check=HEALTH)
@given(st.data())
def test_values_match_the_protobuf_library(monkeypatch, data):
    syntax = data.draw(st.sampled_from(("proto3", "proto2")))
    written = data.draw(messages(syntax))
    read = changed(data.draw, written) if data.draw(st.booleans()) else written
    writer, reader = schema_of(written, syntax), schema_of(read, syntax)
    descriptor = ProtobufReader(schema=writer)._descriptor
    make = message_factory.GetMessageClass(descriptor)
    payloads = []
    for _ in range(data.draw(st.integers(1, 12))):
        payload = b"\0" + fill(data.draw, make()).SerializePartialToString()
        payloads.append(damaged(data.draw, payload) if data.draw(st.integers(0, 2)) == 0 else payload)
    decode = decode_of(reader, writer)
    same(by_columns(decode, payloads, monkeypatch), one_by_one(decode, payloads, monkeypatch))


def plan_of(message: descriptor_pb2.DescriptorProto, syntax: str = "proto3") -> Plan | None:
    reader = ProtobufReader(schema=schema_of(message, syntax))
    return protobuf_plan.plan_protobuf(reader._descriptor, reader._descriptor, reader.type)


def row(*fields: Field, **more: Any) -> descriptor_pb2.DescriptorProto:
    return descriptor_pb2.DescriptorProto(name="Row", field=fields, **more)


def field_of(number: int, type_: int, label: int = Field.LABEL_OPTIONAL, **more: Any) -> Field:
    return Field(name=f"f{number}", number=number, type=type_, label=label, **more)


def is_read(message: descriptor_pb2.DescriptorProto, *payloads: bytes, syntax: str = "proto3") -> list[bool]:
    return plan_of(message, syntax).decode(Payloads.of(list(payloads)), max_bytes=10**6)[1].tolist()


NUMBERS = field_of(1, Field.TYPE_INT32, Field.LABEL_REPEATED)
TEXTS = field_of(2, Field.TYPE_STRING, Field.LABEL_REPEATED)


def test_messages_in_serializer_form_are_read_by_columns():
    plan = plan_of(row(NUMBERS, TEXTS, field_of(3, ENUM, type_name=".State"), field_of(4, Field.TYPE_DOUBLE)))
    payloads = [b"", b"\x0a\x03\1\x80\1\x12\1a\x12\0", b"\x0a\0\x12\1b\x18\x4d", b"\x21" + b"\0" * 8]
    found, read = plan.decode(Payloads.of(payloads), max_bytes=100)
    assert read.all()
    assert found.to_pylist() == [
        {"f1": numbers, "f2": texts, "f3": state, "f4": 0.0}
        for numbers, texts, state in (
            ([], [], "NEW"),
            ([1, 128], ["a", ""], "NEW"),
            ([], ["b"], "LAST"),
            ([], [], "NEW"),
        )
    ]


@pytest.mark.parametrize(
    "payload",
    [
        b"\x12\1a\x0a\1\1",  # not in order
        b"\x0a\1\1\x0a\1\1",  # packed twice
        b"\x08\1",  # not packed
        b"\x0a\1\x80",  # cut within a number
        b"\x0a\x0b" + b"\x80" * 10 + b"\1",  # a number that is too long
        b"\x0a\x0a" + b"\xff" * 9 + b"\2",  # or has too many bits
        b"\x12\2\xff\xff",  # no text
        b"\x12\5ab",
        b"\x12" + b"\xff" * 9 + b"\1",
        b"\x18\5",  # unknown
        b"\x8a\0\1\1",  # a tag in two bytes that fits into one
    ],
)
def test_messages_in_another_form_are_left_to_the_library(payload):
    assert is_read(row(NUMBERS, TEXTS), payload, b"") == [False, True]


def test_of_fields_that_exclude_each_other_there_is_one():
    message = row(field_of(1, Field.TYPE_INT32, oneof_index=0), field_of(2, Field.TYPE_INT32, oneof_index=0))
    message.oneof_decl.add(name="choice")
    assert is_read(message, b"\x08\1", b"\x10\1", b"\x08\1\x10\1") == [True, True, False]


def test_a_message_without_a_required_field_is_left_to_the_library():
    message = row(field_of(1, Field.TYPE_INT32, Field.LABEL_REQUIRED))
    assert is_read(message, b"\x08\1", b"", syntax="proto2") == [True, False]


def test_maps_have_both_of_each_entry_and_no_key_twice():
    message = row(field_of(1, MESSAGE, Field.LABEL_REPEATED, type_name=".Row.F1Entry"))
    entry = message.nested_type.add(name="F1Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=Field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=1, type=Field.TYPE_INT32)
    one = b"\x0a\5\x0a\1k\x10\1"
    assert is_read(message, one, one + b"\x0a\5\x0a\1l\x10\1", one * 2, b"\x0a\2\x10\1", b"\x0a\3\x0a\1k") == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_times_beyond_64_bits_are_left_to_the_library():
    message = row(field_of(1, MESSAGE, type_name=".google.protobuf.Timestamp"))
    far = b"\x08" + uvarint(2**62)
    assert is_read(message, b"\x0a\2\x08\1", b"\x0a" + bytes([len(far)]) + far) == [True, False]


def test_json_is_made_by_the_library():
    message = row(field_of(1, MESSAGE, type_name=".google.protobuf.Struct"), field_of(2, MESSAGE, type_name=".Row"))
    assert is_read(message, b"", b"\x0a\0", b"\x12\0") == [True, False, False]


def test_types_that_are_not_planned():
    group = row(field_of(1, Field.TYPE_GROUP, type_name=".Row.F1"))
    group.nested_type.add(name="F1").field.add(name="x", number=1, label=1, type=Field.TYPE_INT32)
    assert plan_of(group, "proto2") is None
    assert plan_of(row()) is None
    assert plan_of(row(*(field_of(number, Field.TYPE_INT32) for number in range(1, STEPS_MAX + 2)))) is None


def test_messages_within_each_other_are_planned_within_bounds():
    def nested(depth: int) -> descriptor_pb2.DescriptorProto:
        message = top = row()
        path = ".Row"
        for _ in range(depth):
            path += ".In"
            message.field.append(field_of(1, MESSAGE, type_name=path))
            message = message.nested_type.add(name="In")
        message.field.append(field_of(1, Field.TYPE_INT32))
        return top

    assert plan_of(nested(10)) is not None
    assert plan_of(nested(protobuf_plan.DEPTH_MAX + 1)) is None


def test_values_that_are_long_enough_to_take_too_much_are_left_to_the_library():
    found = plan_of(row(TEXTS)).decode(Payloads.of([b"\x12\1a", b"\x12\2ab"]), max_bytes=3)
    assert found[1].tolist() == [True, False]


def test_values_with_other_indexes_are_left_to_the_library(monkeypatch):
    schema = schema_of(row(field_of(1, Field.TYPE_INT32)))
    decode = decode_of(schema, schema)
    payloads = [b"\0\x08\1", b"\2\0\x08\2", b"\2\2\x08\3", b"", b"\0\x08\4"]
    found = by_columns(decode, payloads, monkeypatch)
    same(found, one_by_one(decode, payloads, monkeypatch))
    assert found.values.to_pylist() == [{"f1": 1}, {"f1": 2}, None, None, {"f1": 4}]
    for first in ([b""], [b"\2\2\x08\3"], [b"\2\0\x08\2"]):
        same(by_columns(decode, first + payloads, monkeypatch), one_by_one(decode, first + payloads, monkeypatch))


def test_elements_far_more_than_others_have_take_no_step_each(monkeypatch):
    """A step of array operations takes as long for one payload as for some hundred."""
    plan = plan_of(row(TEXTS))
    steps = 0
    read_varints = slices.read_varints

    def counted(*given: Any) -> Any:
        nonlocal steps
        steps += 1
        return read_varints(*given)

    monkeypatch.setattr("kafscale.spark.values.payloads.read_varints", counted)
    payloads = [b"\x12\1a" * 3] * 40 + [b"\x12\1a" * 5000]
    assert plan.decode(Payloads.of(payloads), max_bytes=10**9)[1].tolist() == [True] * 40 + [False]
    assert steps < 100


def by_both(message: descriptor_pb2.DescriptorProto, payloads: list[bytes], monkeypatch: pytest.MonkeyPatch) -> list:
    schema = schema_of(message)
    decode = decode_of(schema, schema)
    found = by_columns(decode, [b"\0" + each for each in payloads], monkeypatch)
    same(found, one_by_one(decode, [b"\0" + each for each in payloads], monkeypatch))
    return found.values.to_pylist()


@pytest.mark.parametrize(
    ("type_", "number", "value"),
    [
        (Field.TYPE_UINT32, 2**40 + 5, 5),
        (Field.TYPE_INT32, 2**64 - 1, -1),
        (Field.TYPE_INT32, 2**40 + 5, 5),
        (Field.TYPE_SINT32, 2**40 + 5, -3),
        (Field.TYPE_SINT64, 2**64 - 1, -(2**63)),
        (Field.TYPE_BOOL, 2**40, True),
        (ENUM, 2**40 + 77, "LAST"),
        (ENUM, 2**64 - 1, "BELOW"),
    ],
)
def test_numbers_that_are_too_large_for_their_type_have_its_lower_bits(monkeypatch, type_, number, value):
    message = row(field_of(1, type_, type_name=".State" if type_ == ENUM else None))
    payload = b"\x08" + uvarint(number)
    assert is_read(message, payload) == [True]
    assert by_both(message, [payload, b""], monkeypatch)[0] == {"f1": value}


def test_unread_bytes_of_an_inner_message_are_left_to_the_library(monkeypatch):
    message = row(field_of(1, MESSAGE, type_name=".Row.In"), field_of(2, Field.TYPE_INT32))
    message.nested_type.add(name="In").field.extend([field_of(1, Field.TYPE_INT32), field_of(2, Field.TYPE_INT32)])
    payloads = [
        b"\x0a\4\x08\1\x10\2\x10\3",
        b"\x0a\4\x10\2\x08\1\x10\3",
        b"\x0a\3\x08\1\xff\x10\3",
        b"\x0a\2\x08\x80\x10\3",
    ]
    assert is_read(message, *payloads) == [True, False, False, False]
    found = by_both(message, payloads, monkeypatch)
    assert found == [{"f1": {"f1": 1, "f2": 2}, "f2": 3}] * 2 + [None, None]


def test_spans_of_time_go_to_zero_and_times_go_down(monkeypatch):
    message = row(
        field_of(1, MESSAGE, type_name=".google.protobuf.Duration"),
        field_of(2, MESSAGE, type_name=".google.protobuf.Timestamp"),
    )
    nanos = b"\x10" + uvarint(2**64 - 1500)
    size = bytes([len(nanos)])
    payload = b"\x0a" + size + nanos + b"\x12" + size + nanos
    assert is_read(message, payload) == [True]
    (found,) = by_both(message, [payload], monkeypatch)
    assert (found["f1"].total_seconds(), found["f2"].timestamp()) == (-0.000001, -0.000002)


def test_a_truncated_messages_numbers_do_not_leak_into_the_next_message(monkeypatch):
    payloads = [b"\x0a\3\1\2\x80", b"\x0a\3\3\x84\1", b"", b"\x0a\0", b"\x0a\1\5", b"\x0a\2\x80\x80", b"\x0a\1\6"]
    assert is_read(row(NUMBERS), *payloads) == [False, True, True, True, True, False, True]
    found = by_both(row(NUMBERS), payloads, monkeypatch)
    assert found == [None, {"f1": [3, 132]}, {"f1": []}, {"f1": []}, {"f1": [5]}, None, {"f1": [6]}]
