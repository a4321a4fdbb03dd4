"""One Spark session, one broker process and one schema registry for each module that asks for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.devtools.external.registry import Values, running_values
from tests.devtools.external.spark import kafka_source_versions, resolve_jars, start_spark
from tests.devtools.processes.process import BrokerProcess, broker_process


@pytest.fixture(scope="session")
def kafka_source_jars(tmp_path_factory) -> list[str]:
    """Of Spark's Kafka source."""
    return resolve_jars(Path(__file__).with_name("pom.xml"), tmp_path_factory.mktemp("jars"), **kafka_source_versions())


@pytest.fixture(scope="module")
def spark(kafka_source_jars) -> Iterator[object]:
    session = start_spark(jars=kafka_source_jars, **{"spark.sql.python.filterPushdown.enabled": "true"})
    yield session
    session.stop()


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with broker_process() as running:
        yield running


@pytest.fixture(scope="module")
def values() -> Iterator[Values]:
    with running_values() as running:
        yield running
