"""`kafscale sql` as users run it: on S3 servers, with a schema registry, and beside Iceberg tables."""

from __future__ import annotations

import csv
import json
import shutil

import pytest

from kafscale.store.paths import SegmentKey
from tests.cli.sql_processes import kafscale_sql, told, write_orders
from tests.devtools.external.s3_processes import minio_server, moto_server
from tests.devtools.processes.process import broker_process

pytestmark = pytest.mark.timeout(900)

engines = pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
SERVERS = {"moto": moto_server, "minio": minio_server}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "status", "type": "string"}],
}
MERGE = """
    create table lake.shop.seen (id bigint, place string);
    insert into lake.shop.seen values (7, 'old'), (99, 'old');
    merge into lake.shop.seen s using (select * from orders where offset between 5 and 8) o on s.id = o.offset
        when matched then update set place = 'changed' when not matched then insert (id, place) values (offset, 'new');
    select s.id, s.place, cast(o.value as string) from lake.shop.seen s left join orders o on o.offset = s.id
        where s.id > 6 order by s.id;
    select count(*) as early from lake.shop.seen s join last('orders', '1h') o on o.offset = s.id"""


@pytest.fixture(params=SERVERS)
def s3(request):
    """A server with a topic of 100 records, and what `kafscale` needs to use it."""
    if request.param == "minio" and shutil.which("minio") is None:
        pytest.skip("minio is not on the PATH")
    from confluent_kafka import Producer

    from tests.devtools.external.spark import flush

    with SERVERS[request.param]() as server:
        options = ("--store", "s3://bucket/kafka", "--s3-region", "us-east-1", "--s3-endpoint", server.endpoint)
        variables = {
            "AWS_ACCESS_KEY_ID": server.credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": server.credentials.secret_access_key,
        }
        with broker_process(*options, "--s3-create-bucket", "true", environ=variables) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            for number in range(100):
                producer.produce("orders", b'{"number": %d}' % number, b"key %d" % number, partition=0)
                if number % 25 == 24:
                    producer.flush()
                    flush(broker)
        yield options, variables


@engines
def test_topics_on_s3(s3, engine):
    options, variables = s3
    statement = """
        select offset, key, json_value(value, '$.number') as number from orders where offset >= 98 order by offset"""
    done = kafscale_sql(statement, "--format", "csv", "--engine", engine, *options, **variables)
    assert done.returncode == 0, done.stderr
    assert list(csv.reader(done.stdout.splitlines())) == [
        ["offset", "key", "number"],
        ["98", "key 98", "98"],
        ["99", "key 99", "99"],
    ]
    assert told(done) == []


@engines
def test_values_of_a_registry_are_columns(tmp_path, engine):
    from tests.devtools.external.registry import running_values
    from tests.devtools.fakes.segment_objects import make_batch, version_2_objects

    with running_values() as values:
        written = [values.avro(ORDER, {"id": number, "status": f"s{number % 2}"}) for number in range(10)]
        key = SegmentKey(topic="orders", topic_id=bytes(16), partition=0, base_offset=0)
        version_2_objects(key, [make_batch(0, written)]).write_to(tmp_path)
        done = kafscale_sql(
            "select decoded.value.*, offset from orders where decoded.value.status = 's1' and offset > 6 order by id",
            *("--store", f"file:{tmp_path}", "--format", "json"),
            KAFSCALE_SQL_ENGINE=engine,
            KAFSCALE_SQL_VALUE_FORMAT="avro",
            KAFSCALE_SQL_REGISTRY=values.registry.url,
        )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"id": 7, "status": "s1", "offset": 7},
        {"id": 9, "status": "s1", "offset": 9},
    ]


@pytest.mark.spark
def test_a_topic_beside_an_iceberg_table(tmp_path):
    from tests.devtools.external.spark import skip_without_iceberg

    skip_without_iceberg()
    store = write_orders(tmp_path / "bucket")
    catalog = f"name=lake,type=hadoop,warehouse={tmp_path}/lake"
    done = kafscale_sql(MERGE, "--store", store, "--catalog", catalog, "--format", "csv")
    assert done.returncode == 0, done.stderr
    dots = "." * 20
    assert list(csv.reader(done.stdout.splitlines())) == [
        ["id", "place", "value"],
        ["7", "changed", f"7{dots}"],
        ["8", "new", f"8{dots}"],
        ["99", "old", ""],
        ["early"],
        ["0"],
    ]


@engines
def test_rows_as_files(tmp_path, engine):
    import pyarrow.parquet

    rows = tmp_path / "rows"
    statement = "select offset, value from orders where offset in (3, 44)"
    store = write_orders(tmp_path / "bucket")
    done = kafscale_sql(statement, "--store", store, "--format", "parquet", "--output", str(rows), "--engine", engine)
    assert done.returncode == 0, done.stderr
    found = pyarrow.parquet.read_table(rows).sort_by("offset").to_pydict()
    assert found == {"offset": [3, 44], "value": [b"3" + b"." * 20, b"44" + b"." * 20]}
