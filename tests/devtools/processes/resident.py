"""Memory of a process, and CPU time of its main thread, from /proc."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")
_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs: VmHWM becomes VmRSS


def rss_mib(pid: int) -> float:
    return _status_mib(pid, "VmRSS:")


def peak_rss_mib(pid: int) -> float:
    """Return the peak of resident memory since the start, or since `reset_peak_rss`."""
    return _status_mib(pid, "VmHWM:")


def reset_peak_rss(pid: int) -> None:
    """Reset `peak_rss_mib`. Raises OSError for a process of another user."""
    (PROC / str(pid) / "clear_refs").write_text(_RESET_PEAK)


def main_thread_seconds(pid: int) -> float:
    """Return the CPU time of the main thread, which runs a broker's event loop. Raises OSError if the process has
    gone.
    """
    on_cpu_ns, *_ = (PROC / str(pid) / "task" / str(pid) / "schedstat").read_text().split()
    return int(on_cpu_ns) / 1e9


def _status_mib(pid: int, name: str) -> float:
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0
