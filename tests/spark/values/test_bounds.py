"""One value that is decoded at any price stops a pipeline for good: each is an error of its own, and soon."""

import json
import resource
import time
from typing import Any

import orjson
import pytest

from kafscale.errors import ConfigError
from kafscale.spark.values import columns as limits
from kafscale.values import avro_bounds, protobuf_bounds, protobuf_schema
from kafscale.values.protobuf_bounds import MemoryBounds
from kafscale.values.registry import Schema
from tests.devtools.external.registry import prefixed

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "id", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
ID = {"type": "record", "name": "Node", "fields": [{"name": "id", "type": "int"}]}


def avro_record(type_: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "field", "type": type_}]}


def zigzag(number: int) -> bytes:
    return varint(number << 1)


def varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


def decode(values, format: str, schema: Any, payload: bytes, reader: Any = None, **options: Any) -> tuple[Any, Any]:
    """What becomes of a payload, and the error, with a good neighbour: none of them may suffer."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    schema_id = values.registry.register("orders-value", text, format=format.upper())
    decoded = values.reader(format, schema if reader is None else reader, **options).decode(
        [prefixed(schema_id, payload), None]
    )
    return decoded.values.to_pylist()[0], decoded.errors[0]


def test_a_value_that_is_nested_deep_overflowed_the_stack_of_the_worker(values):
    def nested(depth: int) -> bytes:
        return b"\x02\x02" * depth + b"\x02\x00"

    assert decode(values, "avro", NODE, nested(avro_bounds.DEPTH_MAX - 1), ID) == ({"id": 1}, None)
    for depth in (avro_bounds.DEPTH_MAX, 200_000):
        found, error = decode(values, "avro", NODE, nested(depth), ID)
        assert found is None
        assert "nested more than 1000 levels deep" in error


def test_five_bytes_became_ten_million_elements(values):
    schema = avro_record({"type": "array", "items": "null"})
    found, error = decode(values, "avro", schema, zigzag(10**7) + b"\0")
    assert found is None
    assert "10000000 items of an array or a map are too many for 5 bytes" in error
    assert decode(values, "avro", schema, zigzag(3) + b"\0") == ({"field": [None] * 3}, None)
    empty = {"type": "record", "name": "Empty", "fields": [{"name": "x", "type": "null"}]}
    _, error = decode(values, "avro", avro_record({"type": "array", "items": empty}), zigzag(10**7) + b"\0")
    assert "too many" in error
    many_blocks = b"".join(zigzag(9000) for _ in range(1000)) + b"\0"
    assert "too many" in decode(values, "avro", schema, many_blocks)[1]


def test_a_decimal_of_a_megabyte_took_minutes(values):
    schema = avro_record({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})
    found, error = decode(values, "avro", schema, zigzag(1 << 20) + b"\x7f" * (1 << 20))
    assert found is None
    assert "a decimal of 1048576 bytes" in error


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        (["null", "int"], zigzag(7)),
        ({"type": "array", "items": "R"}, zigzag(1 << 40)),
        ({"type": "map", "values": "R"}, zigzag(2) + zigzag(1 << 30)),
        ("string", zigzag(100) + b"x"),
        ("int", b"\x80"),
        (["null", "int"], b""),
        ({"type": "array", "items": "R"}, b"\xff" * 12),
    ],
)
def test_a_value_that_does_not_end_is_an_error(values, type_, payload):
    schema = avro_record(type_)
    schema["fields"].append({"name": "next", "type": ["null", "R"]})
    found, error = decode(values, "avro", schema, payload, avro_record(["null", "int"]) | {"name": "R"})
    assert found is None
    assert error.startswith("DecodeError")


def test_the_avro_walk_covers_every_type_of_value(values):
    """The writer's schema contains itself, so its values are walked; what is read of them is what was written."""
    fields = {
        "a": ("double", 0.5),
        "b": ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
        "c": ({"type": "enum", "name": "E", "symbols": ["x", "y"]}, "y"),
        "d": ({"type": "map", "values": ["null", "string"]}, {"k": "v", "l": None}),
        "e": ({"type": "array", "items": {"type": "array", "items": "float"}}, [[0.5, 1.5], []]),
        "f": ("F", b"cd"),
        "g": ("bytes", b"\0\1"),
        "h": ("boolean", True),
        "i": ({"type": "record", "name": "Flat", "fields": [{"name": "x", "type": "int"}]}, {"x": -1}),
        "j": ({"type": "array", "items": "Flat"}, [{"x": 1}, {"x": 2}]),
    }
    of_reader = [{"name": name, "type": type_} for name, (type_, _) in fields.items()]
    reader = {"type": "record", "name": "R", "fields": of_reader}
    writer = {**reader, "fields": [*of_reader, {"name": "next", "type": ["null", "R"]}]}
    written = {name: value for name, (_, value) in fields.items()}
    value = values.avro(writer, {**written, "next": {**written, "next": None}})
    decoded = values.reader("avro", reader).decode([value])
    assert decoded.errors == [None]
    assert decoded.values.to_pylist() == [{**written, "d": [("k", "v"), ("l", None)]}]


