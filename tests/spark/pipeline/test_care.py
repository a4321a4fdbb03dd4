"""Status and validation of tables that a pipeline keeps, and all columns that they can have."""

import json

import attrs
import pytest

from kafscale.testing.certificates import make_authority
from tests.devtools.external.registry import Registry, prefixed, running_registry, running_values

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
WIDER_ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}


def test_status_tells_how_far_each_mapping_is(lake, topic, produce):
    from kafscale.spark.pipeline.inspection import DirectoryTables, SparkTables, status

    first = f"\n- {{topic: {topic}, table: db.{topic}, value: {{format: string}}, dead_letters: db.{topic}_dead}}"
    second = f"\n- {{topic: {topic}, table: db.{topic}_later}}"
    produce(topic, [(0, None, b"good"), (0, None, b"\xff"), (1, None, b"good")])
    lake.run(first)
    produce(topic, [(0, None, b"more")])
    pipeline = lake.pipeline(first + second)
    now, later = found = status(SparkTables(lake.spark, pipeline), pipeline)
    directory = DirectoryTables.of(pipeline)
    assert directory is not None
    assert list(map(timeless, status(directory, pipeline))) == list(map(timeless, found))
    assert (now.batch_id, now.offsets, now.lag, now.dead_letters) == (0, {topic: {"0": 2, "1": 1}}, 1, 1)
    assert now.committed_ms is not None
    assert (later.batch_id, later.offsets, later.lag, later.snapshot_id) == (None, {}, 4, None)


def timeless(status):
    """The status without the age of the lag, which two looks do not share."""
    return attrs.evolve(status, lag_seconds=0.0)


SIMPLE = """
- topic: {topic}
  table: db.{topic}_all
  value:
    format: json
    columns:
      - {{name: id, type: int, required: true}}
      - {{name: big, type: LONG}}
      - {{name: ok, type: boolean}}
      - {{name: ratio, type: double}}
      - {{name: small, type: float}}
      - {{name: at, type: timestamp}}
      - {{name: day, type: date}}
      - {{name: raw, type: binary}}
      - {{name: price, type: "decimal(10, 2)"}}
  key: {{format: string, column: room}}
  metadata: [topic, partition, offset, timestamp, timestamp_ms, timestamp_type, record_id, headers, headers_json]
- topic: {topic}
  table: db.{topic}_upsert
  mode: upsert
  deletes: mark
  key: {{format: string}}
  value: {{format: string, column: text}}
- {{topic: {topic}, table: db.{topic}_bytes, metadata: {{raw_key: key}}}}
- {{topic: {topic}, table: db.{topic}_given, create: false}}
- {{topic: never-produced, table: db.never}}
"""


def test_checks_from_files_equal_checks_by_spark(lake, topic, produce):
    """validate took 18 s and status 22 s, most of it for Spark, which they do not need."""
    from kafscale.spark.pipeline.inspection import DirectoryTables, SparkTables, check

    produce(topic, [(0, b"attic", b'{"id": 1, "big": 2}')])
    text = SIMPLE.format(topic=topic)
    pipeline = lake.pipeline(text)
    directory = DirectoryTables.of(pipeline)
    assert directory is not None
    by_spark, by_files = SparkTables(lake.spark, pipeline), directory
    for run_first in (False, True):
        if run_first:
            lake.run(text.partition(f"- {{topic: {topic}, table: db.{topic}_given")[0])
        assert list(check(by_files, pipeline)) == list(check(by_spark, pipeline))
        for mapping in pipeline.mappings:
            assert by_files.columns(mapping) == by_spark.columns(mapping)
            assert by_files.exists(mapping.table) == by_spark.exists(mapping.table)
    for mapping in pipeline.mappings[:3]:
        assert by_files.schema(mapping.table) == by_spark.schema(mapping.table)


