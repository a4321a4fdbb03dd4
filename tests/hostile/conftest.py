"""A broker process to attack; `tests.hostile.hostile` has the client beside the attack and raw connections.

A test says its bounds as constants, generous ones: what an attack cost before it was stopped is many times more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.devtools.processes import timed_loop
from tests.devtools.processes.process import BrokerProcess, broker_process


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """With its default settings, for all tests of a module that count nothing of what is in it or in its log."""
    with broker_process(program=timed_loop.PROGRAM) as running:
        yield running
        assert running.returncode is None, running.log


@pytest.fixture
def own_broker() -> Iterator[BrokerProcess]:
    """The same for one test alone."""
    with broker_process(program=timed_loop.PROGRAM) as running:
        yield running
        assert running.returncode is None, running.log
