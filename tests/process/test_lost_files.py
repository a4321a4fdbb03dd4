"""A broker whose data directory loses `metadata.db`, gets an older copy of it, or loses files of the log."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kafscale.cli.main import run
from tests.devtools.processes.process import BrokerProcess

RECORDS_COUNT = 100
UNFLUSHED = ("--durability", "wal", "--flush-interval", "1h", "--auto-create-topics", "false")


@pytest.fixture
def broker(tmp_path):
    process = BrokerProcess(directory=tmp_path, options=UNFLUSHED)
    with process:
        yield process


def ask(capsys, broker, command, *arguments):
    store = broker.directory / "data" / "bucket"
    code = run([command, *arguments, "--json", "--data-dir", str(broker.data_dir), "--store", f"file:{store}"])
    written = capsys.readouterr()
    return code, json.loads(written.out) if written.out else None, written.err


def metadata_files(broker) -> list[Path]:
    return list(broker.data_dir.glob("metadata.db*"))


def administer(broker, change) -> None:
    """Ask the broker for a change, and wait until it is made."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for outcome in change(client).values():
        outcome.result(30)


def create(broker, name, partition_count=2) -> None:
    administer(broker, lambda client: client.create_topics([NewTopic(name, partition_count)]))


def produce(broker, topic, partition=0, count=RECORDS_COUNT, begin=0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for number in range(begin, begin + count):
        producer.produce(topic, b"%d" % number, partition=partition)
        if not number % 10:
            assert producer.flush(30) == 0
    assert producer.flush(30) == 0


def read_all(broker, topic, count, partition=0) -> list[tuple[int, bytes]]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    messages = consumer.consume(count, 30)
    consumer.close()
    return [(message.offset(), message.value()) for message in messages]


def topics(broker) -> dict[str, int]:
    listed = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    return {name: len(topic.partitions) for name, topic in listed.items() if not name.startswith("__")}


def errors(log: str) -> list[str]:
    return [line for line in log.splitlines() if "ERROR" in line]


def records(begin=0, end=RECORDS_COUNT) -> list[tuple[int, bytes]]:
    return [(offset, b"%d" % offset) for offset in range(begin, end)]


def test_acknowledged_records_were_dropped_without_a_word_where_metadata_was_lost(broker, capsys):
    create(broker, "orders")
    produce(broker, "orders")
    broker.kill()
    for path in metadata_files(broker):
        path.unlink()
    code, report, error = ask(capsys, broker, "verify")
    assert (code, report["whole"]) == (1, False)
    assert "metadata.db: is missing" in error
    (unknown,) = [each for each in report["findings"] if each["kind"] == "wal"]
    assert re.search(r"offsets 0 to 99, are of partition 0 of orders \(\S+\)", unknown["message"])

    broker.start()
    missing, kept = errors(broker.log)
    assert "metadata.db is missing" in missing
    assert "record batches that were acknowledged here are not in the log" in kept
    assert "orders (" in kept
    assert topics(broker) == {}
    assert broker.stop() == 0
    code, report, _ = ask(capsys, broker, "verify")
    assert (code, report["whole"]) == (0, True)
    assert ["kept aside" in each["message"] for each in report["findings"]] == [True]

    code, (row,), _ = ask(capsys, broker, "adopt", "--dry-run")
    assert (code, row["topic"], row["outcome"]) == (0, "orders", "would be adopted")
    code, (row,), _ = ask(capsys, broker, "adopt")
    assert (code, row["topic"], row["partitions"], row["outcome"]) == (0, "orders", 1, "adopted")
    broker.start()
    assert read_all(broker, "orders", RECORDS_COUNT) == records()
    produce(broker, "orders", begin=RECORDS_COUNT, count=1)
    assert read_all(broker, "orders", RECORDS_COUNT + 1)[-1] == (RECORDS_COUNT, b"100")
    assert broker.stop() == 0
    assert ask(capsys, broker, "adopt")[1] == []
    assert ask(capsys, broker, "verify")[1]["findings"] == []
    assert len(errors(broker.log)) == 2


def test_partitions_that_an_older_copy_of_the_metadata_does_not_know_come_back(broker, capsys):
    create(broker, "orders")
    assert broker.stop() == 0
    copy = broker.directory / "copy"
    shutil.copytree(broker.data_dir, copy)
    broker.start()
    administer(broker, lambda client: client.create_partitions([NewPartitions("orders", 4)]))
    create(broker, "payments")
    for topic, partition in (("orders", 3), ("orders", 1), ("payments", 0)):
        produce(broker, topic, partition)
    broker.kill()
    for path in metadata_files(broker):
        path.unlink()
    for path in copy.glob("metadata.db*"):
        shutil.copy(path, broker.data_dir)
    shutil.rmtree(broker.data_dir / "bucket")
    shutil.copytree(copy / "bucket", broker.data_dir / "bucket")

    broker.start()
    assert topics(broker) == {"orders": 2}
    assert read_all(broker, "orders", RECORDS_COUNT, 1) == records()
    broker.kill()
    code, rows, _ = ask(capsys, broker, "adopt")
    assert (code, [(row["topic"], row["outcome"]) for row in rows]) == (
        0,
        [("orders", "adopted"), ("payments", "adopted")],
    )
    broker.start()
    assert topics(broker) == {"orders": 4, "payments": 1}
    for topic, partition in (("orders", 3), ("orders", 1), ("payments", 0)):
        assert read_all(broker, topic, RECORDS_COUNT, partition) == records()


def test_a_lost_topic_with_a_taken_name_is_adopted_under_another_name(broker, capsys):
    create(broker, "orders")
    produce(broker, "orders")
    broker.kill()
    for path in metadata_files(broker):
        path.unlink()
    broker.start()
    create(broker, "orders")
    produce(broker, "orders", count=1)
    assert broker.stop() == 0
    code, (row,), error = ask(capsys, broker, "adopt", "orders")
    assert (code, row["outcome"].split(":")[0]) == (1, "refused")
    assert "--as" in error
    code, (row,), _ = ask(capsys, broker, "adopt", row["id"], "--as", "orders-before")
    assert (code, row["outcome"]) == (0, "adopted")
    broker.start()
    assert read_all(broker, "orders", 1) == records(0, 1)
    assert read_all(broker, "orders-before", RECORDS_COUNT) == records()


def test_a_topic_that_was_deleted_is_not_kept_aside(broker, capsys):
    create(broker, "orders")
    produce(broker, "orders")
    administer(broker, lambda client: client.delete_topics(["orders"]))
    broker.kill()
    assert ask(capsys, broker, "verify")[1]["findings"] == []
    broker.start()
    assert errors(broker.log) == []
    assert not list(broker.data_dir.glob("wal/superseded-*"))


@pytest.mark.parametrize("loss", ["deleted", "emptied", "directory"])
def test_offsets_were_given_out_again_where_files_of_the_log_had_gone(broker, capsys, loss):
    create(broker, "orders")
    produce(broker, "orders")
    broker.kill()
    for path in broker.data_dir.glob("wal/wal-*.log"):
        if loss == "emptied":
            path.write_bytes(b"")
        else:
            path.unlink()
    if loss == "directory":
        shutil.rmtree(broker.data_dir / "wal")
    code, report, _ = ask(capsys, broker, "verify")
    assert (code, report["whole"]) == (1, False)
    assert "is missing or empty" in {each["message"] for each in report["findings"]}
    broker.start()
    (told,) = errors(broker.log)
    assert "is not whole" in told
    produce(broker, "orders", count=1)
    (record,) = read_all(broker, "orders", 1)
    assert record[0] >= 1 << 31
    assert broker.stop() == 0
    (gap,) = [each for each in ask(capsys, broker, "verify")[1]["findings"] if each["damage"]]
    assert "lost with files of the write-ahead log" in gap["message"]
    broker.start()
    assert len(errors(broker.log)) == 1
    assert read_all(broker, "orders", 1) == [record]
