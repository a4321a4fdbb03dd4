"""Each policy of the page on least privilege suffices for its program, and allows no more: tried on a MinIO."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafscale.formats.metadata_checkpoint import decode_checkpoint
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions
from kafscale.spark.source.planning import Planner, QueryBounds
from tests.devtools.external.clients import wait_until
from tests.devtools.external.s3_processes import S3Process, minio_server
from tests.devtools.external.spark import flush, skip_without_iceberg
from tests.devtools.processes import timed_loop
from tests.devtools.processes.process import BrokerProcess
from tests.docs.minio_users import MinioUser, add_user, root_of

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("minio") is None, reason="minio is not on the PATH, and moto enforces no policies"),
]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "least-privilege.md").read_text()
POLICIES = dict(re.findall(r"^### ([^\n]+)\n(?:(?!^### ).)*?^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))

STORE = ("--store", "s3://events/kafka", "--s3-region", "us-east-1", "--s3-path-style", "true")
KEY = "key-of-events"
LARGE_VALUES = [secrets.token_bytes(900_000) for _ in range(20)]  # a segment of them goes in parts
RECORDS_COUNT = 200
TIMEOUT_SECONDS = 60.0


@attrs.frozen(kw_only=True)
class Bucket:
    """A server with what a broker has written in its bucket, and users of their own policies."""

    server: S3Process
    users: Mapping[str, MinioUser]

    @property
    def root(self) -> Any:
        return root_of(self.server).client()

    def listed(self, prefix: str = "kafka/") -> Sequence[str]:
        pages = self.root.get_paginator("list_objects_v2").paginate(Bucket="events", Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def kafscale(self, user: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("KAFSCALE_", "AWS_"))}
        command = [sys.executable, "-m", "kafscale", *arguments, *STORE, "--s3-endpoint", self.server.endpoint]
        environ = {**clean, **self.users[user].environ}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """Users are named after their policies."""
    with minio_server(kms_key=KEY) as server:
        root = root_of(server).client()
        for name in ("events", "lake", "others"):
            root.create_bucket(Bucket=name)
        root.put_object(Bucket="events", Key="elsewhere/secret", Body=b"not ours")
        root.put_object(Bucket="others", Key="secret", Body=b"not ours")
        users = {}
        for title, policy in POLICIES.items():
            users[title] = add_user(server, re.sub(r"\W+", "-", title.lower()), policy)
        one_topic = POLICIES["Readers"].replace("/kafka/default/*", "/kafka/default/orders/*")
        users["Readers of orders"] = add_user(server, "readers-of-orders", one_topic)
        yield Bucket(server=server, users=users)


def broker_of(bucket: Bucket, directory: Path, *options: str) -> BrokerProcess:
    environ = bucket.users["The broker"].environ
    store = (*STORE, "--s3-endpoint", bucket.server.endpoint, "--s3-sse", f"aws:kms:{KEY}")
    return BrokerProcess(directory=directory, options=(*store, *options), environ=environ, program=timed_loop.PROGRAM)


@pytest.fixture(scope="module")
def written(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    """Topics with records and without, an internal one, a user; and the broker has stopped."""
    directory = tmp_path_factory.mktemp("broker")
    with broker_of(bucket, directory, "--s3-multipart-bytes", "16MiB") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        created = admin.create_topics([NewTopic("orders", 1), NewTopic("payments", 1), NewTopic("empty", 3)])
        for each in created.values():
            each.result()
        produce(broker, "payments", [b"%d" % number for number in range(RECORDS_COUNT)])
        produce(broker, "orders", LARGE_VALUES)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        consumer.commit(offsets=[TopicPartition("orders", 0, 3)], asynchronous=False)
        consumer.close()
        command = [sys.executable, "-m", "kafscale", "users", "add", "alice", "--bootstrap", broker.bootstrap]
        environ = {**os.environ, "KAFSCALE_USER_PASSWORD": "a password of hers"}
        subprocess.run(command, env=environ, check=True, capture_output=True)
        broker.stop()
        assert "AccessDenied" not in broker.log
    return bucket


def produce(broker: BrokerProcess, topic: str, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def consume(broker: BrokerProcess, topic: str, count: int) -> Sequence[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        messages = []
        while len(messages) < count:
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None
            assert message.error() is None
            messages.append(message.value())
        return messages
    finally:
        consumer.close()


def refused(call: Callable[..., Any], **arguments: Any) -> None:
    """Hold that the store says no."""
    with pytest.raises(ClientError, match=r"AccessDenied|Forbidden|403"):
        call(**arguments)


def refused_at_all(client: Any) -> None:
    """Hold what nobody here may do."""
    refused(client.get_object, Bucket="events", Key="elsewhere/secret")
    refused(client.get_object, Bucket="others", Key="secret")
    refused(client.list_objects_v2, Bucket="others")
    refused(client.put_object, Bucket="events", Key="elsewhere/new", Body=b"")
    refused(client.put_object, Bucket="others", Key="new", Body=b"")
    refused(client.delete_object, Bucket="events", Key="elsewhere/secret")
    refused(client.create_bucket, Bucket="brand-new")
    refused(client.delete_bucket, Bucket="events")
    refused(client.put_bucket_policy, Bucket="events", Policy=json.dumps(json.loads(POLICIES["Verify"])))


def refused_to_write(client: Any, key: str) -> None:
    refused(client.put_object, Bucket="events", Key=key, Body=b"")
    refused(client.put_object, Bucket="events", Key="kafka/default/orders/new", Body=b"")
    refused(client.create_multipart_upload, Bucket="events", Key=key)
    refused(client.delete_object, Bucket="events", Key=key)
    found = client.delete_objects(Bucket="events", Delete={"Objects": [{"Key": key}]})
    assert [each["Code"] for each in found["Errors"]] == ["AccessDenied"]


def read_as(bucket: Bucket, user: str, topic: str) -> tuple[int, int]:
    """Read a topic as Spark's tasks do. Gives the numbers of rows and of partitions."""
    credentials = bucket.users[user].credentials
    given = Given(
        {
            "store": "s3://events/kafka",
            "s3Endpoint": bucket.server.endpoint,
            "s3Region": "us-east-1",
            "s3AccessKeyId": credentials.access_key_id,
            "s3SecretAccessKey": credentials.secret_access_key,
            "subscribe": topic,
        }
    )
    with closing(Planner.of(ReadOptions.of(given))) as planner:
        partitions_count = len(planner.logs())
        reader = planner.reader(["offset", "value"])
        splits = planner.batch(BatchOptions.of(given), QueryBounds())
        return sum(part.num_rows for split in splits for part in reader.read(split)), partitions_count


