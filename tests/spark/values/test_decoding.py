"""Records with framed values into a column of struct<value, error>."""

import json
import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

from kafscale.errors import UnknownSchema
from kafscale.spark.bucket.decode import HEADERS_TYPE
from kafscale.spark.values import decoder as module
from kafscale.spark.values.decoder import Decoding
from kafscale.spark.values.options import ValueOptions
from kafscale.values.registry import RegistryClient, RegistryOptions
from tests.devtools.external.registry import Headers, message_class, prefixed

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(autouse=True)
def _no_decoders() -> Iterator[None]:
    """A worker keeps its decoders until it ends; a test does not."""
    yield
    module._decoder.cache_clear()


def test_a_decoder_that_is_kept_no_more_leaves_no_connection(values, monkeypatch):
    closed = []
    close = RegistryClient.close
    monkeypatch.setattr(RegistryClient, "close", lambda client: (closed.append(client), close(client)))
    framed = values.avro(ORDER, {"id": 1})
    decoding = Decoding.of(options(values), "orders")
    list(decoding.select(records(framed), ["decoded"]))
    before_count = len(closed)
    module._decoder.cache_clear()
    assert len(closed) == before_count + 1
    assert closed[-1].request_count == 1


def options(values, **reading) -> ValueOptions:
    reading = {"format": "avro", **reading}
    return ValueOptions(registry=RegistryOptions(urls=(values.registry.url,)), **reading)


def records(*found: bytes | None, headers: list[Headers | None] | None = None) -> pa.RecordBatch:
    """As the source reads them."""
    rows = [each and [{"key": key, "value": value} for key, value in each] for each in headers or [None] * len(found)]
    arrays = [pa.array(range(len(found))), pa.array(found, pa.binary()), pa.array(rows, HEADERS_TYPE)]
    return pa.RecordBatch.from_arrays(arrays, names=["offset", "value", "headers"])


@pytest.mark.parametrize("rows_count", [1, 2, 100])
def test_records_get_the_column_in_its_place(values, monkeypatch, rows_count):
    monkeypatch.setattr(module, "ROWS_AT_ONCE_COUNT", rows_count)
    framed = [values.avro(ORDER, {"id": number}) for number in range(4)]
    decoding = pickle.loads(pickle.dumps(Decoding.of(options(values), "orders")))
    found = list(decoding.select(records(*framed, None, b"bad"), ["decoded", "offset"]))
    assert max(part.num_rows for part in found) <= rows_count
    table = pa.Table.from_batches(found)
    assert table.column_names == ["decoded", "offset"]
    assert table["decoded"].type == decoding.type
    assert table["offset"].to_pylist() == list(range(6))
    rows = table["decoded"].to_pylist()
    assert [row["value"] for row in rows] == [{"id": 0}, {"id": 1}, {"id": 2}, {"id": 3}, None, None]
    assert [row["error"] is None for row in rows] == [True] * 5 + [False]


def test_no_records_ask_no_registry(values):
    values.registry.register("orders-value", '"long"')
    decoding = Decoding.of(options(values, subject="orders-value"))
    values.registry.requests.clear()
    assert list(decoding.select(records(), ["decoded"])) == []
    assert not values.registry.requests


def test_the_reader_schema_is_fixed_when_looked_up(values):
    first = values.avro(ORDER, {"id": 1})
    decoding = Decoding.of(options(values), "orders")
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": "-"}]}
    second = values.avro(newer, {"id": 2, "note": "n"})
    assert decoding.decode(pa.array([first, second])).to_pylist() == [
        {"value": {"id": 1}, "error": None},
        {"value": {"id": 2}, "error": None},
    ]
    later = Decoding.of(options(values), "orders").decode(pa.array([first, second])).to_pylist()
    assert [row["value"]["note"] for row in later] == ["-", "n"]


def test_a_topic_without_a_subject(values):
    with pytest.raises(UnknownSchema, match="none-value"):
        Decoding.of(options(values), "none")


PROTO = 'syntax = "proto3"; message Other { string x = 1; } message Order { int64 id = 1; }'


@pytest.mark.parametrize("rows_count", [1, 3, 100])
@pytest.mark.parametrize("format", ["avro", "json", "protobuf"])
def test_ids_of_schemas_in_headers_and_in_front_of_values(values, monkeypatch, format, rows_count):
    monkeypatch.setattr(module, "ROWS_AT_ONCE_COUNT", rows_count)
    write = {
        "avro": lambda number, headers: values.avro(ORDER, {"id": number}, headers=headers),
        "json": lambda number, headers: values.json(
            {"title": "O", "type": "object", "properties": {"id": {"type": "integer"}}}, {"id": number}, headers=headers
        ),
        "protobuf": lambda number, headers: values.protobuf(message_class(PROTO, "Order")(id=number), headers=headers),
    }[format]
    headers: list[Headers | None] = [[("before", b"x")], None, [], [("__value_schema_id", b"\1short")]]
    found = [write(7, headers[0]), write(8, None), write(9, headers[2]), b"x"]
    assert headers[0][-1][0] == "__value_schema_id"
    assert found[0][:1] != b"\0"
    message = {"message": "Order"} if format == "protobuf" else {}
    given = ValueOptions(registry=RegistryOptions(urls=(values.registry.url,)), format=format, **message)
    decoding = Decoding.of(given, "orders")
    batches = decoding.select(records(*found, headers=headers), ["offset", "decoded"])
    rows = [row for batch in batches for row in batch["decoded"].to_pylist()]
    assert [row["value"] and row["value"]["id"] for row in rows] == [7, 8, 9, None]
    assert "first byte is 1" in rows[3]["error"]


