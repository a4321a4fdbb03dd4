"""Avro values of confluent-kafka's serializer, read by the writer's schema into the reader's."""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kafscale.errors import ConfigError

NOON = datetime(2024, 5, 6, 12, 0, 0, 123_000, tzinfo=UTC)


def record(*fields: tuple, name: str = "Order") -> dict[str, Any]:
    parts = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": parts}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("schema", "written", "type_", "read"),
    [
        ("boolean", True, pa.bool_(), True),
        ("int", -7, pa.int32(), -7),
        ("long", 2**40, pa.int64(), 2**40),
        ("float", 0.5, pa.float32(), 0.5),
        ("double", 0.1, pa.float64(), 0.1),
        ("bytes", b"\xff", pa.binary(), b"\xff"),
        ("string", "é", pa.string(), "é"),
        (logical("string", "uuid"), "0b0e6f5c-0000-4000-8000-000000000001", pa.string(), None),
        (logical("bytes", "decimal", precision=9, scale=2), Decimal("-1.50"), pa.decimal128(9, 2), None),
        (logical("int", "date"), date(2024, 2, 29), pa.date32(), None),
        (logical("int", "time-millis"), time(0, 0, 1), pa.int32(), 1000),
        (logical("long", "time-micros"), time(0, 0, 1), pa.int64(), 1_000_000),
        (logical("long", "timestamp-millis"), NOON, pa.timestamp("us", "UTC"), None),
        (logical("long", "timestamp-micros"), NOON, pa.timestamp("us", "UTC"), None),
        (logical("long", "local-timestamp-millis"), NOON.replace(tzinfo=None), pa.timestamp("us"), None),
        ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, "b", pa.string(), "b"),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc", pa.binary(), b"abc"),
        ({"type": "array", "items": "int"}, [1, 2], pa.list_(pa.field("element", pa.int32(), nullable=False)), None),
        (
            {"type": "map", "values": ["null", "int"]},
            {"x": None, "y": 1},
            pa.map_(pa.string(), pa.int32()),
            [("x", None), ("y", 1)],
        ),
        (record(("x", "int"), name="Inner"), {"x": 1}, pa.struct([pa.field("x", pa.int32(), nullable=False)]), None),
        (["int", "long"], 5, pa.int64(), 5),
    ],
)
def test_each_type_becomes_its_column(values, schema, written, type_, read):
    schema = record(("field", schema))
    value = values.avro(schema, {"field": written})
    decoder = values.reader("avro", schema)
    assert decoder.type == pa.struct([pa.field("field", type_, nullable=False)])
    decoded = decoder.decode([value])
    assert decoded.errors == [None]
    assert decoded.values.to_pylist() == [{"field": written if read is None else read}]


def test_an_older_and_a_newer_writer_are_read_into_one_schema_in_their_order(values):
    older = values.avro(record(("id", "int")), {"id": 1})
    newer = values.avro(record(("id", "long"), ("note", "string"), ("more", "int")), {"id": 2, "note": "x", "more": 3})
    reader = values.reader(
        "avro",
        record(
            ("note", "string", "none"), ("id", "double"), ("raw", "bytes", "\u00ff"), ("gone", ["null", "int"], None)
        ),
    )
    decoded = reader.decode([newer, None, older, newer])
    row = {"note": "x", "id": 2.0, "raw": b"\xff", "gone": None}
    assert decoded.values.to_pylist() == [row, None, {**row, "note": "none", "id": 1.0}, row]
    assert decoded.errors == [None] * 4


def test_a_value_that_does_not_resolve_fails_alone(values):
    good = values.avro(record(("id", "int")), {"id": 1})
    bad = values.avro(record(("id", "string")), {"id": "x"})
    decoded = values.reader("avro", record(("id", "int"))).decode([bad, good])
    assert decoded.values.to_pylist() == [None, {"id": 1}]
    assert "Schema" in decoded.errors[0]
    assert decoded.errors[1] is None


def test_times_of_another_unit_are_an_error_and_never_another_time(values):
    millis, micros = (record(("at", logical("long", f"timestamp-{unit}"))) for unit in ("millis", "micros"))
    value = values.avro(millis, {"at": NOON})
    assert "written as timestamp-millis" in values.reader("avro", micros).decode([value]).errors[0]
    assert values.reader("avro", record(("at", "long"))).decode([value]).values.to_pylist() == [
        {"at": int(NOON.timestamp() * 1000)}
    ]
    plain = values.avro(record(("at", "long")), {"at": 1000})
    assert values.reader("avro", millis).decode([plain]).values.to_pylist() == [
        {"at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}
    ]


def test_a_union_of_several_types_tells_its_branches(values):
    one, other = record(("x", "int"), name="One"), record(("x", "int"), name="Other")
    schema = record(("choice", ["null", "string", one, other]), ("plain", ["null", "One"]))
    rows = [
        {"choice": None, "plain": {"x": 0}},
        {"choice": "text", "plain": None},
        {"choice": ("Other", {"x": 2}), "plain": {"x": 3}},
    ]
    decoded = values.reader("avro", schema).decode([values.avro(schema, row) for row in rows])
    members = dict.fromkeys(("member0", "member1", "member2"))
    assert decoded.errors == [None] * 3
    assert decoded.values.to_pylist() == [
        rows[0],
        {"choice": {**members, "member0": "text"}, "plain": None},
        {"choice": {**members, "member2": {"x": 2}}, "plain": {"x": 3}},
    ]


def test_a_type_of_another_subject_is_found_by_reference(values):
    values.registry.register("money", json.dumps(record(("cents", "long"), name="shop.Money")))
    text = json.dumps(record(("price", "shop.Money"), ("tax", ["null", "shop.Money"])))
    reference = {"name": "shop.Money", "subject": "money", "version": 1}
    schema_id = values.registry.register("orders-value", text, references=(reference,))
    decoded = values.reader_of().decode([b"\0" + schema_id.to_bytes(4, "big") + b"\x02\x02\x04"])
    assert decoded.values.to_pylist() == [{"price": {"cents": 1}, "tax": {"cents": 2}}]


def test_a_decimal_of_too_many_digits_for_its_column_is_an_error_of_the_value_alone(values):
    wide, narrow = (record(("x", logical("bytes", "decimal", precision=digits, scale=0))) for digits in (20, 3))
    rows = [values.avro(wide, {"x": Decimal(10) ** power}) for power in (2, 12, 1)]
    decoded = values.reader("avro", narrow).decode(rows)
    assert decoded.values.to_pylist() == [{"x": Decimal(100)}, None, {"x": Decimal(10)}]
    assert [error is None for error in decoded.errors] == [True, False, True]


@pytest.mark.parametrize(
    "schema",
    [
        record(("next", ["null", "Order"])),
        record(("x", logical("bytes", "decimal", precision=39))),
        {"type": "nonsense"},
    ],
)
def test_a_reader_schema_without_column_types_is_refused_at_once(values, schema):
    with pytest.raises(ConfigError):
        values.reader("avro", schema)