def encryption_of(bucket: Bucket, name: str, key: str) -> str:
    found = bucket.root.head_object(Bucket=name, Key=key)
    return f"{found['ServerSideEncryption']}:{found['SSEKMSKeyId'].rpartition(':')[2]}"


def with_users(bucket: Bucket) -> Sequence[str]:
    """Give the keys of the checkpoints that have what alice's password is checked against."""
    found = []
    for key in bucket.listed("kafka/_kafscale/default/checkpoint/"):
        data = bucket.root.get_object(Bucket="events", Key=key)["Body"].read()
        if any(name.startswith("scram-users/") for name in decode_checkpoint(key, data).transaction.puts):
            found.append(key)
    return found


def test_the_page_has_a_policy_for_each() -> None:
    assert list(POLICIES) == ["The broker", "Readers", "Readers that know what was deleted", "Pipelines", "Verify"]


@pytest.mark.faults
@pytest.mark.parametrize("durability", ["wal", "s3-wal", "segment"])
def test_the_broker_lives_a_whole_life(bucket: Bucket, durability: str, tmp_path: Path) -> None:
    """It starts, flushes, in parts too, deletes by retention and with a topic, is restored, and all of it encrypted."""
    quick = (
        "--segment-delete-delay",
        "0",
        *timed_loop.fixed(orphan_check_interval_seconds=5, retention_check_interval_seconds=1),
    )
    with broker_of(bucket, tmp_path, "--durability", durability, "--namespace", durability, *quick) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        short = NewTopic("short", 1, config={"retention.ms": "1000"})
        for create_topic in admin.create_topics(
            [NewTopic("kept", 1), NewTopic("gone", 1, config={"file.delete.delay.ms": "0"}), short]
        ).values():
            create_topic.result()
        produce(broker, "kept", LARGE_VALUES)
        for _ in range(2):  # the last segment stays
            for topic in ("gone", "short"):
                produce(broker, topic, [b"value"] * RECORDS_COUNT)
            flush(broker)
        assert bucket.listed(f"kafka/{durability}/gone/")
        admin.delete_topics(["gone"])["gone"].result()
        wait_until(lambda: not bucket.listed(f"kafka/{durability}/gone/"), "the topic is deleted")
        first = f"segment-{0:020d}-"
        wait_until(
            lambda: not any(first in key for key in bucket.listed(f"kafka/{durability}/short/")), "it is too old"
        )
        broker.stop()
        shutil.rmtree(broker.data_dir)
        broker.start()
        assert consume(broker, "kept", len(LARGE_VALUES)) == LARGE_VALUES
        assert "gone" not in AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
        broker.stop()
        assert "AccessDenied" not in broker.log
    ours = [*bucket.listed(f"kafka/{durability}/"), *bucket.listed(f"kafka/_kafscale/{durability}/")]
    assert len(ours) >= 4
    for key in ours:
        assert encryption_of(bucket, "events", key) == f"aws:kms:{KEY}"


