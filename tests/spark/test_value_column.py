"""`valueFormat` of the data source: the column `decoded` of batches and streams, in every format."""

import json

import pytest

import kafscale.spark
from kafscale.store.paths import SegmentKey
from tests.devtools.external.registry import message_class
from tests.devtools.fakes.segment_objects import make_batch, version_2_objects

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

OLDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
TIME = {"type": "long", "logicalType": "timestamp-millis"}
NEWER = {
    **OLDER,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": ["null", TIME], "default": None},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}, "default": {}},
    ],
}
PROTO = """syntax = "proto3"; import "google/protobuf/duration.proto"; import "google/protobuf/timestamp.proto";
message Order { uint64 id = 1; repeated Item items = 2; google.protobuf.Duration took = 3;
  google.protobuf.Timestamp at = 4; }
message Item { string sku = 1; }"""
JSON = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}, "free": {}}}


class Topics:
    """A bucket without a broker."""

    def __init__(self, spark, directory, values) -> None:
        self.spark, self.directory = spark, directory
        self.options = {"store": f"file:{directory}", "schemaRegistryUrl": values.registry.url}

    def put(self, topic: str, values: list[bytes], *, base_offset: int = 0) -> None:
        key = SegmentKey(topic=topic, topic_id=bytes(16), partition=0, base_offset=base_offset)
        version_2_objects(key, [make_batch(base_offset, values)]).write_to(self.directory)

    def reader(self, format: str, *, stream: bool = False, **options: str):
        reader = self.spark.readStream if stream else self.spark.read
        return reader.format("kafscale").options(**self.options, valueFormat=format, **options)


@pytest.fixture
def topics(spark, tmp_path, values):
    return Topics(spark, tmp_path / "bucket", values)


def test_avro_of_two_versions_and_bad_values(topics, values):
    from pyspark.sql import Observation

    older = [values.avro(OLDER, {"id": number}, topic="avro") for number in range(3)]
    row = {"id": 2**40, "at": 1_700_000_000_000, "tags": {"a": ["x", "y"]}}
    newer = values.avro(NEWER, row, topic="avro")
    topics.put("avro", [*older, newer, b"garbage", newer[:-2], b"\0\0\1\0\0unknown"])
    frame = topics.reader("avro", subscribe="avro").load()
    assert frame.columns[-2:] == ["timestampType", "decoded"]
    assert dict(frame.dtypes)["value"] == "binary"
    kind = "struct<value:struct<id:bigint,at:timestamp,tags:map<string,array<string>>>,error:string>"
    assert dict(frame.dtypes)["decoded"] == kind
    observation = Observation("values")
    good, bad = kafscale.spark.split_values(
        kafscale.spark.count_values(frame, "decoded", observation).cache(), "decoded"
    )
    found = [(one.offset, one.decoded.id, one.decoded.tags) for one in good.collect()]
    assert found == [(0, 0, {}), (1, 1, {}), (2, 2, {}), (3, 2**40, {"a": ["x", "y"]})]
    assert good.selectExpr("unix_millis(decoded.at)").collect()[3][0] == 1_700_000_000_000
    assert [(one.offset, one.value) for one in bad.select("offset", "value").collect()] == [
        (4, b"garbage"),
        (5, newer[:-2]),
        (6, b"\0\0\1\0\0unknown"),
    ]
    texts = [one.decoded for one in bad.collect()]
    assert all(texts)
    assert "not 0" in texts[0]
    assert "no schema 65536" in texts[2]
    assert observation.get == {"value_count": 7, "dead_letter_count": 3}


def test_protobuf(topics, values):
    made = message_class(PROTO, "Order")
    order = made(id=2**64 - 1, items=[{"sku": "a"}, {"sku": "b"}])
    order.took.seconds, order.at.seconds = 3, 1_700_000_000
    topics.put("proto", [values.protobuf(order, topic="proto"), values.protobuf(made(), topic="proto")])
    frame = topics.reader("protobuf", subscribe="proto", valueMessage="Order").load()
    columns = ("id", "items.sku", "took", "unix_seconds(decoded.value.at) AS at")
    found = frame.selectExpr(*(name if "(" in name else f"decoded.value.{name}" for name in columns)).collect()
    assert (int(found[0].id), found[0].sku, found[0].took.seconds, found[0].at) == (
        2**64 - 1,
        ["a", "b"],
        3,
        1_700_000_000,
    )
    assert (int(found[1].id), found[1].sku, found[1].took) == (0, [], None)


