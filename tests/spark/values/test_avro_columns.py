"""Payloads read by columns are what fastavro makes of each: values, errors, and what is left to it."""

from __future__ import annotations

import io
import json
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafscale.spark.values import avro
from kafscale.spark.values.avro import AvroReader
from kafscale.spark.values.columns import Decode, Decoded
from kafscale.spark.values.payloads import Payloads
from kafscale.spark.workers import slices
from kafscale.values.registry import Schema
from tests.spark.values import decoded

Node = Any

SCALARS: tuple[Node, ...] = (
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "bytes",
    "string",
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
    {"type": "bytes", "logicalType": "decimal", "precision": 38},
)
NAMED: tuple[Node, ...] = (
    {"type": "enum", "name": "Enum", "symbols": ["a", "b", "c"]},
    {"type": "fixed", "name": "Fixed", "size": 3},
    {"type": "fixed", "name": "Decimal", "size": 5, "logicalType": "decimal", "precision": 9, "scale": 2},
)


def record(fields: list[tuple[str, Node]], name: str = "Row") -> Node:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": node} for key, node in fields]}


def record_of(*fields: Node) -> Node:
    return {"type": "record", "name": "Row", "fields": list(fields)}


def schema_of(node: Node) -> Schema:
    return Schema(format="AVRO", text=json.dumps(node))


def made(writer: Node, reader: Node) -> Any:
    return AvroReader(schema=schema_of(reader)).of_writer(schema_of(writer))


def by_columns(decode: Decode, payloads: list[bytes], monkeypatch: pytest.MonkeyPatch, *, count: int = 1) -> Decoded:
    monkeypatch.setattr(avro, "LANES_MIN_COUNT", count)
    return decode(payloads)


def one_by_one(decode: Decode, payloads: list[bytes], monkeypatch: pytest.MonkeyPatch) -> Decoded:
    return by_columns(decode, payloads, monkeypatch, count=len(payloads) + 1)


def plan_of(decode: Any) -> Any:
    return decode.args[2]


same = partial(decoded.same, maps_have_order=True)


@st.composite
def schemas(draw: st.DrawFn) -> Node:
    """A record of up to five fields, of which some have others within them."""
    names = iter(range(100))
    field = st.deferred(lambda: st.one_of(*[st.just(each) for each in SCALARS], nested))
    nested = st.deferred(
        lambda: st.one_of(
            field.map(lambda node: {"type": "array", "items": node}),
            field.map(lambda node: {"type": "map", "values": node}),
            st.sampled_from(NAMED).map(lambda node: {**node, "name": f"N{next(names)}"}),
            field.filter(lambda node: not isinstance(node, list)).map(lambda node: ["null", node]),
            st.lists(field, max_size=3).map(lambda nodes: numbered(nodes, f"R{next(names)}")),
        )
    )
    return numbered(draw(st.lists(field, min_size=1, max_size=5)), "Row")


def numbered(nodes: list[Node], name: str) -> Node:
    return record([(f"f{number}", node) for number, node in enumerate(nodes)], name)


@st.composite
def readers(draw: st.DrawFn, writer: Node) -> Node:
    """The writer's schema with fields that came, went, widened, became nullable, or changed their place."""
    fields = []
    for field in draw(st.permutations(writer["fields"])):
        change = draw(st.sampled_from(("same", "same", "gone", "nullable", "wider")))
        node = field["type"]
        if change == "gone":
            continue
        if change == "nullable" and not isinstance(node, list):
            node = ["null", node]
        if change == "wider" and node in WIDER:
            node = draw(st.sampled_from(WIDER[node])) if isinstance(node, str) else node
        fields.append({**field, "type": node})
    if draw(st.booleans()):
        fields.append({"name": "came", "type": {"type": "array", "items": "string"}, "default": ["x", "y"]})
    if draw(st.booleans()):
        fields.append({"name": "also", "type": ["null", "long"], "default": None})
    return {**writer, "fields": fields}


