"""Records with framed values into a column of struct<value, error>."""

import pickle

import pyarrow as pa
import pytest

from kafscale.errors import UnknownSchema
from kafscale.spark.registry import RegistryOptions
from kafscale.spark.values import decoding as module
from kafscale.spark.values.decoding import Decoding
from kafscale.spark.values.options import ValueOptions

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def options(values, **reading) -> ValueOptions:
    return ValueOptions(registry=RegistryOptions(urls=(values.registry.url,)), format="avro", **reading)


def records(*found: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"offset": list(range(len(found))), "value": pa.array(found, pa.binary())})


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


def test_the_reader_schema_is_of_the_moment_it_was_looked_up(values):
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
