"""`kafscale pipeline` as far as it starts no Spark."""

from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from kafscale.cli.main import run
from kafscale.cli.pipeline import Terminal


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
def test_what_is_wrong_in_a_file_is_told_before_spark_starts(tmp_path, capsys, command):
    file = tmp_path / "pipeline.yaml"
    file.write_text(TEXT.replace("topic:", "topik:"))
    assert run(["pipeline", command, str(file)]) == 2
    assert "pipeline.yaml:5: mappings[0].topik: there is no such key; did you mean 'topic'?" in capsys.readouterr().err


def test_how_long_the_rest_takes_is_told_from_the_second_batch_on_where_it_gets_less(capsys):
    now = [0.0]
    terminal = Terminal(clock=lambda: now[0])
    outcome: Any = Outcome(batch=SimpleNamespace(batch_id=1), added_bytes=5, commit_seconds=0.5)
    for lag in (1000, 900, 950, 50, 0, 10_000, 9900):
        now[0] += 10.0
        terminal.batch_done("m", outcome, 100, lag)
    told = [line.partition(", lag ")[2] for line in capsys.readouterr().err.splitlines()]
    left = ["1000", "900, about 90 s left", "950", "50, about 1 s left", "0", "10000", "9900, about 16 min left"]
    assert told == left


def test_the_root_of_a_java_error_was_not_told(capsys):
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
