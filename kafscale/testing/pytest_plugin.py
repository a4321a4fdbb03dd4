"""Fixtures for tests of Kafka programs, found by the entry point `kafscale`: docs/how-to/test-your-program.md.

pytest loads this module in every run where KafScale is installed, so it imports only pytest; the first fixture that is
used imports the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from kafscale.testing.background_broker import BackgroundBroker
    from kafscale.testing.broker_faults import BrokerFaults
    from kafscale.testing.schema_registry import Registry
    from kafscale.testing.secured_broker import SecuredBroker

MARKER = "kafscale"
BROKERS = ("kafscale_broker", "kafscale_secured_broker", "kafscale_session_broker")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(**options): options of `kafscale serve` for kafscale_broker and kafscale_secured_broker"
    )


@pytest.fixture
def kafscale_broker(request: pytest.FixtureRequest) -> Iterator[BackgroundBroker]:
    """Give the test its own broker, in memory and on a free port."""
    from kafscale.testing.background_broker import running_broker

    with _started(running_broker, request) as broker:
        yield broker


@pytest.fixture
def kafscale_secured_broker(request: pytest.FixtureRequest) -> Iterator[SecuredBroker]:
    """Give the test its own broker with TLS, users and lists; the marker's `protocol` is that of its listener."""
    from kafscale.testing.secured_broker import secured_broker

    with _started(secured_broker, request) as broker:
        yield broker


@pytest.fixture
def kafscale_schema_registry() -> Iterator[Registry]:
    """Give the test its own stand-in for a schema registry, on a free port; its `url` is for serializers."""
    from kafscale.testing.schema_registry import running_registry

    with running_registry() as registry:
        yield registry


AnyBroker = TypeVar("AnyBroker")


@contextmanager
def _started(
    make: Callable[..., AbstractContextManager[AnyBroker]], request: pytest.FixtureRequest
) -> Iterator[AnyBroker]:
    """Run a broker with the marker's options; a wrong one fails the test with its message alone."""
    from kafscale.errors import ConfigError, StartupError

    with ExitStack() as stack:
        broker, failure = None, ""
        try:
            broker = stack.enter_context(make(**_options(request)))
        except (ConfigError, StartupError) as exc:
            failure = str(exc)
        if broker is None:
            pytest.fail(f"@pytest.mark.{MARKER}: {failure}", pytrace=False)
        yield broker


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(MARKER))):  # the closest to the test last
        options |= marker.kwargs
    return options


@pytest.fixture(scope="session")
def kafscale_session_broker() -> Iterator[BackgroundBroker]:
    """Give all tests one broker, with default options."""
    from kafscale.testing.background_broker import running_broker

    with running_broker() as broker:
        yield broker


@pytest.fixture
def kafscale_faults(request: pytest.FixtureRequest) -> Iterator[BrokerFaults]:
    """Give the faults of the test's one broker. They are healed at the end, so that clients can close."""
    found = [name for name in BROKERS if name in request.fixturenames]
    if len(found) != 1:
        advice = (
            f"has {' and '.join(found)}: use the `faults` of one of them" if found else "has no broker: request one"
        )
        pytest.fail(f"kafscale_faults needs one broker, and this test {advice} ({', '.join(BROKERS)})", pytrace=False)
    broker: BackgroundBroker = request.getfixturevalue(found[0])
    yield broker.faults
    broker.faults.heal()
