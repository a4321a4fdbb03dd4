"""A broker process for the tests of unmodified clients, and a word about clients that are not installed."""

import itertools
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.devtools.processes import process
from tests.devtools.processes.process import BrokerProcess

LEFT_OUT: list[str] = []
collect_ignore: list[str] = []

if shutil.which("kcat") is None:
    collect_ignore.append("test_kcat.py")
    LEFT_OUT.append("kcat, which is not installed")

KAFKA_PYTHON_CODECS = {"snappy": "snappy", "lz4": "lz4", "zstandard": "zstd"}  # package: codec
if missing := [package for package in KAFKA_PYTHON_CODECS if find_spec(package) is None]:
    codecs = ", ".join(KAFKA_PYTHON_CODECS[package] for package in missing)
    LEFT_OUT.append(f"kafka-python with {codecs}, for which {', '.join(missing)} must be installed")

_counter = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "run the tests on brokers with TLS, logins and lists; for tests/clients alone"
    parser.addoption("--secured", action="store_true", help=help_text)
    help_text = "run the tests on so many brokers of one machine; for tests/clients alone"
    parser.addoption("--processes", type=int, default=1, help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--secured", False):
        from tests.clients import secured

        secured.install()
        collect_ignore.extend(secured.LEFT_OUT)
    if (count := config.getoption("--processes", 1)) > 1:
        from tests.devtools.processes import several_processes

        several_processes.install(count)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--processes", 1) > 1:
        from tests.devtools.processes import several_processes

        for item in items:
            if (why := several_processes.left_out(item)) is not None:
                item.add_marker(pytest.mark.skip(reason=why))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LEFT_OUT:
        terminalreporter.write_line(f"Clients left out: {'; '.join(LEFT_OUT)}.")


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    """One for all tests that neither stop it nor count what is in it."""
    with process.broker_process() as running:
        yield running


@pytest.fixture(scope="module")
def own_broker() -> Iterator[BrokerProcess]:
    """One to be stopped and killed, and started again, by the tests of a module that do that."""
    with process.broker_process() as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for this test's topic and group that no other test has."""
    return f"{re.sub('[^a-z0-9]+', '-', request.node.name)[:80].strip('-')}-{next(_counter)}"
