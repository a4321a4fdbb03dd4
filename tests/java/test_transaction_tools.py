"""Kafka's own Java tools where transactions are looked at, ended, and read: run by `make test-java`."""

import json
import re
import time
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.devtools.external.clients import DEADLINE_SECONDS
from tests.java.java_tools import table

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

COMMAND = "TransactionsCommand"
CONSUMER = "consumer.ConsoleConsumer"
COMMITTED = ("--isolation-level", "read_committed")


@pytest.fixture
def producer(java, name):
    """A transactional producer of another client, whose id is the test's name; it leaves no transaction open."""
    made = Producer({"bootstrap.servers": java.bootstrap, "transactional.id": name})
    made.init_transactions(DEADLINE_SECONDS)
    yield made
    del made


def create(java, topic, partitions=1, *arguments):
    java("TopicCommand", "--create", "--topic", topic, "--partitions", str(partitions), *arguments)


def write(producer, topic, *values, partitions=1):
    """Have the values in a transaction, in each partition, acknowledged."""
    producer.begin_transaction()
    for value in values:
        for partition in range(partitions):
            producer.produce(topic, value, partition=partition)
    assert producer.flush(DEADLINE_SECONDS) == 0


def commit(producer, topic, *values, partitions=1):
    write(producer, topic, *values, partitions=partitions)
    producer.commit_transaction(DEADLINE_SECONDS)


def abort(producer, topic, *values, partitions=1):
    write(producer, topic, *values, partitions=partitions)
    producer.abort_transaction(DEADLINE_SECONDS)


def described(java, transactional_id):
    (row,) = table(java(COMMAND, "describe", "--transactional-id", transactional_id), "CoordinatorId")
    return row


def listed(java, *filters):
    """State by transactional id."""
    rows = table(java(COMMAND, "list", *filters), "TransactionalId")
    return {row["TransactionalId"]: row["TransactionState"] for row in rows}


def producers(java, topic, partition=0):
    at = ("--topic", topic, "--partition", str(partition))
    return table(java(COMMAND, "describe-producers", *at), "ProducerId")


def read(java, topic, count, *arguments):
    """Values from the beginning on; AssertionError when there are fewer."""
    most = ("--max-messages", str(count), "--timeout-ms", "15000")
    said = java(CONSUMER, "--topic", topic, "--from-beginning", *most, *arguments).split()
    assert len(said) == count
    return said


def test_offsets_of_an_aborted_transaction_do_not_count(java, name, producer):
    """A consumer of Java's goes on from what was committed before it."""
    create(java, name)
    commit(producer, name, b"a", b"b", b"c", b"d")
    with closing(Consumer({"bootstrap.servers": java.bootstrap, "group.id": name})) as consumer:
        group = consumer.consumer_group_metadata()
    for offset, end in ((1, producer.commit_transaction), (3, producer.abort_transaction)):
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(name, 0, offset)], group, DEADLINE_SECONDS)
        end(DEADLINE_SECONDS)
    (row,) = table(java("consumer.group.ConsumerGroupCommand", "--describe", "--group", name), "GROUP")
    assert (row["PARTITION"], row["CURRENT-OFFSET"]) == ("0", "1")
    assert read(java, name, 3, "--group", name, *COMMITTED) == ["b", "c", "d"]


def test_transactions_are_listed_and_described(java, name, producer):
    create(java, name, 2)
    write(producer, name, b"open", partitions=2)
    row = described(java, name)
    assert row["TransactionState"] == "Ongoing"
    assert set(row["TopicPartitions"].split(",")) == {f"{name}-0", f"{name}-1"}
    assert row["TransactionTimeoutMs"] == "60000"
    began = int(row["CurrentTransactionStartTimeMs"])
    assert abs(began - time.time() * 1000) < 60_000
    assert 0 <= int(row["TransactionDurationMs"]) < 60_000
    assert listed(java)[name] == "Ongoing"
    assert listed(java, "--transactional-id-pattern", f"{name[:10]}.*") == {name: "Ongoing"}
    assert name not in listed(java, "--duration-filter", "600000")
    producer.commit_transaction(DEADLINE_SECONDS)
    row = described(java, name)
    assert row["TransactionState"] == "CompleteCommit"
    assert "TopicPartitions" not in row
    abort(producer, name, b"aborted")
    assert listed(java)[name] == "CompleteAbort"


def test_an_id_that_never_was_is_not_described(java, name):
    with pytest.raises(AssertionError, match="failed because the ID could not be found"):
        java(COMMAND, "describe", "--transactional-id", name)


def test_producers_of_a_partition_are_described(java, name, producer):
    create(java, name)
    commit(producer, name, b"0", b"1", b"2")
    write(producer, name, b"3", b"4")
    identity = described(java, name)
    (row,) = producers(java, name)
    assert (row["ProducerId"], row["ProducerEpoch"]) == (identity["ProducerId"], identity["ProducerEpoch"])
    assert row["CurrentTransactionStartOffset"] == "4"  # behind the marker
    assert abs(int(row["LastTimestamp"]) - time.time() * 1000) < 60_000
    producer.commit_transaction(DEADLINE_SECONDS)
    (row,) = producers(java, name)
    assert row["CurrentTransactionStartOffset"] == "None"