@pytest.mark.parametrize("format", ["avro", "json", "protobuf"])
def test_small_items_that_are_wide_columns_filled_memory(values, monkeypatch, format):
    monkeypatch.setattr(limits, "CELLS_MAX", 10_000)
    names = [f"c{number}" for number in range(50)]
    if format == "avro":
        of_reader = [{"name": name, "type": ["null", "int"], "default": None} for name in names]
        item = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "boolean"}]}
        schema, reader = (
            avro_record({"type": "array", "items": {**item, "fields": fields}})
            for fields in (item["fields"], of_reader)
        )
        small, large = zigzag(100) + b"\1" * 100 + b"\0", zigzag(300) + b"\1" * 300 + b"\0"
    elif format == "json":
        item = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
        schema = reader = {"type": "object", "properties": {"field": {"type": "array", "items": item}}}
        small, large = (orjson.dumps({"field": [{}] * count}) for count in (100, 300))
    else:
        fields = " ".join(f"int32 {name} = {number};" for number, name in enumerate(names, 1))
        schema = reader = f'syntax = "proto3"; message R {{ repeated I field = 1; message I {{ {fields} }} }}'
        small, large = (b"\0" + b"\x0a\0" * count for count in (100, 300))
    found, error = decode(values, format, schema, small, reader)
    assert (error, len(found["field"])) == (None, 100)
    found, error = decode(values, format, schema, large, reader)
    assert found is None
    assert "too many" in error or "cells of columns" in error


WIDE = "message I { " + " ".join(f"int64 c{number} = {number};" for number in range(1, 1001)) + " }"
LONG_NAME = "n" * 5000


