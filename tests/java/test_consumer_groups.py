"""The Java client in Kafka 4's consumer groups, and Kafka's tools on such groups: run by `make test-java`."""

from collections.abc import Iterator

import pytest

from bench.peers.kafka import class_path
from tests.devtools.processes.process import broker_process
from tests.java.java_tools import JavaTools
from tests.java.test_java_tools import GROUPS, create, formatted, produce_numbers, table

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

SOON = ("--group-consumer-heartbeat-interval", "200ms")
CONSUMER = ("--group-protocol", "consumer")


@pytest.fixture(scope="module")
def java() -> Iterator[JavaTools]:
    """Tools for a broker whose members learn soon of a rebalance."""
    with broker_process(*SOON) as broker:
        yield JavaTools(bootstrap=broker.bootstrap, class_path=class_path())


def verifiable(java, topic, *arguments):
    return java.start("VerifiableConsumer", "--topic", topic, "--group-id", topic, "--verbose", *arguments)


def read(*consumers):
    return sorted(int(event["value"]) for each in consumers for event in each.named("record_data"))


def has(consumer):
    """The partitions that a member has, as its events tell."""
    found = set()
    for event in consumer.events:
        partitions = {each["partition"] for each in event.get("partitions", ())} if "partitions" in event else set()
        if event["name"] == "partitions_assigned":
            found |= partitions
        elif event["name"] == "partitions_revoked":
            found -= partitions
    return found


def test_kafkas_tools_know_the_groups_of_both_protocols(java, name):
    produce_numbers(java, name, 20)
    consume = ["--topic", name, "--group", name, "--from-beginning", "--max-messages", "15"]
    said = java("consumer.ConsoleConsumer", *consume, "--consumer-property", "group.protocol=consumer")
    assert said.split() == [str(number) for number in range(15)]
    classic = [*consume[:3], f"{name}-classic", *consume[4:]]
    java("consumer.ConsoleConsumer", *classic)
    assert {name, f"{name}-classic"} <= set(java(GROUPS, "--list").split())
    assert name in java(GROUPS, "--list", "--type", "consumer").split()
    assert f"{name}-classic" not in java(GROUPS, "--list", "--type", "consumer").split()
    assert name not in java(GROUPS, "--list", "--type", "classic").split()
    for group in (name, f"{name}-classic"):
        (row,) = table(java(GROUPS, "--describe", "--group", group), "GROUP")
        assert (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == ("15", "20", "5")
        (state,) = table(java(GROUPS, "--describe", "--group", group, "--state"), "GROUP")
        assert "Empty" in state.values()
    offset = formatted(java, "OffsetsMessageFormatter", name)[-1]
    assert offset["key"] == {"type": 1, "data": {"group": name, "topic": name, "partition": 0}}
    assert offset["value"]["data"]["offset"] == 15
    reset = ["--reset-offsets", "--group", name, "--topic", name, "--execute"]
    (row,) = table(java(GROUPS, *reset, "--shift-by", "-3"), "GROUP")
    assert row["NEW-OFFSET"] == "12"
    java(GROUPS, "--delete-offsets", "--group", name, "--topic", name)
    java(GROUPS, "--delete", "--group", name)
    assert name not in java(GROUPS, "--list").split()


def test_two_members_share_all_partitions_and_lose_nothing(java, name):
    create(java, name, 6)
    produce_numbers(java, name, 300)
    with verifiable(java, name, *CONSUMER, "--reset-policy", "earliest") as first:
        first.wait_until(lambda: len(read(first)) == 300, "the first member reads")
        with verifiable(java, name, *CONSUMER, "--reset-policy", "earliest") as second:
            first.wait_until(lambda: len(has(first)) == len(has(second)) == 3, "half for each")
            described = java(GROUPS, "--describe", "--group", name, "--members", "--verbose")
            members = [line for line in described.splitlines() if line.startswith(f"{name} ")]
            assert len(members) == 2
            assert all("consumer" in line for line in members)
            produce_numbers(java, name, 300)
            first.wait_until(lambda: len(read(first, second)) >= 600, "all records")
            second.stop()
            first.wait_until(lambda: has(first) == set(range(6)), "all for the first again")
        first.stop()
    assert read(first, second) == sorted([*range(300), *range(300)])


def test_a_group_changes_its_protocol_while_members_consume(java, name):
    create(java, name, 4)
    produce_numbers(java, name, 100)
    with verifiable(java, name, "--reset-policy", "earliest") as classic:
        classic.wait_until(lambda: len(read(classic)) == 100, "the classic member reads")
        with verifiable(java, name, *CONSUMER, "--reset-policy", "earliest") as new:
            classic.wait_until(lambda: len(has(classic)) == len(has(new)) == 2, "half for each")
            assert name in java(GROUPS, "--list", "--type", "consumer").split()
            produce_numbers(java, name, 100)
            classic.wait_until(lambda: len(read(classic, new)) >= 200, "all records")
            new.stop()
            classic.wait_until(lambda: has(classic) == set(range(4)), "all for the classic member again")
        assert name in java(GROUPS, "--list", "--type", "classic").split()
        classic.stop()
    assert read(classic, new) == sorted([*range(100), *range(100)])