def test_a_null_value_with_a_header_is_valid_and_an_unknown_id_is_an_error(values):
    headers: Headers = []
    framed = values.avro(ORDER, {"id": 1}, headers=headers)
    unknown = [("__value_schema_id", b"\1" + bytes(16))]
    decoding = Decoding.of(options(values), "orders")
    (batch,) = decoding.select(records(None, framed, headers=[headers, unknown]), ["decoded"])
    rows = batch["decoded"].to_pylist()
    assert rows[0] == {"value": None, "error": None}
    assert "no schema 00000000-0000" in rows[1]["error"]


WIDE = "message I { " + " ".join(f"int64 c{number} = {number};" for number in range(1, 101)) + " }"
EXPANDING = f'syntax = "proto3"; message Order {{ int64 id = 1; repeated I items = 2; {WIDE} }}'


HUNDRED = {"name": "y", "type": {"type": "array", "items": "int"}, "default": [7] * 100}
SMALL = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "boolean"}, HUNDRED]}
WITH_DEFAULTS = {"type": "array", "items": SMALL}


def expanding_rows(values, count: int, items_count: int) -> pa.RecordBatch:
    """Values of two bytes for each of their items, of which each takes places for a hundred fields."""
    schema_id = values.registry.register("orders-value", EXPANDING, format="PROTOBUF")
    framed = prefixed(schema_id, b"\0\x08\1" + b"\x12\0" * items_count)
    return records(*[framed] * count)


def test_rows_that_are_each_within_bounds_filled_memory_together(values, monkeypatch):
    """10,000 rows were decoded at once, whatever becomes of each."""
    monkeypatch.setattr(module, "ROWS_AT_ONCE_BYTES", 64 << 20)
    rows = expanding_rows(values, 60, 1000)
    decoding = Decoding.of(options(values, format="protobuf"), "orders")
    parts = list(decoding.select(rows, ["decoded", "offset"]))
    assert len(parts) > 5
    assert max(part.nbytes for part in parts) < 64 << 20
    table = pa.Table.from_batches(parts)
    assert table["offset"].to_pylist() == list(range(60))
    assert [len(row["value"]["items"]) for row in table["decoded"].to_pylist()] == [1000] * 60
    assert decoding.decode(rows["value"]).to_pylist() == table["decoded"].to_pylist()


@pytest.mark.parametrize(
    ("format", "schema", "payload", "fewest", "most"),
    [
        ("avro", {"type": "array", "items": "boolean"}, b"\x80\x01" + b"\1" * 64 + b"\0", 100, 1000),
        ("avro", WITH_DEFAULTS, b"\x40" + b"\1\0" * 32 + b"\0", 1, 20),
        ("avro", "string", b"\x80\x01" + b"x" * 64, 5000, 10_000),
        ("json", {"type": "object", "properties": {"a": {"type": "string"}}}, b'{"a":"' + b"x" * 64 + b'"}', 100, 1000),
        ("protobuf", EXPANDING, b"\0" + b"\x12\0" * 32, 1, 10),
        ("protobuf", 'syntax = "proto3"; message Order { string x = 1; }', b"\0\x0a\x40" + b"x" * 64, 2500, 10_000),
    ],
)
def test_the_rows_decoded_at_once_depend_on_their_decoded_size(
    values, monkeypatch, format, schema, payload, fewest, most
):
    """With 4 MiB for them; never fewer than one."""
    text = schema if format == "protobuf" else json.dumps(schema)
    schema_id = values.registry.register("orders-value", text, format=format.upper())
    decoding = Decoding.of(options(values, format=format), "orders")
    rows = records(*[prefixed(schema_id, payload)] * 10_000)

    def first_count() -> int:
        return next(decoding.select(rows, ["decoded"])).num_rows

    monkeypatch.setattr(module, "ROWS_AT_ONCE_BYTES", 4 << 20)
    assert fewest <= first_count() <= most
    monkeypatch.setattr(module, "ROWS_AT_ONCE_BYTES", 1)
    assert first_count() == 1


def test_the_bytes_of_ordinary_rows_do_not_cut_a_batch(values):
    """Orders of a dozen items, as they are: a batch has as many as without a bound on bytes."""
    item = {"type": "record", "name": "I", "fields": [{"name": f"f{n}", "type": "string"} for n in range(5)]}
    schema = {**ORDER, "fields": [*ORDER["fields"], {"name": "items", "type": {"type": "array", "items": item}}]}
    framed = values.avro(schema, {"id": 1, "items": [{f"f{n}": "x" for n in range(5)}] * 12})
    decoding = Decoding.of(options(values), "orders")
    assert [part.num_rows for part in decoding.select(records(*[framed] * 10_001), ["decoded"])] == [10_000, 1]
