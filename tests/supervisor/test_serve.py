"""How the supervisor starts brokers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kafscale.config import load
from kafscale.supervisor import supervisor


async def test_processes_are_started_by_the_main_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel ends a process with the thread that made it, and trio's worker threads end when they idle."""
    threads: list[threading.Thread] = []

    def start(*_: object) -> None:
        threads.append(threading.current_thread())
        raise BlockingIOError("none left")

    monkeypatch.setattr(supervisor.Process, "start", start)
    flags = {"data_dir": str(tmp_path / "data"), "listeners": ("127.0.0.1:0",), "admin_listen": "127.0.0.1:0"}
    assert await supervisor.serve(load(flags, {}), 2) == 1
    assert threads == [threading.main_thread()] * 2
