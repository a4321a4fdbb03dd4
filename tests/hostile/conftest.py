"""A broker process to attack; `tests.devtools.hostile` has the client beside the attack and raw connections.

A test says its bounds as constants, generous ones: what an attack cost before it was stopped is many times more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.devtools.process import BrokerProcess, broker_process


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    """With its default settings; a test that needs others uses `broker_process` itself."""
    with broker_process() as running:
        yield running
        assert running.returncode is None, running.log
