"""A standalone cluster of two workers that reads S3 servers which are not ours: moto's, and MinIO where it is there."""

import json
import shutil
from pathlib import Path
from zlib import crc32

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafscale.testing.process import broker_process
from kafscale.testing.s3_processes import minio_server, moto_server
from kafscale.testing.spark import flush, run_driver, spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DRIVER = Path(__file__).with_name("cluster_driver.py")
SERVERS = {"moto": moto_server, "minio": minio_server}
FOUND_SERVERS = [name for name in SERVERS if name == "moto" or shutil.which(name)]
RECORDS, PARTITIONS = 2000, 4


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as url:
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
    offsets = sum(number // PARTITIONS for number in range(RECORDS))
    expected = [RECORDS, sum(crc32(b"%d" % number) for number in range(RECORDS)), offsets]
    assert found["batch"] == expected
    assert found["streamed"] == expected
    assert found["distinct"] == RECORDS
    assert len({Path(each).parents[1] for each in found["directories"]}) == 2  # WORKER/APPLICATION/EXECUTOR
