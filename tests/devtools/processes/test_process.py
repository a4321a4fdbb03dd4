"""The broker process of tests: ready, stopped, killed, and what it says when it fails."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.devtools.processes.process import BrokerProcess, ProcessFailed, broker_process


def accepts(broker: BrokerProcess) -> bool:
    with socket.socket() as client:
        return client.connect_ex((broker.kafka.host, broker.kafka.port)) == 0


def test_starts_again_on_the_same_ports_and_data_after_both_ends() -> None:
    with broker_process() as broker:
        addresses = broker.kafka, broker.admin
        assert accepts(broker)
        assert broker.stop() == 0
        assert not accepts(broker)
        broker.start()
        first = broker.pid
        broker.restart(kill=True)
        assert broker.pid != first
        assert (broker.kafka, broker.admin) == addresses
        assert accepts(broker)


def test_environment_variables_of_the_caller_do_not_reach_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFSCALE_LOG_LEVEL", "none such")
    with broker_process() as broker:
        assert accepts(broker)


def test_a_failed_start_raises_an_error_with_the_stderr_of_the_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(directory=tmp_path, environ={"KAFSCALE_LOG_LEVEL": "none such"})
    with pytest.raises(ProcessFailed, match="none such"):
        broker.start()
    assert broker.returncode == 2


def test_not_ready_in_time_is_killed(tmp_path: Path) -> None:
    broker = BrokerProcess(directory=tmp_path)
    with pytest.raises(ProcessFailed, match="not ready in 0 s"):
        broker.start(timeout_seconds=0)
    assert broker.returncode == -9


def test_the_port_of_a_stopped_broker_stays_reserved() -> None:
    """A connection of another program had it as its own port once, and the broker could not start again."""
    with broker_process() as broker, socket.socket() as other:
        broker.kill()
        with pytest.raises(OSError, match="in use"):
            other.bind((broker.kafka.host, broker.kafka.port))
        broker.start()
        assert accepts(broker)


def test_stopping_a_broker_that_already_ended_raises_an_error(tmp_path: Path) -> None:
    with BrokerProcess(directory=tmp_path) as broker:
        broker.kill()
        with pytest.raises(ProcessFailed, match="does not run"):
            broker.stop()
