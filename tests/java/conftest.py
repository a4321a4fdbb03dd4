"""Kafka's own Java tools, resolved by Maven, and a broker process for them."""

from collections.abc import Iterator

import pytest

from bench.peers.kafka import class_path
from tests.devtools.processes import process
from tests.devtools.processes.process import BrokerProcess
from tests.java.java_tools import JavaTools


@pytest.fixture(scope="session")
def java() -> Iterator[JavaTools]:
    with process.broker_process() as broker:
        yield JavaTools(bootstrap=broker.bootstrap, class_path=class_path())


@pytest.fixture
def own_broker() -> Iterator[BrokerProcess]:
    """One to be stopped and killed."""
    with process.broker_process() as broker:
        yield broker


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for this test's topic and group that no other test has."""
    allowed = "".join(each if each.isalnum() else "-" for each in request.node.name.removeprefix("test_"))
    return allowed[:100].strip("-")
