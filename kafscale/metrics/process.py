"""Metrics of this process and build, under the names that Prometheus' own libraries use."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kafscale import __version__
from kafscale.metrics.families import Metrics, Sample

_STAT: Final = Path("/proc/self/stat")
_DESCRIPTORS: Final = "/proc/self/fd"
_START_FIELD: Final = 19  # of the fields of proc(5) behind the name, which may hold anything: the 22nd
_VIRTUAL_FIELD: Final = 20
_RESIDENT_FIELD: Final = 21


def register_process(metrics: Metrics) -> None:
    """Register `kafscale_build_info`, and `process_*` where there is a /proc."""
    metrics.callback(
        "kafscale_build_info",
        "Version of KafScale and of Python; the value is 1.",
        "version",
        "python_version",
        samples=lambda: [((__version__, platform.python_version()), 1)],
    )
    try:
        started_at = _started_at()
    except (OSError, StopIteration):
        return
    help = "CPU time of the process, user and system."
    metrics.count("process_cpu_seconds_total", help, time.process_time)
    help = "Start of the process, in seconds since 1970."
    metrics.gauge("process_start_time_seconds", help, lambda: started_at)
    help = "Resident memory of the process."
    metrics.gauge(
        "process_resident_memory_bytes", help, lambda: int(_fields()[_RESIDENT_FIELD]) * resource.getpagesize()
    )
    help = "Virtual memory of the process."
    metrics.gauge("process_virtual_memory_bytes", help, lambda: int(_fields()[_VIRTUAL_FIELD]))
    help = "Open file descriptors of the process."
    metrics.callback("process_open_fds", help, samples=_open_descriptors, is_in_pieces=True)
    help = "Limit of open file descriptors of the process."
    metrics.gauge("process_max_fds", help, lambda: float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def _fields() -> list[str]:
    return _STAT.read_text().rpartition(")")[2].split()


def _started_at() -> float:
    lines = Path("/proc/stat").read_text().splitlines()
    booted_at = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted_at + int(_fields()[_START_FIELD]) / os.sysconf("SC_CLK_TCK")


def _open_descriptors() -> Iterator[Sample | None]:
    """Count entries one by one: there is one for each of up to 10,000 connections."""
    try:
        entries = os.scandir(_DESCRIPTORS)
    except OSError:  # no descriptor is left to read the directory: the page has all other metrics
        return
    count = 0
    with entries:
        for _ in entries:
            count += 1
            yield None
    yield (), count - 1  # without the one that reads the directory
