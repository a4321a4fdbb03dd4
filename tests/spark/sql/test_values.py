"""Values of a schema registry, as columns of a statement: in WHERE, in GROUP BY, and beside a topic without them."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from kafscale.store.paths import SegmentKey
from tests.devtools.external.registry import message_class, running_values
from tests.devtools.fakes.segment_objects import make_batch, version_2_objects

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # pyspark leaves sockets open
ENGINES = ("duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.timeout(900)]))

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "status", "type": "string"}],
}
JSON = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}, "status": {"type": "string"}}}
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string status = 2; }'
TYPES = {
    "type": "record",
    "name": "Types",
    "fields": [
        {"name": "whole", "type": "int"},
        {"name": "real", "type": "double"},
        {"name": "flag", "type": "boolean"},
        {"name": "raw", "type": "bytes"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "moment", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "list", "type": {"type": "array", "items": "int"}},
        {"name": "map", "type": {"type": "map", "values": "string"}},
        {"name": "maybe", "type": ["null", "string"]},
    ],
}
RECORD = {
    "whole": 7,
    "real": 1e10,
    "flag": True,
    "raw": b"\xff",
    "amount": Decimal("12.50"),
    "day": date(2023, 11, 14),
    "moment": datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
    "list": [1, 2],
    "map": {"a": "b"},
    "maybe": "some",
}
TEXT = "{7, 1.0E10, true, \ufffd, 12.50, 2023-11-14, 2023-11-14 22:13:20.123, [1, 2], {a -> b}, some}"
ORDERS = [{"id": number, "status": "paid" if number % 3 else "open"} for number in range(12)]
STATEMENT = """
    select decoded.value.status, count(*), min(decoded.value.id) from orders
    where decoded.value.id > 2 and offset < 10 and decoded.error is null group by 1 order by 1"""


def written(values, format: str) -> list[bytes]:
    if format == "avro":
        return [values.avro(AVRO, order) for order in ORDERS]
    if format == "json":
        return [values.json(JSON, order) for order in ORDERS]
    made = message_class(PROTO, "Order")
    return [values.protobuf(made(**order)) for order in ORDERS]


@pytest.fixture(params=ENGINES)
def ask(request):
    """Gives a statement to an engine of a store, and gives its columns and rows."""

    def cells(options, statement):
        answer = engine(options)(statement)
        found = answer.first_cells(100)
        answer.close()
        return [tuple(row) for row in found.rows]

    def engine(options):
        if request.param == "duckdb":
            from kafscale.spark.duckdb.engine import DuckDBEngine
            from kafscale.spark.sql.topics import BucketTopics

            return DuckDBEngine(topics=BucketTopics(options=options)).answer
        from kafscale.spark.sql.answers import SparkAnswer
        from kafscale.spark.sql.engine import Engine
        from kafscale.spark.sql.topics import Topics

        of_spark = Engine(topics=Topics(spark=request.getfixturevalue("spark"), options=options))
        return lambda statement: SparkAnswer(of_spark.frame(statement))

    return cells


@pytest.mark.parametrize("format", ["avro", "protobuf", "json"])
def test_values_are_columns(ask, tmp_path, format):
    with running_values() as values:
        key = SegmentKey(topic="orders", topic_id=bytes(16), partition=0, base_offset=0)
        version_2_objects(key, [make_batch(0, [*written(values, format), b"bad"])]).write_to(tmp_path)
        options = {"store": f"file:{tmp_path}", "valueFormat": format, "schemaRegistryUrl": values.registry.url}
        assert ask(options, STATEMENT) == [("open", "3", "3"), ("paid", "4", "4")]
        bad = "select _offset, decoded.error is not null as is_bad from orders where decoded.value is null"
        assert ask(options, bad) == [("12", "true")]
        assert ask(options, "select decoded from tail(orders, 2) where offset = 11") == [("{{11, paid}, null}",)]
        fields = "select decoded.value.*, orders.decoded.error, offset from orders where offset = 1"
        assert ask(options, fields) == [("1", "paid", None, "1")]
        assert ask(options, "select decoded.* from orders where offset = 1") == [("{1, paid}", None)]
        described = dict(row[:2] for row in ask(options, "describe orders"))
        assert described["decoded"] == "struct<value:struct<id:bigint,status:string>,error:string>"


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_values_are_given_to_functions_of_spark(spark, tmp_path):
    from kafscale.spark.sql.engine import Engine
    from kafscale.spark.sql.topics import Topics

    with running_values() as values:
        key = SegmentKey(topic="orders", topic_id=bytes(16), partition=0, base_offset=0)
        version_2_objects(key, [make_batch(0, written(values, "avro"))]).write_to(tmp_path)
        options = {"store": f"file:{tmp_path}", "valueFormat": "avro", "schemaRegistryUrl": values.registry.url}
        engine = Engine(topics=Topics(spark=spark, options=options))
        tail = "select json_value(to_json(decoded.value), '$.status') from tail(orders, 2) where offset = 11"
        assert [tuple(row) for row in engine.frame(tail).collect()] == [("paid",)]


def test_values_of_every_type_look_the_same(ask, tmp_path):
    with running_values() as values:
        key = SegmentKey(topic="orders", topic_id=bytes(16), partition=0, base_offset=0)
        written = [values.avro(TYPES, RECORD), values.avro(TYPES, {**RECORD, "list": [], "maybe": None})]
        version_2_objects(key, [make_batch(0, written)]).write_to(tmp_path)
        options = {"store": f"file:{tmp_path}", "valueFormat": "avro", "schemaRegistryUrl": values.registry.url}
        [first, second] = ask(options, "select decoded.value from orders order by offset")
        assert first == (TEXT,)
        assert second == (TEXT.replace("[1, 2]", "[]").replace("some", "null"),)
        columns = ", ".join(
            f"decoded.value.{name}" for name in ("whole", "real", "flag", "raw", "amount", "day", "moment")
        )
        assert ask(options, f"select {columns} from orders where offset = 0") == [
            ("7", "1.0E10", "true", "0xFF", "12.50", "2023-11-14", "2023-11-14 22:13:20.123")
        ]
