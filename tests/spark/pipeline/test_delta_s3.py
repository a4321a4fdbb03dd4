"""Delta Lake's tables in S3, by Hadoop's client, as the how-to page says.

Hadoop's client names all of AWS's SDK as one jar of 600 MB; what it uses of that is a few modules.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from kafscale.spark.catalogs import CatalogOptions
from tests.devtools.external.s3_processes import S3Process
from tests.spark.pipeline.conftest import JAVA_OPTIONS, QUICK_JAVA, Lake
from tests.spark.pipeline.test_delta import SETTINGS, UPSERT
from tests.spark.pipeline.test_fan_out import proofs

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

WAREHOUSE = "s3a://lake/tables"
HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.4.2"
TRANSFER_MANAGER = "software.amazon.awssdk:s3-transfer-manager:2.29.52"
WITHOUT = "software.amazon.awssdk:bundle"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Process]:
    import botocore.session

    from tests.devtools.external.s3_processes import s3_server

    with s3_server() as running:
        client = botocore.session.get_session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=running.endpoint,
            aws_access_key_id=running.credentials.access_key_id,
            aws_secret_access_key=running.credentials.secret_access_key,
        )
        client.create_bucket(Bucket="lake")
        client.close()
        yield running


@pytest.fixture(scope="module")
def spark(iceberg: None, server: S3Process) -> Iterator[Any]:
    from kafscale.spark.session import SessionOptions, start_session
    from tests.devtools.external.spark import end_jvm

    end_jvm()
    hadoop = {
        "endpoint": server.endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": server.credentials.access_key_id,
        "secret.key": server.credentials.secret_access_key,
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    conf = {
        **SETTINGS,
        JAVA_OPTIONS: QUICK_JAVA,
        "spark.jars.packages": f"{HADOOP_AWS},{TRANSFER_MANAGER}",
        "spark.jars.excludes": WITHOUT,
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in hadoop.items()},
    }
    catalog = CatalogOptions(type="delta", warehouse=WAREHOUSE)
    session = start_session(SessionOptions(master="local[2]", catalogs=[catalog], conf=conf))
    yield session
    session.stop()
    end_jvm()


@pytest.fixture
def delta(lake: Lake) -> Lake:
    warehouse: Any = WAREHOUSE
    return attrs.evolve(lake, catalog="delta", warehouse=warehouse)


def test_rows_are_in_the_table_once_though_the_checkpoint_is_lost(delta: Lake, topic: str, produce: Any) -> None:
    appended = f"- {{topic: {topic}, table: db.{topic}, max_records: 4, metadata: [partition, offset]}}"
    upserted = f"- {{topic: {topic}, table: db.{topic}_rows, {UPSERT}, value: {{format: string}}}}"
    mappings = f"{appended}\n{upserted}"
    produce(topic, [(number % 2, b"k%d" % (number % 3), b"%d" % number) for number in range(10)])
    delta.run(mappings)
    shutil.rmtree(delta.checkpoints)
    produce(topic, [(0, b"k0", None), (1, b"k1", b"11")])
    delta.run(mappings)
    assert [row[:2] for row in delta.rows(f"db.{topic}", "partition, offset")] == [
        (partition, offset) for partition in range(2) for offset in range(6)
    ]
    assert [row[0] for row in delta.rows(f"db.{topic}_rows", "id")] == ["k1", "k2"]
    assert {found for found, _ in proofs(delta, appended).values()} == {"proven"}
