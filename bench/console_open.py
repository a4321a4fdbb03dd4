"""`python -m bench.console_open`: what an open page of the console costs the broker.

One broker gets a steady load in turns: with no console, and with its console and a page of groups that reloads its live
part each second, as a browser does. CPU is that of the broker's process alone.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import attrs
import click
import httpx
from rich.table import Table

from bench import processes
from bench.brokers import OwnBroker, RunningBroker
from bench.places import RESULTS
from bench.points import Point
from bench.produce_load import ProduceLoad, run_produce
from bench.report import console, machine
from kafscale import __version__
from kafscale.config.units import KIB

POINT = Point(batch_bytes=16 * KIB, in_flight=8, partitions=16)
REQUESTS_PER_SECOND = 500.0
RELOAD_SECONDS = 1.0
READY_SECONDS = 30.0


@attrs.frozen(kw_only=True)
class Turn:
    """One turn of the load; CPU of the broker in ms a second."""

    is_open: bool
    p50_ms: float
    p99_ms: float
    cpu_ms: float


@click.command()
@click.option("--turns", default=5, show_default=True, help="How often each of the two is measured.")
@click.option("--seconds", default=20.0, show_default=True, help="How long a turn takes.")
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS / "console_open.json", show_default=True)
def main(*, turns: int, seconds: float, output: Path) -> None:
    """Measure a broker with and without an open console, in turns."""
    found = []
    with OwnBroker().running() as running:
        running.create_topic(POINT.partitions)
        _load(running, 2.0)
        for _ in range(turns):
            found.append(_turn(running, seconds, is_open=False))
            with open_page(running):
                found.append(_turn(running, seconds, is_open=True))
    show(found)
    content = {"version": __version__, "machine": machine(), "turns": [attrs.asdict(turn) for turn in found]}
    output.write_text(json.dumps(content, indent=1) + "\n")
    click.echo(output)


def _load(running: RunningBroker, seconds: float) -> tuple[float, float]:
    load = ProduceLoad(address=running.address, point=POINT, seconds=seconds, requests_per_second=REQUESTS_PER_SECOND)
    figures = run_produce(load)
    return figures.p50_ms, figures.p99_ms


def _turn(running: RunningBroker, seconds: float, *, is_open: bool) -> Turn:
    assert running.pid is not None
    before = processes.cpu_seconds(running.pid)
    p50_ms, p99_ms = _load(running, seconds)
    used = processes.cpu_seconds(running.pid) - before
    return Turn(is_open=is_open, p50_ms=p50_ms, p99_ms=p99_ms, cpu_ms=1000 * used / seconds)


@contextmanager
def open_page(running: RunningBroker) -> Iterator[None]:
    """Run a console, and reload the live parts of its overview and topics as a browser does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor = listener.fileno()
        command = [sys.executable, "-m", "kafscale", "console", "--bootstrap", str(running.address)]
        with subprocess.Popen(
            [*command, "--fd", str(descriptor)], pass_fds=[descriptor], stdout=subprocess.DEVNULL
        ) as process:
            over = threading.Event()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            reader = threading.Thread(target=_read_pages, args=(url, over))
            reader.start()
            try:
                yield
            finally:
                over.set()
                reader.join()
                process.terminate()


def _read_pages(url: str, over: threading.Event) -> None:
    with httpx.Client(base_url=url, timeout=READY_SECONDS) as client:
        parts = [part for path in ("/", "/topics") for part in re.findall('data-live="([^"]+)"', client.get(path).text)]
        while not over.wait(RELOAD_SECONDS):
            for part in parts:
                with suppress(httpx.HTTPError):
                    client.get(part, headers={"x-fragment": "1"})


def show(turns: Sequence[Turn]) -> None:
    table = Table(title=f"{REQUESTS_PER_SECOND:.0f} requests/s of 16 KiB, medians of {len(turns) // 2} turns each")
    for heading in ("console", "p50 ms", "p99 ms", "broker's CPU, ms/s"):
        table.add_column(heading, justify="left" if heading == "console" else "right")
    for is_open in (False, True):
        of_kind = [turn for turn in turns if turn.is_open is is_open]
        p50, p99, cpu = (median(getattr(turn, name) for turn in of_kind) for name in ("p50_ms", "p99_ms", "cpu_ms"))
        table.add_row("open" if is_open else "off", f"{p50:.2f}", f"{p99:.2f}", f"{cpu:.0f}")
    console().print(table)


if __name__ == "__main__":
    main()
