"""A pipeline's YAML: what it becomes, and the line and key of what is wrong in it."""

import pytest

from kafscale.errors import ConfigError
from kafscale.spark.pipeline.config import Pipeline, partition_transform, sort_order
from kafscale.spark.pipeline.document import parse_pipeline, read_pipeline

TEXT = """\
source:
  store: file:/data/bucket
catalog:
  {type: hadoop, warehouse: /data/warehouse}
checkpoints: /data/checkpoints
mappings:
  - topic: orders
    table: sales.orders
    value:
      format: json
      columns:
        - {name: id, type: long, required: true}
    metadata: [partition, offset]
    partition_by: [days(timestamp), "bucket(16, id)"]
  - pattern: "log-.*"
    table: ops.logs
    mode: upsert
    key: {format: string, column: host}
"""


def parse(text: str, **environment: str) -> Pipeline:
    return parse_pipeline(text, "p.yaml", environment)


def test_all_parts_of_a_pipeline_are_read():
    pipeline = parse(TEXT)
    orders, logs = pipeline.mappings
    assert orders.id == "sales.orders"
    assert orders.value.columns[0].required
    assert orders.subscription == {"subscribe": "orders"}
    assert orders.metadata_columns == {"partition": "partition", "offset": "offset"}
    assert logs.subscription == {"subscribePattern": "log-.*"}
    assert logs.key is not None
    assert pipeline.full_name("sales.orders") == "`lake`.`sales`.`orders`"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("format: json", "format: jsn", "p.yaml:10: mappings[0].value.format: 'jsn' is not one of bytes, string"),
        ("table: sales", "tabel: sales", "p.yaml:8: mappings[0].tabel: there is no such key; did you mean 'table'?"),
        ("long", "loong", "p.yaml:12: mappings[0].value.columns[0].type: 'loong' is not one of boolean"),
        ("required: true", "required: 1", "p.yaml:12: mappings[0].value.columns[0].required: is true or false, not 1"),
        ("/data/checkpoints", "5", "p.yaml:5: checkpoints: is text, not a number; put it in quotes"),
        ("checkpoints: /data/checkpoints\n", "", "p.yaml:1: checkpoints: is missing"),
        (
            "[days(timestamp)",
            "[dys(timestamp)",
            "p.yaml:14: mappings[0].partition_by: 'dys(timestamp)' is not a partition",
        ),
        ("file:/data", "fle:/data", "p.yaml:2: source.store: 'fle:/data/bucket' is not a store"),
        (
            "type: hadoop",
            "type: nessie",
            "p.yaml:3: catalog: a catalog's type is one of hadoop, jdbc, rest, hive, glue, delta, not 'nessie'",
        ),
        ("[partition, offset]", "{at: ofset}", "p.yaml:13: mappings[0].metadata: there is no metadata 'ofset'"),
        ("log-.*", "log-(", "p.yaml:15: mappings[1].pattern: "),
        ("topic: orders", "topic: {a", "p.yaml:8: "),
        (
            "sales.orders",
            "orders",
            "p.yaml:8: mappings[0].table: 'orders' is not the name of a table with its namespace",
        ),
        ("    key: {format: string, column: host}\n", "", "p.yaml:15: mappings[1]: the mode upsert needs a key"),
        ("ops.logs", "sales.orders", "p.yaml:1: two mappings have the name 'sales.orders'"),
        ("{format: string,", "{format: avro, subject: s,", "p.yaml:1: the mapping 'ops.logs' needs a registry"),
        ("{format: string,", "{format: avro,", "p.yaml:15: mappings[1]: key needs a subject"),
        ("mode: upsert", "mode: upsert\n    mode: append", "p.yaml:18: mappings[1].mode: is there twice"),
        ("file:/data", "${BUCKET}/data", "p.yaml:2: source.store: the environment has no variable BUCKET"),
        (
            "mappings:",
            "maintenance: {orphans_after: 1h}\nmappings:",
            "p.yaml:6: maintenance.orphans_after: '1h' is less than a day",
        ),
        ("mappings:", "mappings: 3\nx:", "p.yaml:6: mappings: is a list, not a number"),
        # these ended with a traceback
        ("source:\n  store: file", "source: file", "p.yaml:1: source: is a mapping of keys, not text; there are: sto"),
        ("{type: hadoop, warehouse: /data/warehouse}", "", "p.yaml:3: catalog: is a mapping of keys, not nothing; th"),
        ("- topic: orders", "- orders\n  - topic: orders", "p.yaml:7: mappings[0]: is a mapping of keys, not text; th"),
        ("topic: orders", "topic: 2026-02-31", "p.yaml:7: mappings[0].topic: is not a value of YAML: day"),
        ("topic: orders", "topic: !!int orders", "p.yaml:7: mappings[0].topic: is not a value of YAML: invalid"),
        ("topic: orders", "topic: !Orders", "p.yaml:7: could not determine a constructor for the tag '!Orders'"),
        ("topic: orders", "topic: \a", "p.yaml:7: the character '\\x07' can't be in it"),
        ("topic: orders", "topic: &it [*it]", "p.yaml:1: it is nested too deep, or in itself"),
    ],
)
def test_mistakes_are_reported_with_line_and_key(old, new, told):
    assert old in TEXT
    with pytest.raises(ConfigError) as caught:
        parse(TEXT.replace(old, new, 1))
    assert str(caught.value).startswith(told)


