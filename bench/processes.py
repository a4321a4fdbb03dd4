"""Readings of /proc about a process, and about the machine; and how a process is ended."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

PROC = Path("/proc")
LISTENING = "0A"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STOP_SECONDS = 30


def cpu_seconds(pid: int) -> float:
    """User and system time that the process has used, all threads together."""
    return _cpu_seconds(PROC / str(pid))


def with_descendants_cpu_seconds(pid: int) -> float:
    """Return what the process and all below it have used."""
    return cpu_seconds(pid) + descendants_cpu_seconds(pid)


def main_thread_cpu_seconds(pid: int) -> float:
    """Return what `cpu_seconds` tells, of the thread that the process began with: a broker's event loop."""
    return _cpu_seconds(PROC / str(pid) / "task" / str(pid))


def _cpu_seconds(directory: Path) -> float:
    fields = (directory / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def descendants_cpu_seconds(pid: int) -> float:
    """Return what all processes below this one have used, those that have ended and were waited for among them."""
    fields = _all_fields()
    ended = sum(map(int, fields[pid][13:15])) if pid in fields else 0
    below = _below(pid, fields)
    return (ended + sum(int(value) for process in below for value in fields[process][11:15])) / TICKS_PER_SECOND


def descendants(pid: int) -> set[int]:
    """Return the processes below this one."""
    return _below(pid, _all_fields())


def _all_fields() -> dict[int, list[str]]:
    return {int(path.name): values for path in PROC.glob("[0-9]*") if (values := _stat(path))}


def _below(pid: int, fields: Mapping[int, Sequence[str]]) -> set[int]:
    below = {pid}
    for _ in fields:
        found = {process for process, values in fields.items() if int(values[1]) in below} - below
        if not found:
            break
        below |= found
    return below - {pid}


def _stat(path: Path) -> list[str]:
    """Fields from the state on; nothing of a process that has just ended."""
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def listener_pid(port: int) -> int | None:
    """The process that listens on a TCP port of this machine; None if it is not here, or not ours to see."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for descriptors in PROC.glob("[0-9]*/fd"):
        try:
            if any(os.readlink(descriptor) in inodes for descriptor in descriptors.iterdir()):
                return int(descriptors.parent.name)
        except OSError:
            continue
    return None


@attrs.frozen
class Stolen:
    """Return the CPU seconds of all cores that the host of a virtual machine has kept from it, up to a moment."""

    cpu_seconds: float
    at_seconds: float

    @classmethod
    def now(cls) -> Stolen:
        """0 where the kernel does not tell."""
        fields = (PROC / "stat").read_text().splitlines()[0].split()
        return cls(int(fields[8]) / TICKS_PER_SECOND, time.monotonic())

    def percent_since(self, before: Stolen) -> float:
        """Return the share that was stolen of all that the cores could have done since then."""
        could = (self.at_seconds - before.at_seconds) * (os.cpu_count() or 1)
        return round((self.cpu_seconds - before.cpu_seconds) / could * 100, 1)


def stop(process: subprocess.Popen[Any]) -> None:
    """Ask it to end, and kill it if it does not do so in time."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