@pytest.mark.parametrize(
    ("declared", "payload"),
    [
        (f"repeated I field = 1; {WIDE}", b"\x0a\0" * 100_000),
        (f"oneof field {{ I a = 1; I b = 2; }} {WIDE}", b"\x0a\0\x12\0" * 50_000),
        (f"map<int32, I> field = 1; {WIDE}", b"\x0a\x02\x12\0" * 50_000),
        (f"map<int32, I> field = 1; {WIDE}", b"\x0a\0" * 100_000),
        (f"repeated R next = 2; oneof field {{ I a = 3; I b = 4; }} {WIDE}", b"\x12\x04\x1a\0\x22\0" * 30_000),
        (f"enum E {{ {LONG_NAME} = 0; }} repeated E field = 1;", b"\x0a" + varint(200_000) + b"\0" * 200_000),
        (f"enum E {{ {LONG_NAME} = 0; }} repeated E field = 1;", b"\x08\0" * 100_000),
        (f"repeated R {LONG_NAME} = 1;", b"\x0a\0" * 100_000),
    ],
)
def test_a_small_protobuf_value_became_very_large(values, declared, payload):
    """800 MiB of 200 KB, and the fourth part of it more in columns, or as much in the names of an enum."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found, error = decode(values, "protobuf", f'syntax = "proto3"; message R {{ {declared} }}', b"\0" + payload)
    assert found is None
    assert "would take more than 256 MiB of memory" in error
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 200 << 10


def test_the_protobuf_walk_covers_every_field_that_the_parser_reads(values, monkeypatch):
    """Groups, packed fields and others, maps, unknown fields of each type: read as before, and counted in full."""
    schema = """syntax = "proto2"; message R {
        repeated group G = 1 { optional int32 x = 1; repeated group H = 2 { optional string y = 1; } }
        repeated int64 numbers = 3 [packed = true]; repeated fixed32 words = 4 [packed = true];
        repeated int64 loose = 5;
        repeated double doubles = 9 [packed = true];
        map<string, M> map = 6; message M { optional bytes b = 1; } optional M one = 7; repeated string texts = 8; }"""
    unknown = b"\xf8\x01\x96\x01\xf9\x01" + bytes(8) + b"\xfd\x01" + bytes(4) + b"\xfa\x01\x01x\xfb\x01\x08\x01\xfc\x01"
    payload = (
        unknown + b"\x0b\x08\x05\x13\x0a\x01y\x14\x0c" + unknown + b"\x1a\x03\x01\x80\x02" + b"\x22\x08" + bytes(8)
    )
    payload += b"\x28\x01\x2a\x02\x01\x02\x32\x07\x0a\x01k\x12\x02\x0a\x00\x3a\x03\x0a\x01b\x42\x01t\x4a\x08" + bytes(8)
    file = protobuf_schema.load(Schema(format="PROTOBUF", text=schema))
    descriptor = file.message_types_by_name["R"]
    monkeypatch.setattr(protobuf_bounds, "VALUE_MAX_BYTES", 1)
    with pytest.raises(Exception, match="of memory"):
        MemoryBounds.of(descriptor).check(payload, 0)
    found, error = decode(values, "protobuf", schema, b"\0" + payload)
    assert "of memory" in error
    monkeypatch.setattr(protobuf_bounds, "VALUE_MAX_BYTES", 10_000)
    taken = list(protobuf_bounds._walk(MemoryBounds.of(descriptor)._root, payload, 0))
    assert len(taken) == 18  # occurrences of fields that are known, and of groups
    found, error = decode(values, "protobuf", schema, b"\0" + payload)
    assert (error, found["g"][0]["x"], found["numbers"], found["loose"]) == (None, 5, [1, 256], [1, 1, 2])
    assert (found["one"], found["texts"], found["map"][0][0]) == ({"b": b"b"}, ["t"], "k")


def test_a_walk_ends_where_the_parser_does(monkeypatch):
    """Behind a number of more than ten bytes, at a tag of no type, and at the end of what is cut off."""
    file = protobuf_schema.load(
        Schema(format="PROTOBUF", text='syntax = "proto3"; message R { repeated int32 x = 1; }')
    )
    root = MemoryBounds.of(file.message_types_by_name["R"])._root
    monkeypatch.setattr(protobuf_bounds, "VALUE_MAX_BYTES", 1)
    for damaged in (b"\x08" + b"\x80" * 20, b"\x80" * 20, b"\x0e\0", b"\x0c"):
        assert len(list(protobuf_bounds._walk(root, b"\x08\1" + damaged + b"\x08\1", 0))) == 1, damaged
    long = b"\x80" * 7
    whole = b"\x08\1" + b"\x08" + long + b"\1" + b"\x88" + long + b"\0\1" + b"\x0a\x81" + long + b"\0\1" + b"\x08\1"
    assert len(list(protobuf_bounds._walk(root, whole, 0))) == 5


def doubling(format: str, levels: int) -> Any:
    """A schema of two fields at each level, both of the next one's type."""
    if format == "avro":
        schema: Any = {"type": "record", "name": "L0", "fields": [{"name": "x", "type": "int"}]}
        for level in range(1, levels):
            fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"L{level - 1}"}]
            schema = {"type": "record", "name": f"L{level}", "fields": fields}
        return schema
    if format == "protobuf":
        messages = [f"message L{level} {{ L{level + 1} a = 1; L{level + 1} b = 2; }}" for level in range(levels)]
        return f'syntax = "proto3"; {" ".join(messages)} message L{levels} {{ int32 x = 1; }}'
    if format == "json":
        next_ = [{"$ref": f"#/definitions/{level + 1}"} for level in range(levels)]
        types = {str(level): {"properties": {"a": one, "b": one}} for level, one in enumerate(next_)}
        return {"$ref": "#/definitions/0", "definitions": {**types, str(levels): {"type": "integer"}}}
    next_ = [{"$ref": f"#/definitions/{level + 1}"} for level in range(levels)]  # which have no columns of their own
    types = {str(level): {"allOf": [one, one]} for level, one in enumerate(next_)}
    return {"$ref": "#/definitions/0", "definitions": {**types, str(levels): {"properties": {"x": {}}}}}


