"""A standalone cluster of two workers that reads S3 servers which are not ours: moto's, and MinIO where it is there.

Besides a driver of its own, `kafscale pipeline` and `kafscale sql` run on it.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.devtools.external.s3_processes import minio_server, moto_server
from tests.devtools.external.spark import REPOSITORY, environ_of, flush, run_driver, skip_without_iceberg, spark_cluster
from tests.devtools.processes.process import broker_process

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

DRIVER = Path(__file__).with_name("cluster_driver.py")
SERVERS = {"moto": moto_server, "minio": minio_server}
FOUND_SERVERS = [name for name in SERVERS if name == "moto" or shutil.which(name)]
SUBMITTED = Path(__file__).with_name("submitted_driver.py")
RECORDS, PARTITIONS = 2000, 4
OFFSETS = sum(number // PARTITIONS for number in range(RECORDS))


@pytest.fixture(scope="module")
def cluster_home(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def master(cluster_home):
    with spark_cluster(cluster_home) as url:
        yield url


@pytest.fixture(scope="module", params=FOUND_SERVERS)
def source(request):
    """The options to read a topic, whose values are their numbers, from a server."""
    with SERVERS[request.param]() as server:
        options = ["--store", "s3://bucket/kafka", "--s3-region", "us-east-1", "--s3-endpoint", server.endpoint]
        environ = {
            "AWS_ACCESS_KEY_ID": server.credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": server.credentials.secret_access_key,
        }
        with broker_process(*options, "--s3-create-bucket", "true", environ=environ) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result()
            producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 50})
            for part in range(2):
                for number in range(part * RECORDS // 2, (part + 1) * RECORDS // 2):
                    producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
                producer.flush()
                flush(broker)
            yield {
                "store": "s3://bucket/kafka",
                "subscribe": "t",
                "s3Endpoint": server.endpoint,
                "s3Region": "us-east-1",
                "s3AccessKeyId": server.credentials.access_key_id,
                "s3SecretAccessKey": server.credentials.secret_access_key,
            }


def test_two_workers_read_every_record_once(master, source, tmp_path):
    paths = [str(tmp_path / "checkpoint"), str(tmp_path / "output")]
    with run_driver(DRIVER, master, json.dumps(source), *paths) as driver:
        assert driver.stdout is not None
        found = json.loads(driver.stdout.read())
    expected = [RECORDS, sum(crc32(b"%d" % number) for number in range(RECORDS)), OFFSETS]
    assert found["batch"] == expected
    assert found["streamed"] == expected
    assert found["distinct"] == RECORDS
    assert len({Path(each).parents[1] for each in found["directories"]}) == 2  # WORKER/APPLICATION/EXECUTOR


def kafscale(*arguments: str, master: str, environ: dict[str, str]) -> str:
    """The command on the cluster. The tests' machine is all of it, and may not know its own name."""
    conf = {
        "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        **{f"spark.executorEnv.{name}": value for name, value in environ.items()},
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kafscale", *arguments, "--master", master),
            *(f"--conf={name}={value}" for name, value in conf.items()),
        ],
        env=environ_of(**{"SPARK_LOCAL_IP": "127.0.0.1", **environ}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def executors(cluster_home: Path) -> set[Path]:
    """The directories of all that ever ran: WORKER/APPLICATION/EXECUTOR."""
    return {path.parent for path in cluster_home.glob("worker-*/app-*/*/stderr")}


def test_a_program_is_submitted(master, source, cluster_home):
    import pyspark

    before = executors(cluster_home)
    conf = {
        "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
    }
    done = subprocess.run(
        [
            *(Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", master),
            *(f"--conf={name}={value}" for name, value in conf.items()),
            *(SUBMITTED, json.dumps(source)),
        ],
        env=environ_of(PYSPARK_DRIVER_PYTHON=sys.executable),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {"records": RECORDS, "offsets": OFFSETS}
    assert executors(cluster_home) - before


def test_statements_run_on_the_workers_with_credentials_among_the_sources_options(master, source, cluster_home):
    before = executors(cluster_home)
    options = [f"--option={name}={source[name]}" for name in ("s3AccessKeyId", "s3SecretAccessKey")]
    store = ["--store", source["store"], "--s3-endpoint", source["s3Endpoint"], "--s3-region", source["s3Region"]]
    statement = "SELECT count(*) AS records, sum(offset) AS offsets FROM t"
    rows = kafscale("sql", statement, "--format", "json", *store, *options, master=master, environ={})
    assert json.loads(rows) == {"records": RECORDS, "offsets": OFFSETS}
    assert executors(cluster_home) - before


def test_a_pipeline_writes_tables_from_the_workers_with_credentials_of_their_environment(
    master, source, cluster_home, tmp_path
):
    skip_without_iceberg()
    environ = {"AWS_ACCESS_KEY_ID": source["s3AccessKeyId"], "AWS_SECRET_ACCESS_KEY": source["s3SecretAccessKey"]}
    endpoint, region = source["s3Endpoint"], source["s3Region"]
    catalog = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        "warehouse": "s3://bucket/warehouse",
        "s3_endpoint": endpoint,
        "s3_region": region,
        "s3_path_style": True,
    }
    pipeline = {
        "source": {"store": source["store"], "options": {"s3Endpoint": endpoint, "s3Region": region}},
        "catalog": catalog,
        "checkpoints": str(tmp_path / "checkpoints"),
        "mappings": [{"topic": "t", "table": "db.t", "metadata": ["partition", "offset"]}],
    }
    file = tmp_path / "pipeline.yaml"
    file.write_text(json.dumps(pipeline))  # which is YAML too
    before = executors(cluster_home)
    kafscale("pipeline", "run", "--once", str(file), master=master, environ=environ)
    assert executors(cluster_home) - before
    status = kafscale("pipeline", "status", "--json", str(file), master=master, environ=environ)
    [found] = json.loads(status)
    assert found["offsets"] == {"t": {str(partition): RECORDS // PARTITIONS for partition in range(PARTITIONS)}}
    assert found["lag"] == 0
