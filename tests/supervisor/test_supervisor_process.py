"""The supervisor as a process, with stubs in the place of brokers: one ready line, one admin server, one signal."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.devtools.external.clients import wait_until
from tests.devtools.processes.process import is_there
from tests.supervisor.several_stubs import SeveralStubs

Start = Callable[..., SeveralStubs]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[SeveralStubs] = []

    def begin(*options: str, **environ: str) -> SeveralStubs:
        several = SeveralStubs(
            directory=tmp_path / "several",
            options=("--broker-id", "3", *options),
            environ=environ,
        )
        running.append(several.__enter__())
        return several

    yield begin
    for each in running:
        each.__exit__()


def pids(several: SeveralStubs) -> list[int]:
    return [several.pid_of(3), several.pid_of(4)]


def test_one_ready_line_has_all_listeners(start: Start) -> None:
    several = start("--listen", "SECOND=127.0.0.1:0")
    words = several.ready.split()
    assert words[:4] == ["kafscale", "is", "ready:", "kafka"]
    assert words[5] == "admin"
    assert [len(each.split(",")) for each in (words[4], words[6], words[7])] == [2, 1, 2]
    assert len({each.port for each in several.kafka} - {0}) == 2
    assert "broker 4: log of 4:" in several.log
    assert several.end(signal.SIGTERM) == 0


def test_metrics_of_all_are_one_page(start: Start) -> None:
    several = start()
    status, text = several.get("/metrics")
    assert status == 200
    lines = text.splitlines()
    assert 'kafscale_requests_total{broker="3",api="Produce"} 3' in lines
    assert 'kafscale_requests_total{broker="4",api="Produce"} 4' in lines
    assert 'kafscale_partitions{broker="4"} 7' in lines
    assert lines.count("# TYPE kafscale_requests_total counter") == 1
    assert 'kafscale_process_up{broker="3"} 1' in lines
    assert 'kafscale_process_restarts_total{broker="4"} 0' in lines
    assert several.get("/healthz") == (200, "ok\n")
    assert several.get("/readyz") == (200, "ready\n")
    assert several.get("/other")[0] == 404


def test_a_killed_broker_restarts_on_its_port(start: Start) -> None:
    several = start()
    first, second = pids(several)
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: several.pid_of(4) != second, "it is back")
    restarted = 'kafscale_process_restarts_total{broker="4"} 1'
    wait_until(lambda: restarted in several.get("/metrics")[1], "the restart is counted")
    assert several.get("/readyz")[0] == 200
    assert several.pid_of(3) == first
    assert f"'PLAINTEXT={several.kafka[1]}'" in several.log, "the port that it had got"


def test_a_broker_that_does_not_answer_is_named_by_readyz_and_flush(start: Start) -> None:
    several = start()
    os.kill(several.pid_of(4), signal.SIGSTOP)
    try:
        found = several.get("/readyz"), several.get("/flush", "POST")
    finally:
        os.kill(several.pid_of(4), signal.SIGCONT)
    assert set(found) == {(503, "broker 4: it does not answer\n")}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_signal_stops_all(start: Start, number: signal.Signals) -> None:
    several = start()
    children = pids(several)
    assert several.end(number) == 0
    assert not any(map(is_there, children))
    assert "Traceback" not in several.log


def test_an_interrupt_in_a_terminal_reaches_the_supervisor_alone(start: Start) -> None:
    """Ctrl-C is sent to the whole process group; a second signal would have a broker end at once."""
    several = start()
    os.killpg(several.process.pid, signal.SIGINT)
    assert several.process.wait(20) == 0
    assert "KeyboardInterrupt" not in several.log


def test_a_broker_that_shuts_down_too_slowly_is_killed(start: Start) -> None:
    several = start("--shutdown-timeout", "10ms", STUB_LATE="4")
    children = pids(several)
    assert several.end(signal.SIGTERM) == 1
    assert not any(map(is_there, children))
    assert "broker 4 has not ended in time" in several.log


def test_a_second_signal_ends_all_at_once(start: Start) -> None:
    several = start(STUB_LATE="4")
    children = pids(several)
    several.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not is_there(children[0]), "the first one ends")
    began = time.monotonic()
    assert several.end(signal.SIGINT) == 128 + signal.SIGINT
    assert time.monotonic() - began < 5
    wait_until(lambda: not is_there(children[1]), "the second one ends")


def test_no_broker_outlives_a_supervisor_that_is_killed(start: Start) -> None:
    several = start(STUB_LATE="4")
    children = pids(several)
    assert all(map(is_there, children))
    several.process.kill()
    wait_until(lambda: not any(map(is_there, children)), "all end")


def test_a_broker_that_cannot_start_ends_the_supervisor_with_its_message(start: Start) -> None:
    several = start(STUB_REFUSES="4")
    assert several.ready == ""
    assert several.process.wait(10) == 1
    assert "broker 4: kafscale: the port is taken" in several.log
    assert "Traceback" not in several.log


def test_certificates_and_tokens_are_read_again_by_all(start: Start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("before\n")
    token.chmod(0o600)
    several = start("--admin-token-file", str(token))
    assert several.get("/metrics")[0] == 401
    assert several.get("/readyz")[0] == 200
    assert several.get("/metrics", authorization="Bearer before")[0] == 200
    token.write_text("after\n")
    several.process.send_signal(signal.SIGHUP)
    wait_until(lambda: several.get("/metrics", authorization="Bearer after")[0] == 200, "the new token holds")
    wait_until(lambda: "reload of 3" in several.log and "reload of 4" in several.log, "both read again")


def flush(several: SeveralStubs, query: str = "", **headers: str) -> tuple[int, Any]:
    status, text = several.get(f"/flush{query}", "POST", **headers)
    return status, [json.loads(line) for line in text.splitlines()] if status == 200 else text


def test_a_flush_is_that_of_all(start: Start) -> None:
    several = start()
    status, told = flush(several)
    assert status == 200
    assert told[-1] == {"done": True, "segments": 2, "bytes": 70, "wanted_bytes": 70, "seconds": 4}
    assert {each["wanted_bytes"] for each in told} == {70}
    assert flush(several, "?topic=unknown")[1][-1]["bytes"] == 30, "a topic that only one of them knows"
    assert flush(several, "?topic=unknown_everywhere") == (404, "there is no topic\n")
    assert flush(several, host="evil.example")[0] == 403


def test_a_port_that_is_taken_is_named(start: Start, tmp_path: Path) -> None:
    several = start()
    other = SeveralStubs(directory=tmp_path / "other", options=("--admin-listen", str(several.admin)))
    with other:
        assert other.process.wait(10) == 1
    assert f"--admin-listen {several.admin}: another program listens there" in other.log


def test_the_key_of_passwords_is_one_and_private(start: Start) -> None:
    several = start()
    path = several.directory / "data" / "secret.key"
    assert path.stat().st_mode & 0o077 == 0
    assert several.log.count(f"'--secret-key-file', '{path}'") == 2
