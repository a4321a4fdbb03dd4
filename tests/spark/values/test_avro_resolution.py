"""Values whose writer and reader schemas differ, or are unions: what fastavro says of them, and what it costs."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from kafscale.spark.values import columns
from kafscale.spark.values.avro import AvroReader
from kafscale.spark.values.columns import Decode
from kafscale.values import limits
from kafscale.values.avro_resolution import _terse, parsed
from kafscale.values.registry import Schema
from tests.spark.values.test_bounds import zigzag


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": type_} for key, type_ in fields.items()]}


def union(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Records that have nothing in common with those of another such union."""
    return [record(f"R{number}", **{f"field{number}": "int"}) for number in range(first, first + count)]


def decoder(writer: Any, reader: Any) -> Decode:
    schemas = [Schema(format="AVRO", text=json.dumps(each)) for each in (writer, reader)]
    return AvroReader(schema=schemas[1]).of_writer(schemas[0])


FIRST_BRANCH = b"\0\x0a"  # and its field, 5
LONG = "n" * 100_000


@pytest.mark.parametrize(
    ("writer", "reader", "payload", "told"),
    [
        (union(300), "int", FIRST_BRANCH, "[record R0, record R1, record R2, record R3, record R4, and 295 more]"),
        (union(300), union(300, 300), FIRST_BRANCH, "and 295 more] not found in [record R300,"),
        ("int", union(300), b"\x0a", "int is not [record R0,"),
        (record("W", u=union(300)), record("W", u="int"), FIRST_BRANCH, "not found in int"),
        (union(300)[0], record("Other", x="int"), b"\x0a", "record R0 is not record Other"),
        (record("V", u=union(300)), record("W", u="int"), FIRST_BRANCH, "record V is not record W"),
        (record("V", **{LONG: "int"}), record("W", x="int"), b"\x0a", "record V is not record W"),
        (record(LONG, x="int"), record("W", x="int"), b"\x0a", "n… is not record W"),
        (
            record("W", e={"type": "enum", "name": "E", "symbols": ["x", *(f"s{number}" for number in range(9999))]}),
            record("W", e={"type": "enum", "name": "E", "symbols": ["y"]}),
            b"\0",
            "x not found in reader symbol list E, known symbols: [y]",
        ),
        (
            record("W", e={"type": "enum", "name": "E", "symbols": ["x"]}),
            record("W", e={"type": "enum", "name": "E", "symbols": ["y", *(f"s{number}" for number in range(9999))]}),
            b"\0",
            "known symbols: [y, s0, s1, s2, s3, and 9995 more]",
        ),
        (
            record("W", f={"type": "fixed", "name": "F", "size": 1}),
            record("W", f={"type": "fixed", "name": "F", "size": 2}),
            b"\0",
            "fixed F size is different than fixed F size",
        ),
    ],
)
def test_errors_of_large_unresolved_unions_are_short(monkeypatch, writer, reader, payload, told):
    """Of a union of 5,000 records 6 GB, for each value again."""
    lengths = []
    original = columns.error_text

    def noting(exc: Exception) -> str:
        lengths.append(len(str(exc)))
        return original(exc)

    monkeypatch.setattr(columns, "error_text", noting)
    decoded = decoder(writer, reader)([payload, payload, payload])
    assert decoded.values.null_count == 3
    assert [told in error for error in decoded.errors] == [True] * 3, decoded.errors[0]
    assert len(set(decoded.errors)) == 1
    assert max(lengths) < 1000


def test_a_long_error_text_is_cut_before_its_words_are_joined():
    """To join the words of a text took as long as to make it."""
    text = "a  " * 100_000
    begun = time.process_time()
    assert {limits.error_text(ValueError(text)) for _ in range(1000)} == {f"ValueError: {'a ' * 250}"[:500]}
    seconds, begun = time.process_time() - begun, time.process_time()
    for _ in range(100):
        text.split()
    assert seconds < time.process_time() - begun


def test_types_that_are_within_each_other_are_in_the_first_text_once():
    """fastavro lists each in full beside the schema, with all that is in it."""
    schema: Any = "int"
    for number in range(40):
        schema = record(f"R{number}", x=schema)
    whole = parsed(schema, wrapped=False)
    assert len(repr(whole)) < 4 * len(json.dumps(schema))
    short = _terse(whole, {})
    assert short["__named_schemas"]["R38"] is short["fields"][0]["type"]
    assert repr(short) == "record R39"