class _Wider(dict[Any, Any]):
    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and super().__contains__(key)


WIDER = _Wider(
    int=["long", "float", "double"], long=["float", "double"], float=["double"], string=["bytes"], bytes=["string"]
)

LONGS = st.one_of(st.integers(-200, 200), st.integers(-(2**63), 2**63 - 1))
RAW: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.one_of(st.integers(-200, 200), st.integers(-(2**31), 2**31 - 1)),
    "long": LONGS,
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=20),
    "string": st.text(max_size=10),
}


def raw_values(node: Node) -> st.SearchStrategy[Any]:
    """Values as fastavro writes them without logical types."""
    if isinstance(node, list):
        return st.one_of(*map(raw_values, node))
    kind = node["type"] if isinstance(node, dict) else node
    if kind == "array":
        return st.lists(raw_values(node["items"]), max_size=4)
    if kind == "map":
        return st.dictionaries(st.text(max_size=3), raw_values(node["values"]), max_size=3)
    if kind == "record":
        return st.fixed_dictionaries({field["name"]: raw_values(field["type"]) for field in node["fields"]})
    if kind == "enum":
        return st.sampled_from(node["symbols"])
    if kind == "fixed":
        return st.binary(min_size=node["size"], max_size=node["size"])
    return RAW[kind]


