"""The section on three machines can be followed: its commands are run as they are written.

The machines are directories. `ssh`, which stands before the real one on the PATH, does on them what the page asks of
systemd, by processes that listen on free ports of the loopback; addresses of the page stand for these.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "several-brokers.md").read_text()
SECTION = PAGE.split("\n## Three machines, command by command\n")[1]
MACHINES = ("machine-1", "machine-2", "machine-3", "machine-4")
_FILE = re.compile(r"# (/etc/\S+)(?: of (\S+))?\n")

SSH = """#!{python}
import os, pathlib, shlex, shutil, signal, subprocess, sys, time

machine, *words = sys.argv[1:]
home = pathlib.Path({directory!r}) / machine
if words[0] == "sudo":
    words = words[3:] if words[1] == "-u" else words[1:]


def start():
    unit = (home / "kafscale.service").read_text()
    (command,) = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart=")]
    command = command.replace("/usr/local/bin/", "").replace("/var/lib", str(home)).replace("s3://events", {store!r})
    variables = dict(line.split("=", 1) for line in (home / "kafscale.env").read_text().splitlines()[1:])
    environ = os.environ | variables | {{"KAFSCALE_ADMIN_LISTEN": (home / "admin").read_text()}}
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(shlex.split(command), env=environ, stdout=log, stderr=log, start_new_session=True)
    (home / "pid").write_text(str(process.pid))


def stop(number):
    pid = int((home / "pid").read_text())
    os.kill(pid, number)
    while pathlib.Path(f"/proc/{{pid}}/stat").exists() and " Z " not in pathlib.Path(f"/proc/{{pid}}/stat").read_text():
        time.sleep(0.05)


if words == ["systemctl", "daemon-reload"]:
    pass
elif words[0] == "systemctl":
    if words[1] in ("stop", "restart"):
        stop(signal.SIGTERM)
    if words[1] in ("start", "restart"):
        start()
elif words[0] == "poweroff":
    stop(signal.SIGKILL)
    shutil.rmtree(home)
else:
    admin = (home / "admin").read_text()
    places = {{"/etc/systemd/system": str(home), "/var/lib": str(home), "s3://events": {store!r}}}
    places["127.0.0.1:9644"] = admin
    for written, place in places.items():
        words = [word.replace(written, place) for word in words]
    sys.exit(subprocess.run(words).returncode)
"""


def free_addresses(names: list[str]) -> dict[str, str]:
    with ExitStack() as sockets:
        bound = {name: sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for name in names}
        return {name: f"127.0.0.1:{each.getsockname()[1]}" for name, each in bound.items()}


def fields(line: str) -> list[str]:
    return line.split()


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's commands are curl's, too")
def test_the_page_can_be_followed(tmp_path: Path) -> None:
    written = [f"10.0.0.{number}:9092" for number in range(1, 5)]
    addresses = free_addresses([*written, *MACHINES])
    for machine in MACHINES:
        (tmp_path / machine).mkdir()
        (tmp_path / machine / "admin").write_text(addresses[machine])
    programs = tmp_path / "programs"
    programs.mkdir()
    ssh = programs / "ssh"
    ssh.write_text(SSH.format(python=sys.executable, directory=str(tmp_path), store=f"file:{tmp_path / 'bucket'}"))
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KAFSCALE_")}
    environ["PATH"] = os.pathsep.join([str(programs), str(Path(sys.executable).parent), environ["PATH"]])
    printed, shown_count = "", 0
    try:
        for language, text in blocks_of(SECTION):
            for address in written:
                text = text.replace(address, addresses[address])
            file = _FILE.match(text)
            if file is not None:
                for machine in [file[2]] if file[2] else MACHINES:
                    (tmp_path / machine / Path(file[1]).name).write_text(text)
            elif language == "sh":
                done = subprocess.run(["bash", "-euc", text], env=environ, capture_output=True, text=True, timeout=240)
                logs = "".join(log.read_text()[-3000:] for log in tmp_path.glob("machine-*/log"))
                assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}\n{logs}"
                printed = done.stdout
            elif language == "text":
                shown_count += 1
                rows = [fields(line) for line in printed.splitlines()]
                for line in text.splitlines():
                    wanted = fields(line)
                    assert any(row[: len(wanted)] == wanted for row in rows), f"{line} is not in {printed}"
    finally:
        for pid in tmp_path.glob("machine-*/pid"):
            subprocess.run(["kill", "-9", pid.read_text()], capture_output=True, check=False)
    assert shown_count == 5
