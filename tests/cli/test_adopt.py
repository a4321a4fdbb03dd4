"""`kafscale adopt` on a bucket of the Go broker, then a broker process and a client of somebody else's."""

import json
import time
from pathlib import Path

import pytest
import trio
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from kafscale.cli.main import run
from kafscale.log.wal.data_directory import lock_data_directory
from kafscale.store.file.store import FileStore
from tests.devtools.fakes.segment_objects import make_batches, version_1_key, version_1_objects
from tests.devtools.processes.process import BrokerProcess

RECORDS = 600


@pytest.fixture
def bucket(tmp_path):
    """A file store with topic `orders`: 600 records in two segments of partition 0, and one more in partition 1."""

    async def write():
        store = await FileStore.open(tmp_path / "bucket")
        for partition, base_offset, batches in ((0, 0, 150), (0, 450, 50), (1, 0, 1)):
            written = make_batches(base_offset, batches, value_bytes=200)
            await version_1_objects(version_1_key("orders", partition, base_offset), written).put(store)

    trio.run(write)
    return tmp_path / "bucket"


def files(directory: Path):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def adopt(capsys, bucket, *arguments, data="data"):
    where = ["--store", f"file:{bucket}", "--data-dir", str(bucket.parent / data)]
    code = run(["adopt", *where, "--json", *arguments])
    written = capsys.readouterr()
    return code, json.loads(written.out) if written.out else None, written.err


def test_a_dry_run_tells_and_writes_no_file(capsys, bucket):
    before = files(bucket.parent)
    code, rows, _ = adopt(capsys, bucket, "--dry-run")
    assert code == 0
    assert [(row["topic"], row["partitions"], row["segments"], row["outcome"]) for row in rows] == [
        ("orders", 2, 3, "would be adopted")
    ]
    assert files(bucket.parent) == before
    assert not (bucket.parent / "data").exists()


def test_a_dry_run_skips_topics_that_the_metadata_already_has(capsys, bucket):
    assert adopt(capsys, bucket)[1][0]["outcome"] == "adopted"
    assert adopt(capsys, bucket, "--dry-run")[1] == []


def test_a_dry_run_with_another_data_dir_uses_the_checkpoint_in_the_bucket(capsys, bucket):
    assert adopt(capsys, bucket)[1][0]["outcome"] == "adopted"
    before = files(bucket)
    assert adopt(capsys, bucket, "--dry-run", data="another")[1] == []
    assert files(bucket) == before
    assert not (bucket.parent / "another").exists()


def test_a_chosen_topic_that_is_not_there_is_an_error(capsys, bucket):
    code, _, error = adopt(capsys, bucket, "none", "--dry-run")
    assert (code, error.count("\n")) == (1, 1)
    assert "has no topic of this name or id to adopt" in error


def test_a_running_broker_is_not_disturbed(capsys, bucket):
    with lock_data_directory(bucket.parent / "data"):
        code, _, error = adopt(capsys, bucket)
    assert code == 1
    assert "in use by process" in error


@pytest.mark.parametrize("arguments", [[], ["none"]], ids=["nothing to adopt", "misspelt"])
def test_adopting_nothing_does_not_supersede_the_broker(capsys, bucket, arguments):
    """The default --data-dir is one of the directory where one happens to be."""
    assert adopt(capsys, bucket)[1][0]["outcome"] == "adopted"
    before = files(bucket)
    code, rows, error = adopt(capsys, bucket, *arguments, data="another")
    assert (code, rows, "has no topic of this name or id to adopt" in error) == (
        (1, None, True) if arguments else (0, [], False)
    )
    assert files(bucket) == before


def test_a_store_that_is_not_there_is_an_error_and_is_not_made(capsys, tmp_path):
    code, _, error = adopt(capsys, tmp_path / "missing")
    assert code == 1
    assert "there is no bucket" in error
    assert list(tmp_path.iterdir()) == []


def read_all(broker, count):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("orders", 0, OFFSET_BEGINNING)])
    messages, deadline = [], time.monotonic() + 30
    while len(messages) < count and time.monotonic() < deadline:
        messages += consumer.consume(count - len(messages), 0.2)
    consumer.close()
    assert not any(message.error() for message in messages)
    return [(message.offset(), message.value()) for message in messages]


def test_a_client_reads_the_adopted_topic_and_appends_to_the_end(capsys, bucket):
    process = BrokerProcess(directory=bucket.parent, options=["--store", f"file:{bucket}"])
    original = files(bucket)
    assert adopt(capsys, bucket)[0] == 0
    with process:
        read = read_all(process, RECORDS)
        assert read == [(offset, b"%d" % offset + b"." * 200) for offset in range(RECORDS)]
        producer = Producer({"bootstrap.servers": process.bootstrap, "enable.idempotence": True})
        producer.produce("orders", b"behind", partition=0)
        assert producer.flush(30) == 0
        assert read_all(process, RECORDS + 1)[-1] == (RECORDS, b"behind")
        assert process.stop() == 0
        process.start()
        assert read_all(process, RECORDS + 1)[-1] == (RECORDS, b"behind")
    assert files(bucket).items() >= original.items()