def test_secrets_come_from_the_environment():
    text = TEXT.replace("warehouse: /data/warehouse", 'warehouse: /w, password: "${SECRET}!"')
    assert parse(text, SECRET="s").catalog.password == "s!"
    assert "s!" not in repr(parse(text, SECRET="s"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("warehouse: /data/warehouse", "warehouse: /w, password: 1234567"),
        ("hadoop, warehouse: /data/warehouse", "jdbc, warehouse: /w, uri: 'jdbc:mysql://h/?password=1234567'"),
        ("  store: file:/data/bucket", "  store: file:/data/bucket\n  options: '1234567'"),
        ("mappings:", "registry: {url: 'http://h', basic_auth: [1234567]}\nmappings:"),
    ],
)
def test_secrets_of_the_wrong_kind_were_repeated_in_errors(old, new):
    with pytest.raises(ConfigError, match=r"is text, not|is a mapping of names|begins with") as caught:
        parse(TEXT.replace(old, new, 1))
    assert "1234567" not in str(caught.value)


def test_a_missing_pipeline_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml can't be read"):
        read_pipeline(tmp_path / "none.yaml")


def test_transforms_and_sort_keys_become_sql():
    assert partition_transform("days(timestamp)") == "days(`timestamp`)"
    assert partition_transform("bucket( 16 , a.b)") == "bucket(16, `a`.`b`)"
    assert partition_transform("region") == "`region`"
    assert sort_order("at desc nulls last") == "`at` DESC NULLS LAST"
    assert sort_order("at") == "`at` ASC"


def test_a_pipelines_repr_shows_no_secrets():
    """Which logs and errors may have; values of the environment are as secret as those in the file."""
    options = "  options: {s3SecretAccessKey: hidden1}\n"
    text = TEXT.replace("  store: file:/data/bucket\n", f"  store: s3://bucket\n{options}")
    text += """
registry: {url: "https://registry", basic_auth: "me:${PASSWORD}", config_file: /etc/registry.properties}
spark: {spark.hadoop.fs.s3a.secret.key: hidden2}
"""
    pipeline = parse(text, PASSWORD="hidden3")
    assert pipeline.registry is not None
    assert pipeline.registry.basic_auth == "me:hidden3"
    assert "/etc/registry.properties" in repr(pipeline)
    assert "hidden" not in repr(pipeline)


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ("value: {format: string, envelope: debezium}", "the format string has no changes of Debezium"),
        ("value: {format: string, envelope: payload}", "the envelope payload is for the format json"),
        ("value: {format: json, envelope: confluent}", "'confluent' is not one of debezium, payload"),
        (
            "value: {format: json, envelope: debezium, columns: [{name: payload, type: int}]}",
            "with an envelope no column is called payload",
        ),
        (
            "key: {format: json, envelope: debezium, columns: [{name: a, type: int}]}",
            "the envelope debezium is of values",
        ),
        (
            "key: {format: json, envelope: unwrapped, columns: [{name: a, type: int}]}",
            "the envelope unwrapped is of values",
        ),
        ("value: {format: string, envelope: unwrapped}", "the format string has no changes of Debezium"),
        (
            "value: {format: json, envelope: unwrapped, columns: [{name: __op, type: string}]}",
            "with the envelope unwrapped __op is not a column",
        ),
        ("metadata: [op]", "the metadata op is there with value: {envelope: debezium} (or unwrapped) alone"),
        ("deletes: mark", "deletes: mark is for the mode upsert"),
        ("mode: upsert, upsert_by: [a], deletes: drop", "'drop' is not one of delete, mark, keep"),
    ],
)
def test_contradicting_envelopes_and_deletes_are_reported(mapping, told):
    text = "source: {store: 'file:/b'}\ncatalog: {type: hadoop, warehouse: /w}\ncheckpoints: /c\nmappings:\n"
    with pytest.raises(ConfigError) as caught:
        parse(f"{text}- {{topic: t, table: a.b, {mapping}}}")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("fan_out", "told"),
    [
        ("{by: kind}", "needs tables, or create"),
        ("{by: kind, tables: {a: b}}", "'b' is not the name of a table"),
        ("{by: kind, tables: {a: sales.orders}}", "the table sales.orders of its own mapping"),
        ("{by: kind, create: sales.all}", "not the name of tables"),
        ('{by: kind, create: "sales.of_{value}", others: drop}', "'drop' is not one of table, dead_letter"),
        ('{by: kind, create: "sales.of_{value}", max_tables: 0}', "is at least 1"),
        ('{by: kind, create: "sales.of_{value}"}\n    create: false', "and create is off"),
    ],
)
def test_mistakes_in_a_fan_out_are_reported(fan_out, told):
    text = TEXT.replace("    metadata: [partition, offset]\n", f"    fan_out: {fan_out}\n", 1)
    with pytest.raises(ConfigError, match=told):
        parse(text)
