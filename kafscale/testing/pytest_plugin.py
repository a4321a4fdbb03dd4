"""Fixtures for people who test their own Kafka programs; pytest finds them by the entry point `kafscale`.

    kafscale_broker           a fresh broker for the test; `.bootstrap` is its address
    kafscale_secured_broker   a fresh broker with TLS, users and access control lists
    kafscale_session_broker   one broker for the whole run; give each test a topic by `.new_topic()`
    kafscale_faults           what can go wrong with the broker that the test has; healed at the end of the test

`@pytest.mark.kafscale(durability="segment", default_partitions=3)` sets options of `kafscale serve` for
`kafscale_broker` and `kafscale_secured_broker`. See docs/how-to/test-your-program.md.

pytest loads this module in every run of everyone who has KafScale installed, so it imports nothing but pytest: a broker
and what it needs are imported by the first fixture that is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kafscale.testing.background_broker import BackgroundBroker
    from kafscale.testing.broker_faults import BrokerFaults
    from kafscale.testing.secured_broker import SecuredBroker

MARKER = "kafscale"
BROKERS = ("kafscale_broker", "kafscale_secured_broker", "kafscale_session_broker")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, for runs with --strict-markers."""
    config.addinivalue_line(
        "markers", f"{MARKER}(**options): options of `kafscale serve` for kafscale_broker and kafscale_secured_broker"
    )


@pytest.fixture
def kafscale_broker(request: pytest.FixtureRequest) -> Iterator[BackgroundBroker]:
    """A broker of the test's own, on a free port, that keeps everything in memory."""
    from kafscale.testing.background_broker import running_broker

    with running_broker(**_options(request)) as broker:
        yield broker


@pytest.fixture
def kafscale_secured_broker(request: pytest.FixtureRequest) -> Iterator[SecuredBroker]:
    """A broker of the test's own with TLS, users and lists; the marker's `protocol` chooses how it is secured."""
    from kafscale.testing.secured_broker import secured_broker

    with secured_broker(**_options(request)) as broker:
        yield broker


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what the markers say."""
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(MARKER))):  # the closest to the test last
        options |= marker.kwargs
    return options


@pytest.fixture(scope="session")
def kafscale_session_broker() -> Iterator[BackgroundBroker]:
    """One broker for all tests that ask for it, with default options."""
    from kafscale.testing.background_broker import running_broker

    with running_broker() as broker:
        yield broker


@pytest.fixture
def kafscale_faults(request: pytest.FixtureRequest) -> Iterator[BrokerFaults]:
    """The knobs of the broker that the test asks for. Healed at the end of the test, so that clients can close.

    Of a test with several brokers it would be a guess, and one with none has nothing that could go wrong.
    """
    found = [name for name in BROKERS if name in request.fixturenames]
    if len(found) != 1:
        told = (
            f"has {' and '.join(found)}: use the `faults` of the one you mean"
            if found
            else "has no broker: ask for one"
        )
        pytest.fail(f"kafscale_faults is about one broker, and this test {told} ({', '.join(BROKERS)})", pytrace=False)
    broker: BackgroundBroker = request.getfixturevalue(found[0])
    yield broker.faults
    broker.faults.heal()
