"""Kafka's own `kafka-acls.sh`, on a broker whose lists act."""

import re

import pytest

from bench.peers.kafka import class_path
from tests.devtools.processes.process import broker_process
from tests.java.java_tools import JavaTools

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

ACLS = "AclCommand"


@pytest.fixture(scope="module")
def acls():
    with broker_process("--authorizer", "acl", "--super-user", "User:ANONYMOUS") as broker:
        yield JavaTools(bootstrap=broker.bootstrap, class_path=class_path())


def entries(text):
    return set(re.findall(r"principal=(\S+), host=(\S+), operation=(\w+), permissionType=(\w+)", text))


def test_lists_are_added_listed_and_removed(acls):
    added = acls(ACLS, "--add", "--allow-principal", "User:bob", "--producer", "--topic", "orders")
    assert {operation for *_, operation, _ in entries(added)} == {"WRITE", "DESCRIBE", "CREATE"}
    acls(
        *(ACLS, "--add", "--deny-principal", "User:eve", "--deny-host", "10.0.0.1", "--operation", "Read"),
        *("--topic", "ord", "--resource-pattern-type", "prefixed"),
    )
    listed = acls(ACLS, "--list", "--topic", "orders", "--resource-pattern-type", "match")
    assert "ResourcePattern(resourceType=TOPIC, name=ord, patternType=PREFIXED)" in listed
    assert entries(listed) == {
        ("User:bob", "*", "WRITE", "ALLOW"),
        ("User:bob", "*", "DESCRIBE", "ALLOW"),
        ("User:bob", "*", "CREATE", "ALLOW"),
        ("User:eve", "10.0.0.1", "READ", "DENY"),
    }
    acls(ACLS, "--remove", "--force", "--topic", "orders")
    assert entries(acls(ACLS, "--list")) == {("User:eve", "10.0.0.1", "READ", "DENY")}
