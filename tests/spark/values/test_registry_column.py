"""`from_registry` in Spark: values of all formats, bad ones among them, to rows, dead letters and counts."""

import json
from datetime import datetime

import pytest

import kafscale.spark
from tests.devtools.external.registry import message_class

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
    pytest.mark.timeout(300),
]

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "seen", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {"name": "note", "type": ["null", "string"]},
    ],
}
PROTO = """syntax = "proto3"; import "google/protobuf/duration.proto";
message Order { uint64 id = 1; repeated Item items = 2; google.protobuf.Duration took = 3; }
message Item { string sku = 1; }"""
JSON = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}, "free": {}}}


def test_a_frame_is_decoded_split_and_counted(spark, values):
    from pyspark.sql import Observation

    noon = datetime(2024, 5, 6, 12)
    row = {"id": 1, "at": noon, "seen": noon, "tags": {"a": ["x", "y"]}, "note": None}
    older = {**AVRO, "fields": [field for field in AVRO["fields"] if field["name"] != "note"]}
    reader = json.loads(json.dumps(AVRO))
    reader["fields"][-1]["default"] = None
    good = [values.avro(older, row, topic="avro"), values.avro(AVRO, {**row, "note": "n"}, topic="avro")]
    frame = spark.createDataFrame([(value,) for value in [*good, b"garbage", None, good[0][:-2]]], "value binary")
    column = kafscale.spark.from_registry("value", values.registry.url, schema=json.dumps(reader), format="avro")
    observation = Observation("values")
    counted = kafscale.spark.count_values(frame.withColumn("decoded", column), "decoded", observation)
    rows, dead_letters = kafscale.spark.split_values(counted.cache(), "decoded")
    notes = [one.decoded and one.decoded.note for one in rows.collect()]
    first = rows.first().decoded
    assert notes == [None, "n", None]
    assert (first.id, first.seen, first.tags) == (1, noon, {"a": ["x", "y"]})
    assert [one.value[:5] for one in dead_letters.collect()] == [b"garba", good[0][:5]]
    assert all(one.decoded for one in dead_letters.collect())
    assert observation.get == {"value_count": 5, "dead_letter_count": 2}
    assert rows.select("decoded.at").dtypes == [("at", "timestamp")]
    assert rows.select("decoded.seen").dtypes == [("seen", "timestamp_ntz")]


def test_protobuf_and_json_are_decoded_by_the_newest_schema_of_their_subject(spark, values):
    order = message_class(PROTO, "Order")(id=2**64 - 1, items=[{"sku": "a"}, {"sku": "b"}])
    order.took.seconds = 3
    written = [(values.protobuf(order, topic="proto"), values.json(JSON, {"id": 1, "free": [1]}, topic="json"))]
    frame = spark.createDataFrame(written, "proto binary, json binary")
    url = values.registry.url
    decoded = frame.select(
        kafscale.spark.from_registry("proto", url, subject="proto-value").alias("proto"),
        kafscale.spark.from_registry("json", url, subject="json-value").alias("json"),
    )
    selected = decoded.selectExpr("proto.value.id", "proto.value.items.sku", "proto.value.took", "json.value")
    (row,) = selected.collect()
    assert (int(row.id), row.sku, row.took.total_seconds()) == (2**64 - 1, ["a", "b"], 3.0)
    assert row.value.asDict() == {"id": 1, "free": "[1]"}


def test_a_registry_that_is_down_fails_the_query(spark, values):
    value = values.avro(AVRO, {"id": 1, "at": 0, "seen": 0, "tags": {}, "note": None}, topic="down")
    column = kafscale.spark.from_registry("value", values.registry.url, subject="down-value")
    values.registry.failures = [503] * 100
    frame = spark.createDataFrame([(value,)], "value binary")
    with pytest.raises(Exception, match="no schema registry answers"):
        frame.select(column.alias("decoded")).collect()
    values.registry.failures = []