@pytest.mark.parametrize("format", ["avro", "protobuf", "json", "json of allOf"])
def test_a_reader_schema_that_doubles_with_each_level_did_not_end(values, format):
    begun = time.process_time()
    with pytest.raises(ConfigError, match="more than 10000 columns"):
        values.reader(format.partition(" ")[0], doubling(format, 40))
    assert time.process_time() - begun < 10
    values.reader(format.partition(" ")[0], doubling(format, 9))


def test_messages_that_all_contain_each_other_were_columns_in_every_order(values):
    """Each within itself is text, so that there is an end, after as many columns as there are orders."""
    names = [f"M{number}" for number in range(14)]
    fields = " ".join(f"{name} f{number} = {number};" for number, name in enumerate(names, 1))
    messages = " ".join(f"message {name} {{ {fields} }}" for name in names)
    with pytest.raises(ConfigError, match="more than 10000 columns"):
        values.reader("protobuf", f'syntax = "proto3"; {messages}')


def test_a_value_of_nothing_was_a_billion_records(values):
    """The writer's schema doubles with each level, and at its end there are nulls: one byte, and no end to be seen."""
    nulls = json.loads(json.dumps(doubling("avro", 30)).replace('"int"', '"null"'))
    fields = [{"name": "id", "type": "int"}, {"name": "nulls", "type": nulls}]
    reader = {"type": "record", "name": "R", "fields": fields[:1]}
    found, error = decode(values, "avro", {"type": "record", "name": "R", "fields": fields}, b"\x02", reader)
    assert found is None
    assert "takes no bytes is in it too often for 1 bytes" in error
    few = json.loads(json.dumps(doubling("avro", 8)).replace('"int"', '"null"'))
    fields[1]["type"] = {"type": "array", "items": few}
    assert decode(values, "avro", {"type": "record", "name": "R", "fields": fields}, b"\x02\0", reader)[1] is None
    payload = b"\x02" + zigzag(9000) + b"\0"
    assert "too often" in decode(values, "avro", {"type": "record", "name": "R", "fields": fields}, payload, reader)[1]


def test_nulls_that_were_chosen_are_not_too_many(values):
    items = {"type": "array", "items": ["null", "int"]}
    fields = [{"name": "items", "type": items}, {"name": "next", "type": ["null", "R"]}]
    reader = {"type": "record", "name": "R", "fields": fields[:1]}
    payload = zigzag(100_000) + bytes(100_000) + b"\0\0"
    found, error = decode(values, "avro", {"type": "record", "name": "R", "fields": fields}, payload, reader)
    assert (error, len(found["items"])) == (None, 100_000)


def test_defaults_that_stand_for_each_item_filled_memory(values):
    """Each item lacks a field whose default is an array."""
    small = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "boolean"}]}
    wide = {"name": "y", "type": {"type": "array", "items": "int"}, "default": [7] * 2000}
    schema, reader = (
        avro_record({"type": "array", "items": {**small, "fields": fields}})
        for fields in (small["fields"], [*small["fields"], wide])
    )
    payload = zigzag(20_000) + b"\1" * 20_000 + b"\0"
    assert "too many" in decode(values, "avro", schema, payload, reader)[1]
    assert decode(values, "avro", schema, zigzag(3) + b"\1\1\1\0", reader)[1] is None
    wide["default"] = [7] * 20_000
    with pytest.raises(ConfigError, match=r"the defaults of .* are more than 10000 cells"):
        values.reader("avro", reader)


def test_a_schema_that_is_nested_too_deep_ended_the_task(values):
    deep: Any = "int"
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    found, error = decode(values, "avro", avro_record(deep), b"\0", avro_record("int"))
    assert found is None
    assert error
    with pytest.raises(ConfigError, match="nested too deep"):
        values.reader("avro", avro_record(deep))