def test_json_by_a_schema_that_is_given_for_several_topics(topics, values):
    for topic in ("json1", "json2"):
        topics.put(topic, [values.json(JSON, {"id": 1, "free": [1]}, topic=topic)])
    topics.put("json3", [values.json({**JSON, "title": "Other"}, {"id": 2}, topic="json3"), b""])
    frame = topics.reader("json", subscribePattern="json.", valueSchema=json.dumps(JSON)).load()
    found = frame.selectExpr("topic", "decoded.value.*", "decoded.error").orderBy("topic", "offset").collect()
    assert [(one.topic, one.id, one.free) for one in found] == [
        ("json1", 1, "[1]"),
        ("json2", 1, "[1]"),
        ("json3", 2, None),
        ("json3", None, None),
    ]
    assert "too few" in found[-1].error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a,b"}, "one schema, and a, b may have many: say which by valueSubject"),
        ({"subscribePattern": "a.*"}, "a pattern may have many"),
        ({"assign": '{"a":[0],"b":[1]}'}, "a, b may have many"),
        ({"subscribe": "none"}, "none-value"),
    ],
)
def test_topics_without_one_subject(topics, options, message):
    with pytest.raises(Exception, match=message):
        topics.reader("avro", **options).load()


def test_a_schema_without_the_column_decodes_nothing(topics, values):
    topics.put("pruned", [values.avro(OLDER, {"id": 1}, topic="pruned")])
    values.registry.requests.clear()
    found = topics.reader("avro", subscribe="pruned").schema("offset LONG, value BINARY").load()
    assert len(found.first().value) == 6
    assert not values.registry.requests
    kind = "decoded STRUCT<value: STRUCT<id: INT>, error: STRING>"
    reader = topics.reader("avro", subscribe="pruned").schema(f"{kind}, offset LONG")
    assert reader.load().selectExpr("decoded.value.id", "offset").collect() == [(1, 0)]
    with pytest.raises(Exception, match="decoded struct<value:struct<id:int>,error:string>"):
        topics.reader("avro", subscribe="pruned").schema("decoded STRING").load().count()
    plain = topics.spark.read.format("kafscale").options(store=topics.options["store"], subscribe="pruned")
    with pytest.raises(Exception, match="only with the option valueFormat"):
        plain.schema("decoded STRING").load().count()


def test_a_loaded_frame_keeps_its_columns_when_a_newer_schema_arrives(topics, values):
    topics.put("evolving", [values.avro(OLDER, {"id": 1}, topic="evolving")])
    frame = topics.reader("avro", subscribe="evolving").load()
    topics.put("evolving", [values.avro(NEWER, {"id": 2}, topic="evolving")], base_offset=1)
    found = frame.selectExpr("decoded.value", "decoded.error").collect()
    assert found[0].value.asDict() == {"id": 1}
    assert "long" in found[1].error  # Avro lets no long be read as an int
    later = topics.reader("avro", subscribe="evolving").load().selectExpr("decoded.value.id", "decoded.error")
    assert later.collect() == [(1, None), (2, None)]


def test_a_registry_that_is_down_fails_the_query(topics, values):
    unseen = {**OLDER, "name": "Unseen"}  # by the workers, which keep the schemas that they have met
    topics.put("down", [values.avro(unseen, {"id": 1}, topic="down")])
    frame = topics.reader("avro", subscribe="down").load()
    values.registry.failures = [503] * 100
    try:
        with pytest.raises(Exception, match="no schema registry answers"):
            frame.collect()
    finally:
        values.registry.failures = []


def test_a_stream(topics, values, tmp_path):
    topics.put("streamed", [values.avro(OLDER, {"id": number}, topic="streamed") for number in range(3)])
    frame = topics.reader("avro", stream=True, subscribe="streamed", startingOffsets="earliest").load()
    good, _ = kafscale.spark.split_values(frame, "decoded")
    output = {"path": str(tmp_path / "output"), "checkpointLocation": str(tmp_path / "checkpoint")}
    query = good.select("offset", "decoded.id").writeStream.format("parquet").options(**output).start()
    query.processAllAvailable()
    topics.put("streamed", [b"bad", values.avro(NEWER, {"id": 7}, topic="streamed")], base_offset=3)
    query.processAllAvailable()
    query.stop()
    found = topics.spark.read.parquet(output["path"]).orderBy("offset").collect()
    assert found == [(0, 0), (1, 1), (2, 2)]
