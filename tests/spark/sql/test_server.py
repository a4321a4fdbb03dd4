"""Topics as tables of a server: their names, and how they come and go; and a server asked by Hive's JDBC client."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from kafscale.config import Address
from kafscale.errors import QueryError
from kafscale.spark.sql.server import ServedTopics, close_warehouse, settings, table_names, warehouse
from tests.devtools.external.spark import environ_of


def test_topics_by_the_names_of_their_tables(caplog):
    assert table_names(["a.b", "a_b", "Orders"]) == {"a_b": "a.b", "orders": "Orders"}
    assert "topic 'a_b' is not served" in caplog.text


def test_a_server_keeps_to_its_address_and_its_warehouse():
    chosen = settings(Address("127.0.0.1", 10001), "/tmp/w")
    assert chosen["spark.hadoop.hive.server2.thrift.bind.host"] == "127.0.0.1"
    assert chosen["spark.hadoop.hive.server2.thrift.port"] == "10001"
    assert chosen["spark.sql.warehouse.dir"] == "/tmp/w"


def test_nothing_can_be_written_into_a_closed_warehouse():
    with warehouse() as path:
        close_warehouse(path)
        with pytest.raises(OSError, match="Not a directory"):
            (path / "table").mkdir()
    assert not path.exists()


class Statements:
    """Keeps what Spark is told."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.sql = self.given.append


def test_tables_come_and_go_with_their_topics(tmp_path):
    pytest.importorskip("pyspark")
    spark, names = Statements(), ["a.b"]
    topics = SimpleNamespace(
        spark=spark,
        options={"store": "file:it's"},
        filtering={"pushFilters": "true"},
        notes=tmp_path,
        max_scan_bytes=7,
        names=lambda: names,
    )
    served = ServedTopics(topics=topics, warehouse=tmp_path)
    served.refresh()
    options = r"(pushFilters = 'true', store = 'file:it\'s', subscribe = 'a.b', maxScanBytes = '7')"
    assert spark.given == [
        f"CREATE TABLE topics.`a_b` USING kafscale OPTIONS {options} LOCATION 'file:{tmp_path}/a_b'",
        f"CREATE VIEW `a_b` AS SELECT * FROM topics.`a_b` WITH {options} WHERE offset >= 0",
    ]
    served.refresh()
    assert len(spark.given) == 2
    names[:] = ["a-b"]
    served.refresh()
    assert spark.given[2:4] == ["DROP VIEW `a_b`", "DROP TABLE topics.`a_b`"]
    assert "subscribe = 'a-b'" in spark.given[5]


def test_one_topic_without_a_schema_kept_all_others_out_for_ever(tmp_path, caplog):
    """Those that were made before it was refused could not be made once more, when it had one."""
    errors = pytest.importorskip("py4j.protocol")
    spark, refused = Statements(), {"b"}

    def sql(statement: str) -> None:
        if statement.startswith("CREATE") and any(f"`{table}`" in statement for table in refused):
            raise errors.Py4JError("the schema registry has no /subjects/b-value")
        spark.given.append(statement)

    spark.sql = sql
    topics = SimpleNamespace(
        spark=spark, options={}, filtering={}, notes=tmp_path, max_scan_bytes=None, names=lambda: ["a", "b", "c"]
    )
    served = ServedTopics(topics=topics, warehouse=tmp_path)
    served.refresh()
    served.refresh()
    assert sorted(each.split()[2] for each in spark.given if each.startswith("CREATE VIEW")) == ["`a`", "`c`"]
    assert caplog.text.count("topic 'b' is not served yet: the schema registry has no /subjects/b-value") == 1
    refused.clear()
    spark.given.clear()
    served.refresh()
    served.refresh()
    assert [each.split()[:3] for each in spark.given] == [["CREATE", "TABLE", "topics.`b`"], ["CREATE", "VIEW", "`b`"]]
    refused.update("abc")
    with pytest.raises(QueryError, match="has no /subjects"):
        ServedTopics(topics=topics, warehouse=tmp_path).refresh()


