"""`kafscale sql`: what is wrong is told before an engine starts; and runs of it as users run it, by each engine."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kafscale.cli.main import run
from kafscale.cli.output import READING_MIN_BYTES, reading
from kafscale.cli.reference import sql_page
from kafscale.cli.sql import parse_catalog
from kafscale.config import load
from kafscale.extras import install_command
from tests.cli.sql_processes import kafscale_sql, told, write_orders

ENGINES = ("duckdb", "auto", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.timeout(900)]))
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sql-options.md"


def test_the_options_page_matches_the_generated_page():
    assert PAGE.read_text() == sql_page()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--format", "parquet", "select 1"], "--format: 'parquet' needs --output DIRECTORY"),
        (["select 1", "--value-format", "avro"], "--value-format and --registry belong together"),
        (["--catalog", "lake", "select 1"], "'lake' is not a setting of a catalog"),
        (["--catalog", "type=rest,tokken=hidden", "select 1"], "'tokken' is not a setting of a catalog"),
        (["--catalog", "name=lake,warehouse=/x", "select 1"], "has no type"),
        (["--catalog", "type=hadoop", "select 1"], "needs a warehouse"),
        (["--max-scan-bytes", "much", "select 1"], "'much' is not a size"),
        (["--engine", "sqlite", "select 1"], "'sqlite' is not one of 'auto', 'spark', 'duckdb'"),
        (["--engine", "duckdb", "--conf", "spark.x=1", "select 1"], "--conf is for Spark only"),
        (["--engine", "duckdb", "--master", "spark://h:7077", "select 1"], "--master is for Spark only"),
        (["--store", "nowhere", "select 1"], "--store: 'nowhere'"),
    ],
)
def test_a_wrong_option_is_one_line(capsys, arguments, told):
    assert run(["sql", *arguments]) == 2
    written = capsys.readouterr().err
    assert told in written
    assert written.count("\n") == 1
    assert "hidden" not in written


def test_the_help_is_that_of_queries(capsys):
    assert run(["sql", "--help"]) == 0
    assert "--max-scan-bytes" in capsys.readouterr().out


def test_a_catalog_by_its_settings():
    catalog = parse_catalog("name=lake, type=jdbc,uri=jdbc:sqlite:/data/c.db,warehouse=/data/w,s3-path-style=true")
    assert (catalog.name, catalog.type, catalog.warehouse) == ("lake", "jdbc", "/data/w")
    assert catalog.uri == "jdbc:sqlite:/data/c.db"
    assert catalog.s3_path_style is True


def test_statements_that_are_not_utf_8_are_a_one_line_error(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"select \xff"), "utf-8"))
    assert run(["sql", "--store", f"file:{tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("kafscale: standard input is not UTF-8: 'utf-8' codec can't decode byte 0xff")


def test_sql_command_variables_are_not_broker_settings():
    assert load({}, {"KAFSCALE_SQL_FORMAT": "json"}).sources == {}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    return write_orders(tmp_path_factory.mktemp("bucket"))


@pytest.mark.parametrize("engine", ENGINES)
def test_statements_from_the_command_line(store, tmp_path, engine):
    done = kafscale_sql(
        "show topics; show partitions from orders; select max(offset) as last from orders",
        "--store",
        store,
        "--output",
        str(tmp_path / "rows"),
        KAFSCALE_SQL_FORMAT="json",
        KAFSCALE_SQL_ENGINE=engine,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("kafscale:")]
    why = "as this reads 0 bytes and no more than 268,435,456 (--duckdb-max-bytes)"
    assert said == ([f"kafscale: DuckDB answers, {why}"] if engine == "auto" else [])
    topics, partitions, last = map(json.loads, (tmp_path / "rows").read_text().splitlines())
    assert topics == {"topic": "orders"}
    assert partitions.pop("bytes") > 0
    assert partitions == {"partition": 0, "start_offset": 0, "end_offset": 60, "segments": 2}
    assert last == {"last": 59}


@pytest.mark.parametrize("engine", ENGINES)
def test_statements_from_standard_input_up_to_the_first_that_fails(store, engine):
    statements = "select offset from orders\n where offset in (7, 42) order by 1; select * from ordrs; select 1"
    done = kafscale_sql("--store", store, "--max-rows", "1", "--engine", engine, stdin=statements)
    assert done.stdout == "offset\n7\n"
    said = [line for line in done.stderr.splitlines() if line.startswith("kafscale: ")]
    first, second = said[engine == "auto" :]
    assert first == "kafscale: showing the first 1 rows; --max-rows shows more"
    assert second.startswith("kafscale: there is no topic, table or view 'ordrs' (topics: orders).")
    assert done.returncode == 1


def test_the_sql_command_takes_the_json_flag(store, capsys, monkeypatch):
    """It was refused here alone."""
    monkeypatch.setenv("KAFSCALE_SQL_FORMAT", "csv")
    query = ["sql", "select max(offset) as last from orders", "--store", store, "--engine", "duckdb", "--json"]
    assert run(query) == 0
    assert json.loads(capsys.readouterr().out) == {"last": 59}
    assert run([*query, "--format", "table"]) == 2
    assert "--format: 'table' contradicts --json; give one of them" in capsys.readouterr().err


def test_rows_that_a_full_disk_refuses_ended_with_a_traceback(store, capsys):
    arguments = ["--store", store, "--engine", "duckdb", "--format", "csv", "--output", "/dev/full"]
    assert run(["sql", "select offset from orders", *arguments]) == 1
    assert capsys.readouterr().err == "kafscale: can't write to '/dev/full': No space left on device\n"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_scan_past_the_limit_is_one_line(store, engine):
    limit = ("--max-scan-bytes", "100", "--engine", engine)
    done = kafscale_sql("select max(key) from orders", "--store", store, *limit)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = told(done)
    assert line.startswith("kafscale: the query would read ")
    assert "maxScanBytes is 100: bound it by conditions on timestamp, offset or partition" in line


@pytest.mark.spark  # whichever engine it is: all give up after a minute
@pytest.mark.parametrize("engine", ENGINES)
def test_a_bucket_that_does_not_answer_is_one_line(engine):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = kafscale_sql(
            "select * from orders",
            *("--store", "s3://bucket/kafka", "--s3-endpoint", endpoint, "--s3-region", "us-east-1"),
            *("--engine", engine),
            AWS_ACCESS_KEY_ID="any",
            AWS_SECRET_ACCESS_KEY="any",
        )
    assert done.returncode == 1
    [line] = told(done)
    assert line.startswith(f"kafscale: list s3://bucket: {endpoint} can't be reached (")
    assert line.endswith("check the endpoint, the region, and the network")


def test_a_statement_that_duckdb_refuses_gives_one_line(store):
    done = kafscale_sql("select upper('a') from orders", "--store", store, "--engine", "duckdb")
    assert done.returncode == 1
    assert told(done) == [
        "kafscale: --engine duckdb can't answer this, because upper() is Spark's; --engine spark can, and auto"
    ]


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_statement_that_duckdb_refuses_goes_to_spark(store):
    statements = "select upper('a') as a; select max(offset + 0) as last from orders"
    done = kafscale_sql(statements, "--store", store, "--duckdb-max-bytes", "100", "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a\nA\nlast\n59\n"
    assert [line for line in told(done) if line.startswith("kafscale:")] == [
        "kafscale: Spark answers, because upper() is Spark's",
        "kafscale: Spark answers, because it would read 2,950 bytes or more, and --duckdb-max-bytes is 100",
    ]


def test_importing_the_cli_imports_no_engine():
    program = """
import sys
import kafscale.cli.main, kafscale.cli.sql, kafscale.cli.serve
print(sorted({"duckdb", "pyarrow", "numpy", "pyspark"} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_missing_package_gives_one_line(capsys, monkeypatch, store):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "kafscale.spark.duckdb.engine", raising=False)
    assert run(["sql", "--store", store, "select 1"]) == 1
    assert capsys.readouterr().err == (
        f"kafscale: this command needs pyarrow, which the extra `sql` has: {install_command('sql')}\n"
    )


def test_a_progress_bar_appears_on_a_terminal_for_large_reads(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", shown)
    with reading("reading") as report:
        report(0, READING_MIN_BYTES - 1)
        assert shown.getvalue() == ""
        report(READING_MIN_BYTES, 2 * READING_MIN_BYTES)
    assert "reading" in shown.getvalue()
    shown.truncate(0)
    with reading("reading") as report:
        pass
    report(0, READING_MIN_BYTES)
    assert shown.getvalue() == "", "rows may be there by now"
