"""`kafscale pipeline` as far as it starts no Spark."""

import json
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from kafscale.cli import pipeline
from kafscale.cli.main import run
from kafscale.cli.pipeline import Terminal
from tests.cli.sql_processes import write_orders


@attrs.frozen(kw_only=True)
class Outcome:
    """As `kafscale.spark.pipeline.batch` has it, without pyspark."""

    batch: Any
    dead_letter_count: int = 0
    added_bytes: int = 0
    commit_seconds: float | None = None


TEXT = """\
source: {store: "file:/data/bucket"}
catalog: {type: hadoop, warehouse: /data/warehouse}
checkpoints: /data/checkpoints
mappings:
  - {topic: orders, table: sales.orders}
"""


def test_a_file_is_checked_without_connecting(tmp_path, capsys):
    file = tmp_path / "pipeline.yaml"
    file.write_text(TEXT)
    assert run(["pipeline", "validate", "--offline", str(file)]) == 0
    assert "a pipeline, of 1 mapping(s)" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "validate", "status", "prove", "maintain"])
def test_mistakes_in_a_file_are_reported_before_spark_starts(tmp_path, capsys, command):
    file = tmp_path / "pipeline.yaml"
    file.write_text(TEXT.replace("topic:", "topik:"))
    assert run(["pipeline", command, str(file)]) == 2
    assert "pipeline.yaml:5: mappings[0].topik: there is no such key; did you mean 'topic'?" in capsys.readouterr().err


def test_remaining_time_is_shown_from_the_second_batch_while_the_lag_shrinks(capsys):
    now = [0.0]
    terminal = Terminal(clock=lambda: now[0])
    outcome: Any = Outcome(batch=SimpleNamespace(batch_id=1), added_bytes=5, commit_seconds=0.5)
    for lag in (1000, 900, 950, 50, 0, 10_000, 9900):
        now[0] += 10.0
        terminal.batch_done("m", outcome, 100, lag)
    told = [line.partition(", lag ")[2] for line in capsys.readouterr().err.splitlines()]
    left = ["1000", "900, about 90 s left", "950", "50, about 1 s left", "0", "10000", "9900, about 16 min left"]
    assert told == left


def test_a_java_errors_root_cause_is_shown(capsys):
    """Of a metastore that lacks a call, "Failed to get table info from metastore" was all."""
    stack = """An error occurred while calling o219.tableExists.
: java.lang.RuntimeException: Failed to get table info from metastore sales.orders
\tat org.apache.iceberg.hive.HiveTableOperations.doRefresh(HiveTableOperations.java:175)
Caused by: java.lang.RuntimeException: of a client
\tat org.apache.iceberg.ClientPoolImpl.run(ClientPoolImpl.java:72)
Caused by: org.apache.thrift.TApplicationException: Invalid method name: 'get_table'
\t... 12 more
"""
    Terminal().mapping_failed("sales.orders", RuntimeError(stack))
    assert capsys.readouterr().err == (
        "sales.orders: failed: RuntimeError: An error occurred while calling o219.tableExists. "
        ": java.lang.RuntimeException: Failed to get table info from metastore sales.orders "
        "Caused by: org.apache.thrift.TApplicationException: Invalid method name: 'get_table'\n"
    )


@pytest.fixture
def simple(tmp_path, monkeypatch):
    """A pipeline whose catalog is a directory, of a topic in a bucket; Spark does not start."""

    def no_spark(*_arguments):
        raise AssertionError("Spark starts")

    monkeypatch.setattr(pipeline, "_session", no_spark)
    file = tmp_path / "pipeline.yaml"
    store = write_orders(tmp_path / "bucket")
    text = TEXT.replace("file:/data/bucket", store).replace("/data/", f"{tmp_path}/")
    file.write_text(text.replace("table: sales.orders", "table: sales.orders, dead_letters: sales.dead"))
    return file


@pytest.mark.spark
def test_validate_answers_from_files_without_spark(simple, capsys):
    """Starting Spark for it took 18 s."""
    assert run(["pipeline", "validate", "--json", str(simple)]) == 0
    assert [(each["what"], each["found"]) for each in json.loads(capsys.readouterr().out)] == [
        ("topics", "1 topic, 1 partition: orders"),
        ("columns", "value binary"),
        ("table", "will be created"),
    ]


@pytest.mark.spark
def test_status_answers_from_files_without_spark(simple, capsys):
    """Starting Spark for it took 22 s."""
    assert run(["pipeline", "status", "--json", str(simple)]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["table"], told["batch_id"], told["lag"], told["dead_letters"]) == ("sales.orders", None, 60, 0)


@pytest.mark.spark
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("type: hadoop", "type: hive, uri: 'thrift://h:1'"),
        lambda text: text.replace("type: hadoop", "type: hadoop, properties: {a: b}"),
        lambda text: text.replace("hadoop, warehouse: ", "hadoop, warehouse: hdfs://h:1"),
        lambda text: text.replace(
            "dead_letters: sales.dead", "value: {format: string, column: topic}, fan_out: {by: topic, tables: {a: a.b}}"
        ),
        lambda text: text + "spark: {spark.x: y}\n",
    ],
    ids=["another catalog", "its properties", "not of this machine", "tables by values", "settings of Spark"],
)
def test_spark_looks_where_files_do_not_tell(simple, change):
    simple.write_text(change(simple.read_text()))
    with pytest.raises(AssertionError, match="Spark starts"):
        run(["pipeline", "validate", str(simple)])


@pytest.mark.spark
def test_settings_of_spark_ask_for_spark(simple):
    with pytest.raises(AssertionError, match="Spark starts"):
        run(["pipeline", "status", "--conf", "spark.x=y", str(simple)])


def test_a_file_is_checked_as_json_too(simple, capsys):
    assert run(["pipeline", "validate", "--offline", "--json", str(simple)]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["mapping"], told["what"], told["ok"]) == ("sales.orders", "file", True)
