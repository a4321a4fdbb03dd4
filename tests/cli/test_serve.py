"""`kafscale serve` around the broker: what reaches it, and what becomes of what it raises."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from kafscale.cli.main import run
from kafscale.cli.serve import ANEW_CODE
from kafscale.config import Settings
from kafscale.errors import DeclaredDead, StartupError, StorageFailed

pytestmark = pytest.mark.usefixtures("_restored_logging")

Serving = Callable[[Settings], None]


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Callable[[Serving], None]:
    """Put a function in the place of the broker."""

    def put(function: Serving) -> None:
        async def serve(settings: Settings) -> None:
            await trio.lowlevel.checkpoint()
            function(settings)

        monkeypatch.setattr("kafscale.serving.serve", serve)

    return put


def raising(*errors: Exception) -> Serving:
    def function(settings: Settings) -> None:
        raise ExceptionGroup("nursery", [ExceptionGroup("nursery", errors)])

    return function


def test_settings_from_all_places_reach_the_broker(
    serving: Callable[[Serving], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Settings] = []
    serving(seen.append)
    file = tmp_path / "kafscale.toml"
    file.write_text("broker-id = 7\n")
    monkeypatch.setenv("KAFSCALE_LOG_LEVEL", "warning")
    assert run(["serve", "--config", str(file), "--listen", "127.0.0.1:0", "--listen", "OUT=0.0.0.0:0"]) == 0
    (settings,) = seen
    assert settings.broker_id == 7
    assert [str(listener) for listener in settings.listeners] == ["PLAINTEXT=127.0.0.1:0", "OUT=0.0.0.0:0"]
    assert logging.getLogger("kafscale").level == logging.WARNING


@pytest.mark.parametrize("error", [StartupError("port 9092 is taken"), StorageFailed("no space\nleft")])
def test_a_failure_of_the_broker_gives_one_line(
    serving: Callable[[Serving], None], capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    serving(raising(error))
    assert run(["serve"]) == 1
    assert capsys.readouterr().err == f"kafscale: {' '.join(str(error).split())}\n"


def test_a_bug_keeps_its_traceback(serving: Callable[[Serving], None]) -> None:
    serving(raising(StartupError("x"), ZeroDivisionError("a bug")))
    with pytest.raises(ExceptionGroup):
        run(["serve"])


def test_an_interrupt_in_a_nursery_exits_130(serving: Callable[[Serving], None]) -> None:
    def interrupted(settings: Settings) -> None:
        raise BaseExceptionGroup("nursery", [KeyboardInterrupt()])

    serving(interrupted)
    assert run(["serve"]) == 130


def test_a_broker_declared_dead_restarts_in_the_same_process(
    serving: Callable[[Serving], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Replaced(Exception):
        pass

    def execv(_path: str, arguments: list[str]) -> None:
        assert arguments == sys.orig_argv
        raise Replaced

    serving(raising(DeclaredDead("broker 1 was declared dead by the others")))
    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(Replaced):
        run(["serve"])
    assert "kafscale.cli.serve: broker 1 was declared dead by the others; starting again\n" in capsys.readouterr().err


def test_a_broker_declared_dead_is_restarted_by_its_supervisor(
    serving: Callable[[Serving], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving(raising(DeclaredDead("broker 1 was declared dead by the others")))
    monkeypatch.setenv("KAFSCALE_SUPERVISOR_PID", "1")
    monkeypatch.setattr("kafscale.concurrency.process.end_with", lambda _pid: None)
    assert run(["serve"]) == ANEW_CODE