def without_units(node: Node) -> Node:
    if isinstance(node, list):
        return [without_units(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = {key: value for key, value in node.items() if key not in ("logicalType", "precision", "scale")}
    for key in ("items", "values", "type"):
        if key in kept:
            kept[key] = without_units(kept[key])
    if "fields" in kept:
        kept["fields"] = [{**field, "type": without_units(field["type"])} for field in kept["fields"]]
    return kept


def write(node: Node, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(without_units(node)), value)
    return out.getvalue()


@st.composite
def damaged(draw: st.DrawFn, payload: bytes) -> bytes:
    """A payload that is cut off, longer, or has another byte somewhere; or is garbage."""
    kind = draw(st.sampled_from(("cut", "longer", "other", "inserted", "garbage")))
    place = draw(st.integers(0, max(0, len(payload) - 1)))
    byte = draw(st.sampled_from((b"\0", b"\1", b"\2", b"\x7f", b"\x80", b"\xff", b"\xff" * 9)))
    if kind == "garbage":
        return draw(st.binary(max_size=30))
    if kind == "longer":
        return payload + byte
    return (
        payload[:place] + {"cut": b"", "other": byte + payload[place + 1 :], "inserted": byte + payload[place:]}[kind]
    )


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_columns_match_fastavro_for_random_schemas_and_payloads(data):
    writer = data.draw(schemas())
    reader = data.draw(st.one_of(st.just(writer), readers(writer)))
    decode = made(writer, reader)
    rows = data.draw(st.lists(raw_values(writer), min_size=1, max_size=8))
    payloads = [write(writer, row) for row in rows]
    bad = data.draw(st.lists(st.sampled_from(payloads).flatmap(damaged), max_size=6))
    payloads = data.draw(st.permutations([*payloads, *bad]))
    with pytest.MonkeyPatch.context() as patch:
        same(by_columns(decode, payloads, patch), one_by_one(decode, payloads, patch))


ITEM = record([("sku", "string"), ("tags", {"type": "map", "values": ["null", "int"]})], "Item")
ORDER = record(
    [
        ("id", "int"),
        ("amount", SCALARS[11]),
        ("price", NAMED[2]),
        ("note", ["null", "string"]),
        ("paid", ["boolean", "null"]),
        ("at", SCALARS[8]),
        ("status", NAMED[0]),
        ("items", {"type": "array", "items": ITEM}),
        ("last", ["null", "Item"]),
        ("gone", {"type": "array", "items": {"type": "map", "values": ["int", "string"]}}),
    ],
    "shop.Order",
)
NEWER = {
    **ORDER,
    "fields": [
        {"name": "since", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 5},
        *({**field, "type": "double"} if field["name"] == "id" else field for field in ORDER["fields"][:-1]),
    ],
}


def order(number: int) -> bytes:
    items = [{"sku": f"s{each}", "tags": {f"t{each}": each, "none": None}} for each in range(number % 4)]
    row = {
        "id": number,
        "amount": (-number).to_bytes(3, "big", signed=True),
        "price": number.to_bytes(5, "big"),
        "note": None if number % 3 else f"é{number}",
        "paid": (True, None, False)[number % 3],
        "at": 1_700_000_000_000 + number,
        "status": "abc"[number % 3],
        "items": items,
        "last": items[-1] if items else None,
        "gone": [{"x": 1, "y": "z"}] * (number % 3),
    }
    return write(ORDER, row)


@pytest.mark.parametrize("reader", [ORDER | {"fields": ORDER["fields"][:-1]}, NEWER])
def test_orders_with_items_are_all_read_by_columns(monkeypatch, reader):
    decode = made(ORDER, reader)
    payloads = [order(number) for number in range(200)]
    found, is_read = plan_of(decode).decode(Payloads.of(payloads), max_bytes=1000)
    assert is_read.all()
    same(Decoded(values=found, errors=[None] * 200), one_by_one(decode, payloads, monkeypatch))
    assert found.to_pylist()[3]["last"] == {"sku": "s2", "tags": [("t2", 2), ("none", None)]}


def test_bad_payloads_get_fastavros_errors_and_leave_others_unharmed(monkeypatch):
    decode = made(ORDER, NEWER)
    payloads = [order(number) for number in range(50)]
    payloads[7], payloads[20], payloads[49] = payloads[7][:-1], payloads[20] + b"x", b""
    decoded = by_columns(decode, payloads, monkeypatch)
    assert [place for place, error in enumerate(decoded.errors) if error] == [7, 20, 49]
    assert "left over" in decoded.errors[20]
    same(decoded, one_by_one(decode, payloads, monkeypatch))


@pytest.mark.parametrize(
    ("node", "payload"),
    [
        ("boolean", b"\2"),  # fastavro takes some other byte for true
        ("int", b"\x80\x80\x80\x80\x10"),  # 2^31
        ("long", b"\xff" * 9 + b"\x03"),  # 65 bits
        ("long", b"\xff" * 10 + b"\x01"),
        ("string", b"\x02\xff"),
        ("string", b"\1"),  # of -1 bytes
        ("bytes", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\1"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, b"\2"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, b"\1"),  # the last one, as Python counts
        (["null", "int"], b"\4"),
        (["null", "int"], b"\1\2"),
        ({"type": "array", "items": "int"}, b"\4\2"),
        ({"type": "array", "items": "int"}, b"\3\0\2\2\0"),  # a block of 2 that says its size
        ({"type": "array", "items": "int"}, b"\2\2\4\6\x08\0"),  # in two blocks
        ({"type": "array", "items": "boolean"}, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"),
        ({"type": "map", "values": "int"}, b"\4\2a\2\2a\4\0"),  # twice the same key
        (SCALARS[11], b"\x22" + b"\x7f" * 17),
        (SCALARS[11], b"\0"),
        (SCALARS[11], b"\x18" + b"\x7f" * 12),  # of 29 digits
        (SCALARS[8], b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1"),  # out of range in microseconds
    ],
)
def test_payloads_that_only_fastavro_can_judge_are_left_to_fastavro(monkeypatch, node, payload):
    good = write(record([("f0", node)]), {"f0": ZERO[kind] if (kind := kind_of(node)) in ZERO else None})
    payloads = [good, payload, good, good]
    decode = made(record([("f0", node)]), record([("f0", node)]))
    assert plan_of(decode) is not None
    same(by_columns(decode, payloads, monkeypatch), one_by_one(decode, payloads, monkeypatch))


ZERO = {"boolean": True, "int": 0, "long": 0, "string": "x", "bytes": b"\1", "enum": "a", "array": [1], "map": {"a": 1}}


def test_a_number_that_is_too_long_does_not_end_where_the_next_field_could_begin(monkeypatch):
    node = record([("f0", "long"), ("f1", "long")])
    decode = made(node, node)
    payloads = [b"\x80" * 10 + b"\1", b"\2\4"]
    assert plan_of(decode).decode(Payloads.of(payloads), max_bytes=100)[1].tolist() == [False, True]
    same(by_columns(decode, payloads, monkeypatch), one_by_one(decode, payloads, monkeypatch))


@pytest.mark.parametrize("payload", [b"\3\x04\2\4\0", b"\2\2\2\4\0"])
def test_sized_and_repeated_blocks_are_read_by_columns_within_the_byte_bound(payload):
    node = record([("f0", {"type": "array", "items": "int"})])
    plan = plan_of(made(node, node))
    found, is_read = plan.decode(Payloads.of([payload, b"\0"]), max_bytes=len(payload))
    assert is_read.all()
    assert found.to_pylist() == [{"f0": [1, 2]}, {"f0": []}]
    assert plan.decode(Payloads.of([payload, b"\0"]), max_bytes=len(payload) - 1)[1].tolist() == [False, True]


def kind_of(node: Node) -> str:
    return node["type"] if isinstance(node, dict) else str(node)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (record([("f0", ["int", "string"])]), record([("f0", ["int", "string"])])),
        (record([("f0", "int")], "One"), record([("f0", "int")], "ns.One")),
        (record([("f0", "int")]), record_of({"name": "f1", "type": "int", "aliases": ["f0"], "default": 0})),
        (record([("f0", {"type": "array", "items": "null"})]), record([])),
        (record([("f0", "int"), ("f1", "int")]), record([("f0", "string"), ("f1", "int")])),
        (record([]), record([("f0", "int")])),
        (["null", "int"], ["null", "int"]),
        (record([(f"f{number}", "int") for number in range(2500)]), record([("f0", "int")])),
    ],
)
def test_unsupported_schemas_are_left_to_fastavro(writer, reader):
    assert plan_of(made(writer, reader)) is None


def test_arrays_far_longer_than_the_others_take_no_step_for_each_item(monkeypatch):
    """A step of array operations takes as long for one payload as for some hundred."""
    node = record([("f0", {"type": "array", "items": {"type": "array", "items": "int"}})])
    decode = made(node, node)
    rows = [{"f0": [[1, 2]] * 3}] * 40 + [{"f0": [[1] * 50] * 2000}, {"f0": [[number] for number in range(500)]}]
    payloads = [write(node, row) for row in rows]
    steps = 0
    read_varints = slices.read_varints

    def counted(*given: Any) -> Any:
        nonlocal steps
        steps += 1
        return read_varints(*given)

    monkeypatch.setattr("kafscale.spark.values.payloads.read_varints", counted)
    _, is_read = plan_of(decode).decode(Payloads.of(payloads), max_bytes=10**9)
    assert is_read.tolist() == [True] * 40 + [False] * 2
    assert steps < 300
    same(by_columns(decode, payloads, monkeypatch), one_by_one(decode, payloads, monkeypatch))


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.string(), pa.binary_view()])
def test_payloads_of_a_slice_of_any_type_of_array(type_):
    array = pa.array([b"a", b"bc", None, b"", b"def"], pa.binary()).cast(type_)
    assert list(Payloads.of(array.slice(1))) == [b"bc", b"", b"", b"def"]
    assert Payloads.of(array.slice(1))[3] == b"def"
    assert list(Payloads.of(array.slice(3, 1))) == [b""]
    assert list(Payloads.of(array.slice(0, 0))) == []
    assert list(Payloads.of(array)[1:2]) == [b"bc"]