@pytest.mark.parametrize(("depth", "is_taken"), [(150, True), (250, False), (900, False)])
def test_the_depth_limit_of_json_schemas_does_not_depend_on_python(values, depth, is_taken):
    """900 levels ended the task with a RecursionError, when the memory of a row was reckoned."""
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    if is_taken:
        assert decode(values, "json", schema, b"[" * depth + b"]" * depth)[1] is None
    else:
        with pytest.raises(ConfigError, match="nested too deep"):
            values.reader("json", schema)


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_other_formats_end_at_a_depth(values, format):
    if format == "json":
        schema: Any = {"type": "object", "properties": {"a": {}}}
        payload = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    else:
        schema = 'syntax = "proto3"; message R { R next = 1; }'
        inner = b""
        for _ in range(200):
            inner = b"\x0a" + varint(len(inner)) + inner
        payload = b"\0" + inner
    found, error = decode(values, format, schema, payload)
    assert found is None
    assert error


HANGS = "^(a|a)*$"
TEXT = "a" * 60 + "!"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"x": {"pattern": HANGS}}}, {"x": TEXT}),
        ({"patternProperties": {HANGS: {}}}, {TEXT: 1}),
        ({"patternProperties": {HANGS: {}}, "additionalProperties": False}, {TEXT: 1}),
        ({"propertyNames": {"pattern": HANGS}}, {TEXT: 1}),
        # of another draft within the schema, whose own validator would be taken
        ({"properties": {"x": {"$schema": "http://json-schema.org/draft-04/schema#", "pattern": HANGS}}}, {"x": TEXT}),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "propertyNames": {"pattern": HANGS}}, {TEXT: 1}),
        # twice as many ways for each level
        (
            {"properties": {"x": {"$ref": "#/definitions/t"}}, "definitions": {"t": {
                "anyOf": [{"items": {"$ref": "#/definitions/t"}, "not": {}}] * 2}}},
            {"x": json.loads("[" * 30 + "]" * 30)},
        ),
    ],
)  # fmt: skip
def test_a_value_that_takes_for_ever_to_be_validated_is_an_error(values, monkeypatch, schema, value):
    from kafscale.spark.values import json_validation

    monkeypatch.setattr(json_validation, "VALIDATION_CPU_SECONDS", 0.1)
    found, error = decode(values, "json", {"type": "object", **schema}, orjson.dumps(value), validate=True)
    assert found is None
    assert "takes more than 0.1 s" in error


def test_unique_items_were_compared_with_each_other(values):
    schema = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}

    def error(*items: Any) -> str | None:
        return decode(values, "json", schema, orjson.dumps({"x": items}), validate=True)[1]

    assert error(*({"n": number} for number in range(50_000))) is None
    for same in ([1, 1.0], [{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}]):
        assert "two of its items are the same" in error(*same)
    for different in ([1, True], [0, False], [[1], [True]], ["1", 1], [None, "null"]):
        assert error(*different) is None


@pytest.mark.parametrize(
    ("schema", "good", "bad", "told"),
    [
        ({"properties": {"x": {"pattern": "^[a-z]+$"}}}, {"x": "abc"}, {"x": "ABC"}, "does not match"),
        ({"patternProperties": {"^n_": {"type": "integer"}}}, {"n_a": 1, "b": "c"}, {"n_a": "b"}, "is not of type"),
        ({"patternProperties": {"^n": {}}, "additionalProperties": False}, {"n": 1}, {"m": 1}, "there is 'm'"),
        ({"properties": {"x": {}}, "additionalProperties": {"minimum": 5}}, {"x": 1, "y": 6}, {"y": 4}, "less than"),
        ({"properties": {"x": {"pattern": r"^\p{Lu}"}}}, {"x": "Äa"}, {"x": "äa"}, "does not match"),
        ({"properties": {"x": {"pattern": "("}}}, {}, {"x": "a"}, "is not a regular expression"),
    ],
)
def test_patterns_and_additional_properties_follow_json_schema(values, schema, good, bad, told):
    whole = {"type": "object", **schema}
    assert decode(values, "json", whole, orjson.dumps(good), validate=True)[1] is None
    assert told in decode(values, "json", whole, orjson.dumps(bad), validate=True)[1]
