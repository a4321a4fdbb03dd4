"""Quotas, set by Kafka's own `kafka-configs.sh`, and what a Java client makes of being told to hold back."""

import re

import pytest

from bench.peers.kafka import class_path
from tests.devtools.processes.process import broker_process
from tests.java.java_tools import JavaTools

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "TopicCommand"
ALICE, ANY_USER = ("--entity-type", "users", "--entity-name", "alice"), ("--entity-type", "users", "--entity-default")
LOADER = ("--entity-type", "clients", "--entity-name", "loader")
ANY_CLIENT = ("--entity-type", "clients", "--entity-default")
ADDRESS, ANY_ADDRESS = (
    ("--entity-type", "ips", "--entity-name", "192.0.2.1"),
    ("--entity-type", "ips", "--entity-default"),
)


@pytest.fixture(scope="module")
def java():
    with broker_process() as broker:
        yield JavaTools(bootstrap=broker.bootstrap, class_path=class_path())


@pytest.mark.parametrize(
    ("entity", "config", "row"),
    [
        (LOADER, "producer_byte_rate=1024", "client-id 'loader' are producer_byte_rate=1024.0"),
        (ANY_CLIENT, "consumer_byte_rate=9000000", "the default client-id are consumer_byte_rate=9000000.0"),
        (ALICE, "request_percentage=12.5", "user-principal 'alice' are request_percentage=12.5"),
        (ANY_USER, "controller_mutation_rate=1000", "the default user-principal are controller_mutation_rate=1000.0"),
        (
            (*ALICE, *LOADER),
            "producer_byte_rate=1,consumer_byte_rate=2",
            "user-principal 'alice', client-id 'loader' are consumer_byte_rate=2.0, producer_byte_rate=1.0",
        ),
        (
            (*ALICE, *ANY_CLIENT),
            "producer_byte_rate=3",
            "user-principal 'alice', the default client-id are producer_byte_rate=3.0",
        ),
        (
            (*ANY_USER, *ANY_CLIENT),
            "producer_byte_rate=400000000",
            "the default user-principal, the default client-id are producer_byte_rate=4.0E8",
        ),
        (ADDRESS, "connection_creation_rate=5", "ip '192.0.2.1' are connection_creation_rate=5.0"),
        (ANY_ADDRESS, "connection_creation_rate=1000", "the default ip are connection_creation_rate=1000.0"),
    ],
)
def test_each_kind_is_set_described_and_removed(java, entity, config, row):
    java(CONFIGS, *entity, "--alter", "--add-config", config)
    assert f"Quota configs for {row}\n" in java(CONFIGS, *entity, "--describe")
    java(CONFIGS, *entity, "--alter", "--delete-config", ",".join(re.findall(r"(\w+)=", config)))


def test_removed_quotas_are_not_described(java):
    java(CONFIGS, *ALICE, "--alter", "--add-config", "consumer_byte_rate=1")
    java(CONFIGS, *ALICE, "--alter", "--delete-config", "consumer_byte_rate")
    assert "Quota configs" not in java(CONFIGS, *ALICE, "--describe")


def test_quotas_of_one_entity_type_are_listed_together(java):
    for entity in (ALICE, ANY_USER, (*ALICE, *LOADER)):
        java(CONFIGS, *entity, "--alter", "--add-config", "consumer_byte_rate=1000000")
    said = java(CONFIGS, "--entity-type", "users", "--describe")
    told = [line.removeprefix("Quota configs for ").split(" are ")[0] for line in said.splitlines()]
    assert sorted(told) == ["the default user-principal", "user-principal 'alice'"]
    said = java(CONFIGS, "--entity-type", "users", "--entity-type", "clients", "--describe")
    assert "Quota configs for user-principal 'alice', client-id 'loader' are" in said
    for entity in (ALICE, ANY_USER, (*ALICE, *LOADER)):
        java(CONFIGS, *entity, "--alter", "--delete-config", "consumer_byte_rate")


def test_the_config_tool_reports_refused_quotas(java):
    with pytest.raises(AssertionError, match="producer_byte_rate cannot be a fractional value"):
        java(CONFIGS, *LOADER, "--alter", "--add-config", "producer_byte_rate=1.5")
    with pytest.raises(AssertionError, match="request_percentage must be greater than 0"):
        java(CONFIGS, *LOADER, "--alter", "--add-config", "request_percentage=0")


def test_a_throttled_topic_creation_succeeds_after_the_quota_is_raised(java):
    anonymous = ("--entity-type", "users", "--entity-name", "ANONYMOUS")
    java(CONFIGS, *anonymous, "--alter", "--add-config", "controller_mutation_rate=10")
    java(TOPICS, "--create", "--topic", "large", "--partitions", "500")  # 110 may come at once: 39 s are missing
    with pytest.raises(AssertionError, match="The throttling quota has been exceeded"):
        java(TOPICS, "--create", "--topic", "small", "--partitions", "1")
    java(CONFIGS, *anonymous, "--alter", "--add-config", "controller_mutation_rate=1000000")
    java(TOPICS, "--create", "--topic", "small", "--partitions", "1")
    java(CONFIGS, *anonymous, "--alter", "--delete-config", "controller_mutation_rate")
