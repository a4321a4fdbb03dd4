"""Single values of confluent-kafka's serializers become JSON; bytes of any kind become a value or a clear error."""

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafscale.errors import ConfigError, DecodeError, RegistryError, StartupError, UnknownSchema
from kafscale.values.credentials import RegistryCredentials
from kafscale.values.decoding import DEPTH_MAX, VALUE_ID_HEADER, RegistryDecoder, parse_json, to_json
from tests.devtools.external.registry import message_class, prefixed

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "score", "type": "double"},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
    ],
}
WRITTEN = {
    "id": 2**60,
    "note": "für dich",
    "raw": b"\x00\xff",
    "price": Decimal("12.30"),
    "at": 1_700_000_000_000,
    "score": math.inf,
    "tags": {"a": [1, 2]},
}
SHOWN = {**WRITTEN, "raw": "AP8=", "price": "12.30", "score": "Infinity"}
LIST = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Other { string unused = 1; }
message Order {
  message Line { string sku = 1; int32 count = 2; }
  int64 id = 1;
  repeated Line lines = 2;
  bytes raw_bytes = 3;
  google.protobuf.Timestamp at = 4;
  double score = 5;
}
"""


@pytest.fixture
def decoder(values):
    with closing(RegistryDecoder(values.registry.url)) as made:
        yield made


def test_an_avro_record(values, decoder):
    assert decoder.decode(values.avro(ORDER, WRITTEN)) == SHOWN
    assert decoder.decode(values.avro(ORDER, {**WRITTEN, "note": None, "score": math.nan}))["score"] == "NaN"


@pytest.mark.parametrize(
    ("schema", "value"), [('"string"', "a"), (["null", "long"], 5), ({"type": "array", "items": "int"}, [1])]
)
def test_avro_without_a_record(values, decoder, schema, value):
    written = json.loads(schema) if isinstance(schema, str) else schema
    assert decoder.decode(values.avro(written, value)) == value


def test_an_avro_schema_that_contains_itself(values, decoder):
    """Columns can't be made of it, while a value ends."""
    value = {"n": 1, "next": {"n": 2, "next": None}}
    assert decoder.decode(values.avro(LIST, value)) == value


def test_an_avro_schema_with_references(values, decoder):
    registry = values.registry
    registry.register("line", '{"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}')
    text = '{"type": "record", "name": "Order", "fields": [{"name": "line", "type": "Line"}]}'
    schema_id = registry.register("order", text, references=[{"name": "Line", "subject": "line", "version": 1}])
    assert decoder.decode(prefixed(schema_id, b"\x04ab")) == {"line": {"sku": "ab"}}


def test_a_protobuf_message_and_a_nested_one(values, decoder):
    order = message_class(PROTO, "shop.Order")(id=2**60, raw_bytes=b"\xff")
    order.lines.add(sku="a")
    order.at.FromJsonString("2026-01-02T03:04:05Z")
    shown = {"id": str(2**60), "lines": [{"sku": "a", "count": 0}], "raw_bytes": "/w==", "score": 0.0}
    assert decoder.decode(values.protobuf(order)) == {**shown, "at": "2026-01-02T03:04:05Z"}
    line = message_class(PROTO, "shop.Order.Line")(sku="b", count=2)
    assert decoder.decode(values.protobuf(line)) == {"sku": "b", "count": 2}


def test_a_json_value(values, decoder):
    schema = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}
    assert decoder.decode(values.json(schema, {"id": 1, "more": [None]})) == {"id": 1, "more": [None]}


@pytest.mark.parametrize("format", ["avro", "protobuf"])
def test_a_schemas_id_in_a_header(values, decoder, format):
    headers = []
    if format == "avro":
        value, shown = values.avro({"type": "string"}, "a", headers=headers), "a"
    else:
        line = message_class(PROTO, "shop.Order.Line")(sku="b")
        value, shown = values.protobuf(line, headers=headers), {"sku": "b", "count": 0}
    ((name, id_header),) = headers
    assert name == VALUE_ID_HEADER
    assert decoder.decode(value, id_header) == shown