@pytest.fixture
def port() -> int:
    """Free, and bound while the test runs; a server that reuses addresses may listen on it."""
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        yield reservation.getsockname()[1]


@pytest.fixture
def bucket(tmp_path) -> Path:
    write_segment(tmp_path, 0)
    return tmp_path


def write_segment(bucket: Path, base_offset: int) -> None:
    """Of 30 records."""
    from kafscale.store.paths import SegmentKey
    from tests.devtools.fakes.segment_objects import make_batches, version_2_objects

    key = SegmentKey(topic="orders.v1", topic_id=bytes(16), partition=0, base_offset=0)
    version_2_objects(attrs.evolve(key, base_offset=base_offset), make_batches(base_offset, 10)).write_to(bucket)


def ask(port: int, *statements: str) -> subprocess.CompletedProcess[str]:
    """By Hive's client, which pyspark brings along; what fails does not end it."""
    import pyspark

    jars = str(Path(pyspark.__file__).parent / "jars" / "*")
    url = f"jdbc:hive2://127.0.0.1:{port}"
    options = ["-u", url, "--outputformat=csv2", "--showHeader=false", "--force=true"]
    given = [word for each in statements for word in ("-e", f"{each};")]
    client = ["java", "-cp", jars, "org.apache.hive.beeline.BeeLine", *options, *given]
    return subprocess.run(client, capture_output=True, text=True, check=False)


def rows(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Without prompts."""
    return [line.rpartition("> ")[2] for line in done.stdout.splitlines() if line.strip()]


def size_bytes(bucket: Path) -> int:
    """Of all segments."""
    return sum(path.stat().st_size for path in bucket.rglob("*.kfs"))


@pytest.fixture
def server(bucket, port):
    """Reads at most two segments at once."""
    options = ["--listen", f"127.0.0.1:{port}", "--max-scan-bytes", str(2 * size_bytes(bucket) + 100)]
    process = subprocess.Popen(
        [sys.executable, "-m", "kafscale", "sql", "serve", "--store", f"file:{bucket}", *options],
        env=environ_of(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == f"kafscale sql is ready: jdbc:hive2://127.0.0.1:{port}\n"
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("server")
def test_a_client_of_jdbc_sees_topics_as_they_are_now(bucket, port):
    count = "select count(*) from orders_v1"
    assert rows(ask(port, count)) == ["30"]
    write_segment(bucket, 30)
    done = ask(
        port,
        count,
        "select count(*), max(p.offset) from orders_v1 o join orders_v1 p on o.offset < 5 and p.offset > 49",
        "select count(*), (select count(*) from orders_v1) from orders_v1 where offset < 5",
        """select json_value('{"a": 5}', '$.a'), json_exists('{"a": 5}', '$.b')""",
        "create table x (a int) using parquet",
    )
    assert rows(done) == ["60", "50,59", "5,60", "5,false"]
    assert "failed to create its directory" in done.stderr


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("server")
def test_a_jdbc_client_reads_filtered_rows_within_the_scan_limit(bucket, port):
    for base_offset in (30, 60):
        write_segment(bucket, base_offset)
    done = ask(
        port,
        "select count(*) from orders_v1",
        "select count(*) from orders_v1 where offset >= 40",
        "select count(*) from orders_v1 where timestamp >= timestamp_millis(1700000000070) and partition = 0",
        "select count(*) from orders_v1 where timestamp >= now() - interval 15 minutes",
        "select min(o.offset), max(p.offset) from orders_v1 o join orders_v1 p on o.offset < 5 and p.offset > 80",
        "select count(*) from orders_v1 o join orders_v1 p on o.offset = p.offset and o.offset < 40 and p.offset > 30",
    )
    assert rows(done) == ["50", "20", "0", "9"]
    told = [line for line in done.stderr.splitlines() if "maxScanBytes is" in line]
    assert len(told) >= 2
    assert all(" bytes of orders.v1, and maxScanBytes is " in line for line in told)
