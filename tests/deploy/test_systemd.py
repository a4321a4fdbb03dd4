"""The systemd unit, and what the broker tells a service manager."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kafscale.config import Settings, options

REPOSITORY = Path(__file__).parents[2]
UNIT = REPOSITORY / "deploy" / "systemd" / "kafscale.service"
PAGE = REPOSITORY / "docs" / "how-to" / "run-as-a-service.md"
DEADLINE_SECONDS = 60.0
EXPOSURE_MAX = 2.0


@pytest.mark.parametrize("abstract", [False, True])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_broker_tells_when_it_is_ready_and_when_it_stops(tmp_path: Path, processes: str, *, abstract: bool) -> None:
    name = f"@kafscale-test-{os.getpid()}-{processes}" if abstract else str(tmp_path / "notify")
    command = [sys.executable, "-m", "kafscale", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--processes", processes]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(DEADLINE_SECONDS)
        manager.bind("\0" + name[1:] if abstract else name)
        environment = {**os.environ, "NOTIFY_SOCKET": name}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert manager.recv(100) == b"READY=1"
                assert process.stdout is not None
                assert process.stdout.readline().startswith("kafscale is ready: ")
                process.send_signal(signal.SIGTERM)
                assert manager.recv(100) == b"STOPPING=1"
                assert process.wait(DEADLINE_SECONDS) == 0
            finally:
                process.kill()


def test_a_manager_that_is_gone_does_not_keep_a_broker_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafscale.service_manager import READY, tell

    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nothing"))
    tell(READY)


def test_the_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    there = UNIT.read_text().replace("/opt/kafscale/bin/kafscale", sys.executable)
    (tmp_path / UNIT.name).write_text(there)
    verified = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / UNIT.name], capture_output=True, text=True, check=False
    )
    assert verified.stderr == ""
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", tmp_path / UNIT.name],
        capture_output=True,
        text=True,
        check=True,
    )
    exposure = re.search(r"exposure level for kafscale.service: ([0-9.]+)", rated.stdout)
    assert exposure is not None
    assert float(exposure[1]) <= EXPOSURE_MAX
    assert f"rates the unit {exposure[1]} " in PAGE.read_text()


def test_variables_of_the_unit_and_its_page_are_options() -> None:
    known = {option.variable for option in options()}
    named = re.findall(r"KAFSCALE_[A-Z_]+[A-Z]", UNIT.read_text() + PAGE.read_text())
    assert named
    assert set(named) <= known


def test_a_stop_may_take_as_long_as_the_broker_needs() -> None:
    seconds = re.search(r"TimeoutStopSec=(\d+)", UNIT.read_text())
    assert seconds is not None
    assert float(seconds[1]) >= Settings().shutdown_timeout_seconds + 15