@pytest.mark.parametrize("format", ["avro", "protobuf", "json"])
def test_any_bytes_are_json_or_an_error_of_the_value(values, decoder, format):
    good = {
        "avro": lambda: values.avro(ORDER, WRITTEN),
        "json": lambda: values.json({"title": "a", "type": "object"}, {"a": [1, "b"]}),
        "protobuf": lambda: values.protobuf(message_class(PROTO, "shop.Order")(id=5, raw_bytes=b"abc")),
    }[format]()
    decoder.decode(good)
    garbage = st.one_of(
        st.binary(max_size=30),
        st.binary(max_size=30).map(lambda tail: good[:5] + tail),
        st.integers(0, len(good)).map(lambda length: good[:length]),
        st.tuples(st.integers(5, len(good) - 1), st.integers(0, 255)).map(
            lambda change: good[: change[0]] + bytes([change[1]]) + good[change[0] + 1 :]
        ),
    )

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(garbage)
    def check(bad):
        value, error = None, "-"
        try:
            value = decoder.decode(bad)
        except (DecodeError, UnknownSchema) as exc:
            error = str(exc)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        assert 0 < len(error) < 700
        assert "\n" not in error

    check()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are too few for a schema registry's prefix of 5"),
        (b"\0\0\0", "3 bytes are too few"),
        (b'{"a": 1}', "the first byte is 123, not 0: it was not written with a schema registry"),
        (prefixed(1, b"\x02"), "the value does not fit schema 1: "),
        (prefixed(1, b"\x02ab"), "1 bytes are left over after the value"),
    ],
)
def test_bytes_that_are_no_value(values, decoder, data, message):
    values.registry.register("s", '"string"')
    with pytest.raises(DecodeError, match=message):
        decoder.decode(data)


def test_the_registrys_errors_are_not_errors_of_a_value(values, decoder):
    with pytest.raises(UnknownSchema, match="has no schema 77"):
        decoder.decode(prefixed(77, b""))
    values.registry.failures = [401]
    with pytest.raises(RegistryError, match="refuses"):
        decoder.decode(prefixed(78, b""))


def test_a_value_of_another_format_is_an_error(values):
    with closing(RegistryDecoder(values.registry.url, format="protobuf")) as decoder:
        for _ in range(2):
            with pytest.raises(DecodeError, match="schema 1 is of type AVRO, not PROTOBUF"):
                decoder.decode(values.avro({"type": "string"}, "a"))
    with pytest.raises(ConfigError, match="'xml': one of avro, protobuf, json"):
        RegistryDecoder(values.registry.url, format="xml")
    with pytest.raises(ConfigError, match="give http://host:port"):
        RegistryDecoder("registry:8081")


def test_credentials(values):
    values.registry.basic_auth = "user:secret"
    good = values.registry.register("s", '"string"')
    with closing(
        RegistryDecoder(values.registry.url, credentials=RegistryCredentials(basic_auth="user:secret"))
    ) as decoder:
        assert decoder.decode(prefixed(good, b"\x02a")) == "a"


def test_deep_values_are_refused_before_they_overflow_the_stack(values, decoder):
    schema_id = values.registry.register("s", '{"type": "object"}', format="JSON")
    for depth in (DEPTH_MAX + 1, 900, 100_000):
        with pytest.raises(DecodeError, match="it is nested"):
            decoder.decode(prefixed(schema_id, b"[" * depth + b"]" * depth))
    decoder.decode(prefixed(schema_id, b"[" * DEPTH_MAX + b"]" * DEPTH_MAX))
    linked = values.registry.register("l", json.dumps(LIST))
    with pytest.raises(DecodeError, match="nested more than"):
        decoder.decode(prefixed(linked, b"\x02\x02" * 100_000 + b"\x02\x00"))


def test_text_that_utf_8_does_not_have(values, decoder):
    schema_id = values.registry.register("s", '{"type": "object"}', format="JSON")
    assert decoder.decode(prefixed(schema_id, rb'{"\ud800": "a\udfff"}')) == {"\ufffd": "a\ufffd"}
    with pytest.raises(DecodeError, match="NaN is not JSON"):
        decoder.decode(prefixed(schema_id, b"NaN"))
    assert to_json(parse_json(b"1e999")) == "Infinity"


def test_many_threads_decode_at_once(values, decoder):
    written = [values.avro(ORDER, {**WRITTEN, "id": number}, topic=f"t{number % 7}") for number in range(200)]
    written += [values.avro({"type": "array", "items": "int", "default": []}, [number]) for number in range(50)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(decoder.decode, written))
    assert [one["id"] for one in found[:200]] == list(range(200))
    assert found[200:] == [[number] for number in range(50)]


def test_a_missing_package_is_named(values, decoder, monkeypatch):
    good = values.avro({"type": "string"}, "a")
    monkeypatch.delitem(sys.modules, "kafscale.values.avro_values", raising=False)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    for name in [name for name in sys.modules if name.startswith("kafscale.values.avro")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(StartupError, match="a value of type AVRO needs fastavro, which the extra `avro` has"):
        decoder.decode(good)


def test_decoding_imports_neither_trio_nor_arrow_nor_spark():
    program = "import kafscale.values.decoding, kafscale.values.avro_values, kafscale.values.protobuf_values, sys"
    program += "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"trio", "pyarrow", "numpy", "pyspark", "kafscale.spark", "confluent_kafka"}
