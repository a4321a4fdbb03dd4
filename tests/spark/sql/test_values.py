"""Values of a schema registry, as columns of a statement: in WHERE, in GROUP BY, and beside a topic without them."""

import pytest

from kafscale.store.paths import SegmentKey
from tests.devtools.registry_values import message_class, running_values
from tests.devtools.segment_objects import make_batch, version_2_objects

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "status", "type": "string"}],
}
JSON = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}, "status": {"type": "string"}}}
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string status = 2; }'
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


@pytest.mark.parametrize("format", ["avro", "protobuf", "json"])
def test_values_are_columns(spark, tmp_path, format):
    from kafscale.spark.sql.engine import Engine
    from kafscale.spark.sql.topics import Topics

    with running_values() as values:
        key = SegmentKey(topic="orders", topic_id=bytes(16), partition=0, base_offset=0)
        version_2_objects(key, [make_batch(0, [*written(values, format), b"bad"])]).write_to(tmp_path)
        options = {"store": f"file:{tmp_path}", "valueFormat": format, "schemaRegistryUrl": values.registry.url}
        engine = Engine(topics=Topics(spark=spark, options=options))
        assert [tuple(row) for row in engine.frame(STATEMENT).collect()] == [("open", 3, 3), ("paid", 4, 4)]
        bad = "select _offset, decoded.error is not null as is_bad from orders where decoded.value is null"
        assert [tuple(row) for row in engine.frame(bad).collect()] == [(12, True)]
        tail = "select json_value(to_json(decoded.value), '$.status') from tail(orders, 2) where offset = 11"
        assert [tuple(row) for row in engine.frame(tail).collect()] == [("paid",)]
