"""Whatever the bytes are: an error text in their place, the neighbours unharmed, and no exception."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafscale.errors import ConfigError, RegistryError
from kafscale.spark.values.options import ReaderOptions
from kafscale.values.registry import Schema
from tests.devtools.external.registry import message_class

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "map", "values": ["null", "string", "double"]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
JSON = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}, "tag": {"type": "string"}}}
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; map<string, double> tags = 2; repeated string names = 3; }'


def made(values, format):
    """A good value, what it is read as, and its decoder."""
    if format == "avro":
        good = values.avro(AVRO, {"id": 1, "tags": {"a": "x"}, "price": b"\x01", "at": 5})
        return good, values.reader("avro", AVRO)
    if format == "json":
        return values.json(JSON, {"id": 1, "tag": "x"}), values.reader("json", JSON)
    return values.protobuf(message_class(PROTO, "Order")(id=1, tags={"a": 1.0})), values.reader("protobuf", PROTO)


@pytest.mark.parametrize("format", ["avro", "json", "protobuf"])
def test_any_bytes_are_a_value_or_an_error_text(values, format):
    good, decoder = made(values, format)
    (read,) = decoder.decode([good]).values.to_pylist()
    garbage = st.one_of(
        st.binary(max_size=30),
        st.binary(max_size=30).map(lambda tail: good[:5] + tail),
        st.integers(0, len(good)).map(lambda length: good[:length]),
        st.tuples(st.integers(5, len(good) - 1), st.integers(0, 255)).map(
            lambda change: good[: change[0]] + bytes([change[1]]) + good[change[0] + 1 :]
        ),
    )

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(garbage, max_size=4))
    def check(bad):
        decoded = decoder.decode([good, *bad, None, good])
        rows = decoded.values.to_pylist()
        assert decoded.values.type == decoder.type
        assert len(rows) == len(decoded.errors) == len(bad) + 3
        assert [rows[0], rows[-2], rows[-1]] == [read, None, read]
        assert [decoded.errors[0], *decoded.errors[-2:]] == [None] * 3
        assert all(row is None for row, error in zip(rows, decoded.errors, strict=True) if error)

    check()


@pytest.mark.parametrize("format", ["avro", "json", "protobuf"])
def test_a_value_of_another_format_is_an_error_of_the_value(values, format):
    good, decoder = made(values, format)
    other = values.registry.register("other", '"string"', format="JSON" if format == "avro" else "AVRO")
    decoded = decoder.decode([b"\0" + other.to_bytes(4, "big") + b"\x02a", good])
    assert "is of type" in decoded.errors[0]
    assert decoded.errors[1] is None


def test_invalid_prefixes_have_distinct_errors(values):
    good, decoder = made(values, "avro")
    unknown = b"\0\0\0\0\x63" + good[5:]
    decoded = decoder.decode([b"", b"\0\0\0\0", b"\x01" + good[1:], unknown, good + b"x"])
    assert decoded.values.null_count == 5
    assert decoded.errors == [
        "0 bytes are too few for a schema registry's prefix of 5",
        "4 bytes are too few for a schema registry's prefix of 5",
        "the first byte is 1, not 0: the value was not written with a schema registry",
        "UnknownSchema: the schema registry has no schema 99",
        "DecodeError: 1 bytes are left over after the value",
    ]


def test_a_registry_that_is_down_is_an_error_and_no_dead_letters(values):
    good, decoder = made(values, "avro")
    values.registry.failures = [503] * 3
    with pytest.raises(RegistryError, match=r"HTTP 503.*check that it runs"):
        decoder.decode([good])
    assert decoder.decode([good]).errors == [None]


def test_each_schema_is_requested_once(values):
    good, decoder = made(values, "avro")
    values.registry.requests.clear()
    for _ in range(3):
        decoder.decode([good, b"\0\0\0\0\x63", good])
    assert sorted(values.registry.requests) == ["GET /schemas/ids/1", "GET /schemas/ids/99"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "xml"}, "one of avro, protobuf, json"),
        ({"format": "json"}, "is of type AVRO"),
        ({"format": "avro", "message": "Order"}, "a message's name is for protobuf"),
        ({"format": "avro", "validate": True}, "validation is for json"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        ReaderOptions(schema=Schema(format="AVRO", text=json.dumps(AVRO)), **options)