def test_an_open_transaction_is_aborted_by_its_first_offset(java, name, producer):
    create(java, name)
    commit(producer, name, b"committed")
    write(producer, name, b"open")
    where = ("--topic", name, "--partition", "0")
    with pytest.raises(AssertionError, match="Could not find any open transactions starting at offset 1"):
        java(COMMAND, "abort", *where, "--start-offset", "1")
    java(COMMAND, "abort", *where, "--start-offset", "2")
    (row,) = producers(java, name)
    assert row["CurrentTransactionStartOffset"] == "None"
    java("ConsoleProducer", "--topic", name, send="behind\n")
    assert read(java, name, 2, *COMMITTED) == ["committed", "behind"]


def test_a_transaction_is_terminated_by_its_id(java, name, producer):
    create(java, name)
    write(producer, name, b"open")
    java(COMMAND, "forceTerminateTransaction", "--transactionalId", name)
    assert described(java, name)["TransactionState"] == "Empty"  # for the producer that may come
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(DEADLINE_SECONDS)
    assert caught.value.args[0].fatal()
    java("ConsoleProducer", "--topic", name, send="behind\n")
    assert read(java, name, 1, *COMMITTED) == ["behind"]


def test_no_transaction_of_a_coordinator_hangs(java, name, producer):
    create(java, name)
    write(producer, name, b"open")
    old = ("--max-transaction-timeout", "0")  # minutes: this one is looked up at its coordinator
    broker_id = described(java, name)["CoordinatorId"]
    for where in (("--topic", name, "--partition", "0"), ("--broker-id", broker_id)):
        assert table(java(COMMAND, "find-hanging", *where, *old), "Topic") == []


def test_read_committed_skips_aborted_records_and_end_offsets_count_markers(java, name, producer):
    create(java, name)
    commit(producer, name, b"0")
    abort(producer, name, b"1")
    commit(producer, name, b"2")
    write(producer, name, b"3")
    shown = java(CONSUMER, "--topic", name, "--from-beginning", "--timeout-ms", "4000", *COMMITTED)
    assert shown.split() == ["0", "2"]
    offsets = ("GetOffsetShell", "--topic", name, "--time")
    assert java(*offsets, "latest").strip() == f"{name}:0:7"  # a marker behind each that has ended
    producer.commit_transaction(DEADLINE_SECONDS)
    assert read(java, name, 3, *COMMITTED) == ["0", "2", "3"]
    assert read(java, name, 4) == ["0", "1", "2", "3"]


def test_performance_in_transactions(java, name, tmp_path):
    count = 50_000
    create(java, name, 2)
    rate = ("--num-records", str(count), "--record-size", "100", "--throughput", "-1")
    in_transactions = ("--transactional-id", name, "--transaction-duration-ms", "100")
    assert f"{count} records sent" in java("ProducerPerformance", "--topic", name, *rate, *in_transactions)
    assert described(java, name)["TransactionState"] == "CompleteCommit"
    config = tmp_path / "consumer.properties"
    config.write_text("isolation.level=read_committed\n")
    reading = ("--messages", str(count), "--timeout", "30000", "--consumer.config", str(config))
    assert java("ConsumerPerformance", "--topic", name, *reading).splitlines()[1].split(", ")[4] == str(count)
    latest = java("GetOffsetShell", "--topic", name, "--time", "latest").split()
    assert sum(int(line.split(":")[2]) for line in latest) > count + 2  # several transactions, with a marker each


def test_a_formatter_prints_transactions(java, name, producer):
    create(java, name)
    commit(producer, name, b"0")
    abort(producer, name, b"1")
    said = java(
        *(CONSUMER, "--topic", "__transaction_state", "--from-beginning", "--timeout-ms", "6000"),
        *("--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"),
    )
    lines = said.replace('}{"key"', '}\n{"key"').splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    own = [each["value"]["data"] for each in found if each["key"]["data"]["transactionalId"] == name]
    print(json.dumps(own, indent=1))
    (identity,) = {each["producerId"] for each in own}
    assert identity >= 0
    states = [each["transactionStatus"] for each in own]
    # That the first one is complete need not be written where the next one begins soon.
    assert states in ([0, 1, 2, 1, 3, 5], [0, 1, 2, 4, 1, 3, 5])


def test_a_replica_is_verified(java, name, producer):
    create(java, name)
    commit(producer, name, b"0", b"1", b"2")
    abort(producer, name, b"3")
    at = re.compile(rf"max lag is 0 for partition {name}-0 at offset 6 among 1 partitions")
    often = ("--time", "-2", "--report-interval-ms", "100", "--max-wait-ms", "100")
    with java.start("ReplicaVerificationTool", "--topics-include", name, *often) as verification:
        verification.wait_until(lambda: any(at.search(line) for line in verification.lines), "the replica to be read")
        verification.stop()
    assert not [line for line in verification.lines if "match" in line]
