"""JSON values of confluent-kafka's serializer, held to the columns of the reader schema."""

import json

import pyarrow as pa
import pytest

from kafscale.errors import ConfigError


def an_object(**properties):
    return {"title": "Order", "type": "object", "properties": properties}


INTEGER, NUMBER, STRING = {"type": "integer"}, {"type": "number"}, {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "written", "type_", "read"),
    [
        (STRING, "é", pa.string(), "é"),
        (INTEGER, 5, pa.int64(), 5),
        (INTEGER, 5.0, pa.int64(), 5),
        (NUMBER, 5, pa.float64(), 5.0),
        ({"type": "boolean"}, True, pa.bool_(), True),
        ({"type": ["null", "string"]}, None, pa.string(), None),
        ({"oneOf": [{"type": "null"}, INTEGER]}, 5, pa.int64(), 5),
        ({"enum": ["a", "b", None]}, "a", pa.string(), "a"),
        ({"type": ["integer", "number"]}, 1, pa.float64(), 1.0),
        ({"type": ["integer", "string"]}, 1, pa.string(), "1"),
        ({}, {"any": [1]}, pa.string(), '{"any":[1]}'),
        ({"type": "object"}, {"a": 1}, pa.string(), '{"a":1}'),
        ({"type": "object", "additionalProperties": INTEGER}, {"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        ({"type": "array", "items": NUMBER}, [1, 2.5], pa.list_(pa.field("element", pa.float64())), [1.0, 2.5]),
        ({"type": "array"}, [1, "x"], pa.list_(pa.field("element", pa.string())), ["1", '"x"']),
        ({"$ref": "#/definitions/d"}, {"x": 1}, pa.struct([("x", pa.int64())]), {"x": 1}),
        (
            {"allOf": [{"$ref": "#/definitions/d"}, {"properties": {"y": STRING}}]},
            {"x": 1, "y": "y"},
            None,
            {"x": 1, "y": "y"},
        ),
    ],
)
def test_each_type_becomes_its_column(values, schema, written, type_, read):
    schema = {**an_object(field=schema), "definitions": {"d": an_object(x=INTEGER)}}
    decoder = values.reader("json", schema)
    decoded = decoder.decode([values.json(schema, {"field": written})])
    assert decoded.errors == [None]
    assert decoded.values.to_pylist() == [{"field": read}]
    assert type_ is None or decoder.type == pa.struct([("field", type_)])


@pytest.mark.parametrize(
    ("schema", "value"),
    [(INTEGER, 1.5), (INTEGER, 2**63), (INTEGER, True), (NUMBER, True), (NUMBER, "1"), (STRING, 1), (STRING, {}),
     ({"type": "array", "items": STRING}, "abc"), (an_object(x=INTEGER), [["x", 1]]),
     (an_object(x=INTEGER), {"x": "1"})],
)  # fmt: skip
def test_a_value_of_another_type_is_an_error_and_never_made_fit(values, schema, value):
    bad = values.json({"title": "Any"}, {"field": value})
    good = values.json({"title": "Any"}, {})
    decoded = values.reader("json", an_object(field=schema)).decode([good, bad, good])
    assert decoded.values.to_pylist() == [{"field": None}, None, {"field": None}]
    assert "expected" in decoded.errors[1]


def test_members_come_and_go_between_writers(values):
    older, newer = values.json(an_object(id=INTEGER), {"id": 1}), values.json(an_object(note=STRING), {"note": "x"})
    decoded = values.reader("json", an_object(id=INTEGER, note=STRING)).decode([older, newer])
    assert decoded.values.to_pylist() == [{"id": 1, "note": None}, {"id": None, "note": "x"}]


def test_validate_checks_a_value_against_its_writer_schema(values):
    written_by = values.registry.register("a", json.dumps({**an_object(id={**INTEGER, "minimum": 10})}), format="JSON")
    value = b"\0" + written_by.to_bytes(4, "big") + b'{"id": 5}'
    reader = an_object(id=INTEGER)
    assert values.reader("json", reader).decode([value]).errors == [None]
    error = values.reader("json", reader, validate=True).decode([value]).errors[0]
    assert error == "DecodeError: not valid by its writer schema: $.id: 5 is less than the minimum of 10"


def test_a_schema_of_another_subject_is_found_by_reference_and_one_within_itself_is_text(values):
    values.registry.register("money", json.dumps(an_object(cents=INTEGER)), format="JSON")
    schema = an_object(price={"$ref": "money.json"}, next={"$ref": "#"})
    reference = {"name": "money.json", "subject": "money", "version": 1}
    schema_id = values.registry.register("orders-value", json.dumps(schema), format="JSON", references=(reference,))
    value = b"\0" + schema_id.to_bytes(4, "big") + b'{"price": {"cents": 5}, "next": {"price": {"cents": 1}}}'
    decoded = values.reader_of(validate=True).decode([value])
    assert decoded.values.to_pylist() == [{"price": {"cents": 5}, "next": '{"price":{"cents":1}}'}]


def test_a_reader_schema_that_leads_nowhere_is_refused_at_once(values):
    with pytest.raises(ConfigError, match="not a usable JSON schema"):
        values.reader("json", an_object(x={"$ref": "#/definitions/nope"}))
