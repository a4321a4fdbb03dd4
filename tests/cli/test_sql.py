"""`kafscale sql`: what is wrong is told before Spark starts; and one run of it as users run it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from kafscale.cli.main import run
from kafscale.cli.sql_options import parse_catalog
from kafscale.cli.sql_reference import reference
from kafscale.config import load
from tests.devtools.sql_processes import kafscale_sql, told, write_orders

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sql-options.md"


def test_the_page_of_options_is_what_the_code_makes():
    assert PAGE.read_text() == reference()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--format", "parquet", "select 1"], "--format: 'parquet' is for files; allowed: with --output DIRECTORY"),
        (["select 1", "--value-format", "avro"], "--value-format and --registry belong together"),
        (["--catalog", "lake", "select 1"], "'lake' is not a setting of a catalog"),
        (["--catalog", "name=lake,warehouse=/x", "select 1"], "has no type"),
        (["--catalog", "type=hadoop", "select 1"], "needs a warehouse"),
        (["--max-scan-bytes", "much", "select 1"], "'much' is not a size"),
        (["--store", "nowhere", "select 1"], "--store: 'nowhere'"),
    ],
)
def test_a_wrong_option_is_one_line(capsys, arguments, told):
    assert run(["sql", *arguments]) == 2
    written = capsys.readouterr().err
    assert told in written
    assert written.count("\n") == 1


def test_the_help_is_that_of_queries(capsys):
    assert run(["sql", "--help"]) == 0
    assert "--max-scan-bytes" in capsys.readouterr().out


def test_a_catalog_by_its_settings():
    catalog = parse_catalog("name=lake, type=jdbc,uri=jdbc:sqlite:/data/c.db,warehouse=/data/w,s3-path-style=true")
    assert (catalog.name, catalog.type, catalog.warehouse) == ("lake", "jdbc", "/data/w")
    assert catalog.uri == "jdbc:sqlite:/data/c.db"
    assert catalog.s3_path_style is True


def test_variables_of_the_command_are_no_settings_of_the_broker():
    assert load({}, {"KAFSCALE_SQL_FORMAT": "json"}).sources == {}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    return write_orders(tmp_path_factory.mktemp("bucket"))


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_statements_from_the_command_line(store, tmp_path):
    done = kafscale_sql(
        "show topics; show partitions from orders; select max(offset) as last from orders",
        "--store",
        store,
        "--output",
        str(tmp_path / "rows"),
        KAFSCALE_SQL_FORMAT="json",
    )
    assert done.returncode == 0, done.stderr
    assert "kafscale:" not in done.stderr
    topics, partitions, last = map(json.loads, (tmp_path / "rows").read_text().splitlines())
    assert topics == {"topic": "orders"}
    assert partitions.pop("bytes") > 0
    assert partitions == {"partition": 0, "start_offset": 0, "end_offset": 60, "segments": 2}
    assert last == {"last": 59}


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_statements_from_standard_input_up_to_the_first_that_fails(store):
    statements = "select offset from orders\n where offset in (7, 42) order by 1; select * from ordrs; select 1"
    done = kafscale_sql("--store", store, "--max-rows", "1", stdin=statements)
    assert done.stdout == "offset\n7\n"
    first, second = [line for line in done.stderr.splitlines() if line.startswith("kafscale: ")]
    assert first == "kafscale: these are the first 1 rows; --max-rows shows more"
    assert second.startswith("kafscale: there is no topic, table or view 'ordrs' (topics: orders).")
    assert done.returncode == 1


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_scan_past_the_limit_is_one_line(store):
    done = kafscale_sql("select max(offset) from orders", "--store", store, "--max-scan-bytes", "100")
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = told(done)
    assert line.startswith("kafscale: the query would read ")
    assert "maxScanBytes is 100: bound it by conditions on timestamp, offset or partition" in line


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_bucket_that_does_not_answer_is_one_line():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = kafscale_sql(
            "select * from orders",
            *("--store", "s3://bucket/kafka", "--s3-endpoint", endpoint, "--s3-region", "us-east-1"),
            AWS_ACCESS_KEY_ID="any",
            AWS_SECRET_ACCESS_KEY="any",
        )
    assert done.returncode == 1
    [line] = told(done)
    assert line.startswith(f"kafscale: list s3://bucket: {endpoint} can't be reached (")
    assert line.endswith("check the endpoint, the region, and the network")