@pytest.mark.parametrize("kind", ["union", "union of the writer alone", "array", "map"])
def test_unnamed_schemas_are_parsed_once_for_all_values(kind):
    """Half a second for a union of 5,000 records; the same as a field of a record tells how long it may take."""

    def seconds(schema: Any, reader: Any, payload: bytes) -> float:
        decode = decoder(schema, reader)
        begun = time.process_time()
        decoded = decode([payload] * 20)
        assert decoded.errors == [None] * 20
        return time.process_time() - begun

    schema, payload = union(500), zigzag(499) + b"\x0a"
    if kind == "array":
        schema, payload = {"type": "array", "items": schema}, zigzag(1) + payload + b"\0"
    elif kind == "map":
        schema, payload = {"type": "map", "values": schema}, zigzag(1) + zigzag(1) + b"k" + payload + b"\0"
    reader = schema[499] if kind.endswith("alone") else schema
    alone = min(seconds(schema, reader, payload) for _ in range(3))
    within = min(seconds(record("W", u=schema), record("W", u=reader), payload) for _ in range(3))
    assert alone < 4 * within


@pytest.mark.parametrize(
    ("writer", "reader", "payload", "read"),
    [
        (["null", "int"], ["null", "int"], b"\2\x0a", 5),
        (["null", "int"], ["null", "int"], b"\0", None),
        (["null", "int"], "int", b"\2\x0a", 5),
        ("int", ["null", "long"], b"\x0a", 5),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, b"\2\x0a\0", [5]),
        ({"type": "map", "values": "int"}, [{"type": "map", "values": "long"}, "null"], b"\2\2k\x0a\0", [("k", 5)]),
        (
            {"type": "array", "items": union(2)[1]},
            {"type": "array", "items": union(2)[1]},
            b"\2\x0a\0",
            [{"field1": 5}],
        ),
        ({"type": "long", "logicalType": "timestamp-micros"}, "long", b"\x0a", 5),
        (union(2), union(1, 1)[0], b"\2\x0a", {"field1": 5}),
        (union(2), union(2), b"\2\x0a", {"member0": None, "member1": {"field1": 5}}),
        (union(2), union(3), b"\2\x0a", {"member0": None, "member1": {"field1": 5}, "member2": None}),
        (union(2)[1], union(3), b"\x0a", {"member0": None, "member1": {"field1": 5}, "member2": None}),
    ],
)
def test_unnamed_schemas_are_read_like_named_ones(writer, reader, payload, read):
    decode = decoder(writer, reader)
    decoded = decode([payload, b"\xff"])
    assert decoded.errors[0] is None
    assert decoded.errors[1] is not None
    assert decoded.values.to_pylist() == [read, None]


def test_defaults_of_a_reader_schema_stand_in_before_and_after_a_bad_value():
    inner = record("I", x="int")
    reader = record("W", u=["int", "string"], i=inner)
    reader["fields"].append({"name": "d", "type": {"type": "array", "items": "bytes"}, "default": ["\u00ff"]})
    writer = record("W", u=["int", "string", "boolean"], i=inner)
    good, bad = b"\0\x0a\x0e", b"\4\1\x0e"
    decoded = decoder(writer, reader)([good, bad, good])
    row = {"u": {"member0": 5, "member1": None}, "i": {"x": 7}, "d": [b"\xff"]}
    assert decoded.values.to_pylist() == [row, None, row]
    assert (
        decoded.errors[1] == "SchemaResolutionError: schema mismatch: [int, string, boolean] not found in [int, string]"
    )


def test_errors_of_a_recursive_schema_are_short():
    """What has been made short once is not made so again, or it would not end."""
    node = record("Node", id="int", next=["null", "Node", "boolean"])
    reader = record("Node", id="int", next=["null", "int"])
    decoded = decoder(node, reader)([b"\2\2\2\0", b"\2\4\1", b"\2\0"])
    assert [error is None for error in decoded.errors] == [False, False, True]
    assert "[null, Node, boolean] not found in [null, int]" in decoded.errors[0]


def test_the_reader_is_the_same_for_all_writers():
    made = AvroReader(schema=Schema(format="AVRO", text=json.dumps(["null", "int"])))
    for text, payload in (('["null", "int"]', b"\2\x0a"), ('"int"', b"\x0a"), ('["int", "string"]', b"\0\x0a")):
        assert made.of_writer(Schema(format="AVRO", text=text))([payload]).values.to_pylist() == [5]