def test_validation_reports_missing_topics_and_tables_and_writes_nothing(lake, topic, produce):
    from kafscale.spark.pipeline.inspection import SparkTables, check

    produce(topic, [(0, None, b"v")])
    mappings = f"""
- {{topic: {topic}, table: db.{topic}}}
- {{topic: never-produced, table: db.never}}
- {{topic: {topic}, table: db.{topic}_given, create: false}}
"""
    checks = {
        (each.mapping, each.what): each
        for each in check(SparkTables(lake.spark, lake.pipeline(mappings)), lake.pipeline(mappings))
    }
    assert checks[f"db.{topic}", "columns"].found == "value binary"
    assert checks[f"db.{topic}", "table"].found == "will be created"
    assert not checks["db.never", "topics"].ok
    assert "no segment of topic 'never-produced'" in checks["db.never", "topics"].found
    assert not checks[f"db.{topic}_given", "table"].ok
    assert not lake.spark.catalog.tableExists(f"lake.db.{topic}")


def test_a_new_schema_version_of_a_subject_alters_the_table(lake, topic, produce):
    with running_values() as values:
        more = f'registry: {{url: "{values.registry.url}"}}'
        mapping = f"- {{topic: {topic}, table: db.{topic}, value: {{format: avro}}, metadata: [offset]}}"
        produce(topic, [(0, None, values.avro(ORDER, {"id": 1}, topic=topic))])
        lake.run(mapping, more)
        produce(topic, [(0, None, values.avro(WIDER_ORDER, {"id": 1 << 40, "note": "n"}, topic=topic))])
        lake.run(mapping, more)
    assert lake.rows(f"db.{topic}", "offset, id, note") == [(0, 1, None), (1, 1 << 40, "n")]


def test_a_registry_with_tls_and_a_hidden_password(lake, topic, produce, tmp_path, capfd):
    authority = make_authority(tmp_path)
    with running_registry(Registry(basic_auth="me:hidden"), authority.issue("registry").server_context()) as registry:
        schema_id = registry.register(f"{topic}-value", json.dumps(ORDER))
        file = tmp_path / "registry.properties"
        file.write_text(f"basic.auth.user.info=me:hidden\nssl.ca.location={authority.ca_file}\n")
        mapping = f"- {{topic: {topic}, table: db.{topic}, value: {{format: avro}}}}"
        produce(topic, [(0, None, prefixed(schema_id, b"\x02"))])
        lake.run(mapping, f'registry: {{url: "{registry.url}", config_file: "{file}"}}')
        assert lake.rows(f"db.{topic}", "id") == [(1,)]
        file.write_text(f"basic.auth.user.info=me:hidden-and-wrong\nssl.ca.location={authority.ca_file}\n")
        with pytest.raises(Exception, match="check basic auth or bearer token") as caught:
            lake.run(mapping, f'registry: {{url: "{registry.url}", config_file: "{file}"}}')
    executions = lake.spark._jsparkSession.sharedState().statusStore().executionsList()
    plans = [executions.apply(index).physicalPlanDescription() for index in range(executions.size())]
    assert plans
    assert "hidden" not in "".join([*plans, str(caught.value), *capfd.readouterr()])


def test_rows_of_go_processors_columns_can_be_had(lake, topic, produce):
    """All columns that KafScale's Iceberg processor in Go writes, and the partitions and the order of a table."""
    produce(topic, [(1, b"k", b'{"status": "new"}')])
    mapping = f"""
- topic: {topic}
  table: db.{topic}
  value: {{format: json, columns: [{{name: status, type: string}}, {{name: paid, type: boolean}}]}}
  metadata: {{record_id: record_id, topic: topic, partition: partition, offset: offset, timestamp_ms: timestamp_ms,
              key: key, value: value, headers: headers_json, at: timestamp}}
  partition_by: [days(at), "bucket(4, status)"]
  sort_by: [offset desc]
"""
    lake.run(mapping)
    columns = "record_id, topic, partition, offset, CAST(key AS STRING), CAST(value AS STRING), headers, status, paid"
    assert lake.rows(f"db.{topic}", columns) == [
        (f"{topic}:1:0", topic, 1, 0, "k", '{"status": "new"}', None, "new", None)
    ]
    assert lake.rows(f"db.{topic}", "timestamp_ms - unix_millis(at)") == [(0,)]
    described = {row[0]: row[1] for row in lake.spark.sql(f"DESCRIBE EXTENDED lake.db.{topic}").collect()}
    assert described["Part 0"] == "days(at)"
    assert described["Part 1"] == "bucket(4, status)"
    assert "sort-order=offset DESC" in json.dumps(described)
