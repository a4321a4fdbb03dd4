"""Empty environments for tests of packages: a clone of tracked files, Pythons of this machine, commands in both."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from tests.devtools.external.clients import wait_until

REPOSITORY = Path(__file__).parents[2]
READY = re.compile(r"kafscale is ready: kafka (\S+) admin (\S+)")
# What would let an environment find more than what was installed into it, or a broker read a developer's settings.
_HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_NO_DEPS", "PIP_PYTHON")
COMMAND_SECONDS = 900


def environ(**settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
    return {name: value for name, value in kept.items() if not name.startswith("KAFSCALE_")} | settings


def run(command: Sequence[str | Path], *, cwd: Path, stdin: str | None = None, **settings: str) -> str:
    """Run a command, and return what it wrote to stdout. Fails with stderr if the exit code is not 0."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=environ(**settings),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
    )
    assert done.returncode == 0, f"{command}: exit code {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def tracked_files() -> list[str]:
    return run(["git", "ls-files"], cwd=REPOSITORY).splitlines()


def make_clone(path: Path, names: Sequence[str]) -> Path:
    """Copy tracked files, as they are in the work tree."""
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, path / name)
    return path


def python_of(version: str) -> str:
    """Return the interpreter as `make test-pythons` finds it; skips the test if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = sorted(pyenv.glob(f"{version}.*/bin/python{version}"), key=lambda path: path.stat().st_mtime)
    candidates = [f"python{version}", *map(str, found)]
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        candidates.insert(0, sys.executable)
    for python in candidates:
        if (
            shutil.which(python)
            and subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0
        ):
            return python
    pytest.skip(f"Python {version} is not installed")


def program(name: str) -> str:
    """Return the path of a program that works; skips the test if there is none."""
    path = shutil.which(name)
    if path is None or subprocess.run([path, "--version"], check=False, capture_output=True).returncode != 0:
        pytest.skip(f"{name} is not installed")
    return path


@attrs.frozen(kw_only=True)
class Environment:
    """A virtual environment, and the directory that its commands run in."""

    path: Path
    work: Path

    @classmethod
    def create(cls, python: str, path: Path) -> Environment:
        work = path / "work"
        run([python, "-m", "venv", path / "venv"], cwd=path.parent)
        work.mkdir()
        return cls(path=path / "venv", work=work)

    def bin(self, name: str) -> str:
        return str(self.path / "bin" / name)

    def install(self, *what: str | Path) -> None:
        run(
            [self.bin("python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what], cwd=self.work
        )


@attrs.frozen(kw_only=True)
class RunningBroker:
    bootstrap: str
    admin: str


@contextmanager
def serving(command: Sequence[str], work: Path, **settings: str) -> Iterator[RunningBroker]:
    """Run a command that serves, on free ports, until the block ends; then its SIGTERM must end it with exit code 0."""
    ports = {"KAFSCALE_LISTEN": "127.0.0.1:0", "KAFSCALE_ADMIN_LISTEN": "127.0.0.1:0"}
    with subprocess.Popen(
        [*command],
        cwd=work,
        env=environ(**ports, **settings),
        text=True,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        lines: list[str] = []
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)
        reader.start()
        try:
            found = wait_for_ready(lines, process)
            yield RunningBroker(bootstrap=found[1], admin=found[2])
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            code = process.wait(120)
            reader.join()
        assert code in (0, -signal.SIGTERM), f"{command} ended with {code}: {lines}"


def wait_for_ready(lines: list[str], process: subprocess.Popen[str]) -> re.Match[str]:
    def look() -> re.Match[str] | None:
        assert process.poll() is None, f"the broker ended: {lines}"
        return next(filter(None, map(READY.match, lines)), None)

    wait_until(look, "a broker that is ready", seconds=300)
    found = look()
    assert found is not None
    return found
