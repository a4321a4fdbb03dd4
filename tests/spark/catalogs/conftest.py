"""A topic in a bucket, and the servers that keep catalogs and tables, each started when it is first asked for."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from kafscale.spark import catalogs
from tests.devtools.external.s3_processes import S3Process, moto_server, s3_server
from tests.devtools.external.spark import REPOSITORY, flush, resolve_jars, skip_without_iceberg, store_of
from tests.spark.catalogs.catalog_servers import PostgresProcess, has_postgres, java_server, postgres_server

HERE = REPOSITORY / "tests" / "spark" / "catalogs"
BUCKET = "my-lake"
REGION = "us-east-1"
DERBY = "jdbc:derby:memory:metastore;create=true"


@pytest.fixture(scope="module", autouse=True)
def iceberg() -> None:
    skip_without_iceberg()


@pytest.fixture(scope="module")
def store(broker) -> str:
    """The option, of a bucket with 100 records in topic `orders`."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(100):
        producer.produce("orders", b"%d" % number)
    producer.flush()
    flush(broker)
    return store_of(broker)


@attrs.frozen
class Lake:
    """A bucket for tables, with nothing in it at first."""

    server: S3Process
    client: Any

    @property
    def environ(self) -> dict[str, str]:
        """Where AWS SDKs find the credentials."""
        credentials = self.server.credentials
        return {
            "AWS_ACCESS_KEY_ID": credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
        }

    def keys(self, prefix: str) -> list[str]:
        """Of the objects."""
        return [each["Key"] for each in self.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    """On MinIO where it is there, or on moto's server."""
    import botocore.session

    with s3_server() as server:
        client = botocore.session.get_session().create_client(
            "s3",
            region_name=REGION,
            endpoint_url=server.endpoint,
            aws_access_key_id=server.credentials.access_key_id,
            aws_secret_access_key=server.credentials.secret_access_key,
        )
        client.create_bucket(Bucket=BUCKET)
        yield Lake(server, client)
        client.close()


@pytest.fixture
def postgres() -> Iterator[PostgresProcess]:
    if not has_postgres():
        pytest.skip("needs Postgres: initdb and pg_ctl on the PATH")
    with postgres_server() as running:
        yield running


@pytest.fixture(scope="module")
def rest_jars(tmp_path_factory) -> list[str]:
    versions = {"iceberg.version": catalogs.ICEBERG_VERSION, "sqlite.version": catalogs.SQLITE_JAR.rpartition(":")[2]}
    return resolve_jars(HERE / "pom.xml", tmp_path_factory.mktemp("jars"), **versions)


@pytest.fixture
def rest(rest_jars, tmp_path) -> Iterator[str]:
    """The URL of a REST catalog whose tables are in a directory."""
    properties = {"type": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/rest.db", "jdbc.schema-version": "V1"}
    properties["warehouse"] = f"{tmp_path}/warehouse"
    with java_server(HERE / "RestCatalog.java", rest_jars, properties) as url:
        yield url


@pytest.fixture
def hive_2(tmp_path) -> Iterator[str]:
    """The URL of a Hive metastore that forgets all, of the version that Spark brings with its client."""
    import pyspark

    properties = {
        "javax.jdo.option.ConnectionURL": DERBY,
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "datanucleus.connectionPoolingType": "HikariCP",  # the one of its pools that Spark has
        "hive.metastore.warehouse.dir": f"{tmp_path}/warehouse-of-the-server",
    }
    jars = [str(Path(pyspark.__file__).parent / "jars" / "*")]
    with java_server(HERE / "HiveMetastore.java", jars, properties) as url:
        yield url


@pytest.fixture
def hive_3(tmp_path) -> Iterator[str]:
    """The URL of one of Hive 3."""
    with metastore(HERE / "Hive3Metastore.java", "hive-standalone-metastore", "3.1.3", tmp_path) as url:
        yield url


@pytest.fixture
def hive_4(tmp_path) -> Iterator[str]:
    """The URL of one of Hive 4."""
    with metastore(HERE / "Hive4Metastore.java", "hive-standalone-metastore-server", "4.0.1", tmp_path) as url:
        yield url


@contextmanager
def metastore(program: Path, artifact: str, version: str, directory: Path) -> Iterator[str]:
    """A metastore that forgets all, as Hive gives it out since version 3."""
    given = {"metastore.artifact": artifact, "metastore.version": version}
    jars = resolve_jars(HERE / "metastore.xml", directory / "jars", **given)
    with tarfile.open(directory / "jars" / f"{artifact}-{version}-bin.tar.gz") as archive:
        archive.extractall(directory, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    home = directory / f"apache-hive-metastore-{version}-bin"
    properties = {
        "javax.jdo.option.ConnectionURL": DERBY,
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
        "metastore.warehouse.dir": f"{directory}/warehouse-of-the-server",
    }
    with java_server(program, [str(home / "lib" / "*"), *jars], properties, METASTORE_HOME=str(home)) as url:
        yield url


@pytest.fixture
def glue() -> Iterator[str]:
    """The URL of moto's Glue, which takes any credentials."""
    with moto_server() as server:
        yield server.endpoint
