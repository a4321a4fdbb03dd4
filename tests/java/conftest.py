"""Kafka's own Java tools, resolved by Maven, and a broker process for them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafscale.testing.java import JavaTools
from kafscale.testing.process import BrokerProcess, broker_process

RESOLVE_TIMEOUT_SECONDS = 900.0  # the first time, everything is downloaded


@pytest.fixture(scope="session")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("java") / "class-path"
    resolve = ["mvn", "-q", "-B", "-f", str(Path(__file__).parent / "pom.xml"), "dependency:build-classpath"]
    done = subprocess.run(
        [*resolve, f"-Dmdep.outputFile={file}"], capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_SECONDS
    )
    assert done.returncode == 0, done.stdout
    return file.read_text()


@pytest.fixture(scope="session")
def java(class_path: str) -> Iterator[JavaTools]:
    with broker_process() as broker:
        yield JavaTools(bootstrap=broker.bootstrap, class_path=class_path)


@pytest.fixture
def own_broker() -> Iterator[BrokerProcess]:
    """One to be stopped and killed."""
    with broker_process() as broker:
        yield broker


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for this test's topic and group that no other test has."""
    allowed = "".join(each if each.isalnum() else "-" for each in request.node.name.removeprefix("test_"))
    return allowed[:100].strip("-")