@pytest.mark.faults
def test_the_broker_policy_denies_other_objects_and_buckets(bucket: Bucket) -> None:
    refused_at_all(bucket.users["The broker"].client())


@pytest.mark.faults
def test_a_reader_reads_records_and_nothing_else(written: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    assert read_as(written, "Readers", "orders") == (len(LARGE_VALUES), 1)
    assert "are unknown" in caplog.text
    assert read_as(written, "Readers", "payments") == (RECORDS_COUNT, 1)
    client = written.users["Readers"].client()
    refused_at_all(client)
    [segment, *_] = [key for key in written.listed("kafka/default/orders/") if key.endswith(".kfs")]
    refused_to_write(client, segment)
    for key in (*written.listed("kafka/_kafscale/"), *written.listed("kafka/default/__consumer_offsets/")):
        refused(client.get_object, Bucket="events", Key=key)
    assert written.listed("kafka/default/__consumer_offsets/")
    assert with_users(written), "there is nothing with users that it could have read"


@pytest.mark.faults
def test_a_reader_of_one_topic_reads_no_other(written: Bucket) -> None:
    assert read_as(written, "Readers of orders", "orders") == (len(LARGE_VALUES), 1)
    [segment, *_] = [key for key in written.listed("kafka/default/payments/") if key.endswith(".kfs")]
    refused(written.users["Readers of orders"].client().get_object, Bucket="events", Key=segment)


@pytest.mark.faults
def test_a_checkpoint_reader_finds_all_partitions_and_writes_nothing(
    written: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    user = "Readers that know what was deleted"
    assert read_as(written, user, "empty") == (0, 3)
    assert read_as(written, user, "orders") == (len(LARGE_VALUES), 1)
    assert "are unknown" not in caplog.text
    client = written.users[user].client()
    refused_at_all(client)
    for key in written.listed("kafka/_kafscale/"):
        refused_to_write(client, key)
        if "/checkpoint/" not in key and "/manifests/" not in key:
            refused(client.get_object, Bucket="events", Key=key)


@pytest.mark.faults
def test_the_verify_policy_reads_all_objects_and_repairs_nothing(written: Bucket) -> None:
    done = written.kafscale("Verify", "verify")
    assert done.returncode == 0, done.stderr
    assert "whole" in done.stdout
    client = written.users["Verify"].client()
    refused_at_all(client)
    refused_to_write(client, written.listed("kafka/_kafscale/")[0])
    [index, *_] = [key for key in written.listed("kafka/default/payments/") if key.endswith(".index")]
    written.root.delete_object(Bucket="events", Key=index)
    assert written.kafscale("Verify", "verify", "--repair").returncode == 1
    assert index not in written.listed()
    assert written.kafscale("The broker", "verify", "--repair").returncode == 0
    assert index in written.listed()
    assert written.kafscale("Verify", "storage").returncode == 0


@pytest.mark.spark
def test_a_pipeline_writes_tables_and_no_records(written: Bucket, tmp_path: Path) -> None:
    skip_without_iceberg()
    endpoint, user = written.server.endpoint, written.users["Pipelines"]
    pipeline = {
        "source": {"store": "s3://events/kafka", "options": {"s3Endpoint": endpoint, "s3Region": "us-east-1"}},
        "catalog": {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
            "warehouse": "s3://lake/warehouse",
            "s3_endpoint": endpoint,
            "s3_region": "us-east-1",
            "s3_path_style": True,
            "s3_sse": f"aws:kms:{KEY}",
        },
        "checkpoints": str(tmp_path / "checkpoints"),
        "mappings": [{"topic": "payments", "table": "db.payments", "metadata": ["offset"]}],
    }
    file = tmp_path / "pipeline.yaml"
    file.write_text(json.dumps(pipeline))  # which is YAML too
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KAFSCALE_", "AWS_"))}
    for command in (["run", "--once"], ["maintain"]):
        done = subprocess.run(
            [sys.executable, "-m", "kafscale", "pipeline", *command, str(file)],
            env={**clean, **user.environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    pages = written.root.get_paginator("list_objects_v2").paginate(Bucket="lake")
    keys = [found["Key"] for page in pages for found in page.get("Contents", ())]
    assert any(key.endswith(".parquet") for key in keys)
    for key in keys:
        assert encryption_of(written, "lake", key) == f"aws:kms:{KEY}"
    client = user.client()
    refused_at_all(client)
    refused_to_write(client, written.listed("kafka/default/payments/")[0])
    refused(client.put_object, Bucket="lake", Key="elsewhere", Body=b"")
