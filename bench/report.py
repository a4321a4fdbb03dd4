"""The table on the terminal and the JSON file of a run."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
from rich.console import Console
from rich.table import Table

from bench.figures import Result, middle
from bench.places import LOCAL_RESULTS
from bench.processes import PROC
from kafscale import __version__

WIDTH = 190  # of a table that does not go to a terminal

MachineFact = str | float | list[float]


def console() -> Console:
    """Wide enough for a table, also where there is no terminal."""
    return Console() if Console().is_terminal else Console(width=WIDTH)


def show(results: Sequence[Result], title: str) -> None:
    """One row per point and broker: the medians of its rounds, and how far apart these lie."""
    table = Table(title=title)
    table.add_column("point", no_wrap=True)
    table.add_column("broker")
    for heading in headings()[2:]:
        table.add_column(heading, justify="right")
    for cells in rows(results):
        table.add_row(*cells)
    console().print(table)


def headings() -> Sequence[str]:
    """Return the headings of what `rows` gives."""
    return ["point", "broker", "rounds", *_COLUMNS, "p99 ms, from–to", "requests/s, from–to"]


def rows(results: Sequence[Result]) -> Iterator[Sequence[str]]:
    """A row for each point and broker, in the order in which they were measured."""
    for point, broker in dict.fromkeys((result.point, result.broker) for result in results):
        rounds = [result for result in results if (result.point, result.broker) == (point, broker)]
        medians = [_cell(middle([read(round) for round in rounds])) for read in _COLUMNS.values()]
        spreads = [
            _spread([round.figures.p99_ms for round in rounds]),
            _spread([round.requests_per_second for round in rounds]),
        ]
        yield [point, broker, str(len(rounds)), *medians, *spreads]


_COLUMNS: dict[str, Callable[[Result], float | None]] = {
    "p50 ms": lambda each: each.figures.p50_ms,
    "p99 ms": lambda each: each.figures.p99_ms,
    "p99.9 ms": lambda each: each.figures.p999_ms,
    "MiB/s": lambda each: each.mib_per_second,
    "requests/s": lambda each: each.requests_per_second,
    "CPU s": lambda each: each.cpu_seconds,
    "CPU us/request": lambda each: each.cpu_us_per_request,
    "RSS MiB": lambda each: each.rss_mib,
    "fsyncs": lambda each: each.syncs,
    "PUTs": lambda each: each.puts,
    "GETs": lambda each: each.gets,
    "steal %": lambda each: each.steal_percent,
}


def _cell(value: float | None) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"


def _spread(values: Sequence[float]) -> str:
    """Tell the spread, from the least to the most."""
    return f"{_cell(min(values))}–{_cell(max(values))}" if len(values) > 1 else "–"


def machine() -> dict[str, MachineFact]:
    """Return what a figure depends on besides the code."""
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": _first_value("cpuinfo", "model name"),
        "cpus": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "congestion_control": _congestion_control(),
        "load_average": [round(average, 2) for average in os.getloadavg()],
    }


def _congestion_control() -> str:
    """Return the congestion control of TCP, which decides how fast the loopback is: BBR has it wait by timers, with
    many connections for long.
    """
    try:
        return (PROC / "sys/net/ipv4/tcp_congestion_control").read_text().strip()
    except FileNotFoundError:
        return "unknown"


def _first_value(file: str, field: str) -> str:
    """Return the first value in a file of /proc with lines `field : value`; "unknown" where it is missing."""
    for line in (PROC / file).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return "unknown"


def save(name: str, results: Sequence[attrs.AttrsInstance], options: Mapping[str, object]) -> Path:
    """Write every round to a file of its own under `bench/results/local`."""
    LOCAL_RESULTS.mkdir(parents=True, exist_ok=True)
    path = LOCAL_RESULTS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    write(path, results, options)
    return path


def write(path: Path, results: Sequence[attrs.AttrsInstance], options: Mapping[str, object]) -> None:
    """Every round, and what it was run with and on."""
    content = {
        "version": __version__,
        "machine": machine(),
        "options": dict(options),
        "results": [attrs.asdict(result) for result in results],
    }
    path.write_text(json.dumps(content, indent=1, default=str) + "\n")
