"""`python -m bench.idle`: how soon a broker is ready, and what it uses while idle.

A broker with the embedded defaults (file store, metadata in SQLite) is started on an empty directory several times. One
more then idles: without a topic, with 1,000 empty partitions, with a record in each that waits for its flush, and when
all of them are in the bucket. Options after `--` go to `kafscale serve`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import click
from rich.table import Table

from bench import processes
from bench.brokers import OwnBroker, RunningBroker
from bench.figures import middle
from bench.places import RESULTS
from bench.points import Point
from bench.produce_load import ProduceLoad, run_produce
from bench.report import console, machine
from kafscale import __version__
from kafscale.config.units import KIB
from tests.devtools.processes.process import rss_mib

PARTITIONS = 1000
SETTLE_SECONDS = 10.0  # of what a step has left to do: the pages of memory, the metadata's checkpoint
NO_FLUSH = ("--flush-interval", "1d")  # a record waits for its flush for as long as we look


@attrs.frozen(kw_only=True)
class Start:
    """A start: from the start of the process until it says that it is ready."""

    ready_seconds: float
    cpu_seconds: float


@attrs.frozen(kw_only=True)
class Idle:
    """CPU time of all threads, as a share of one core."""

    state: str
    cpu_percent: float
    rss_mib: float


@click.command()
@click.option("--starts", default=5, show_default=True, help="How many starts are measured.")
@click.option("--seconds", default=60.0, show_default=True, help="How long each state is watched.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where the brokers' directories are made.")
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS / "idle.json", show_default=True)
@click.argument("broker_options", nargs=-1, type=click.UNPROCESSED)
def main(*, starts: int, seconds: float, directory: Path | None, output: Path, broker_options: Sequence[str]) -> None:
    """Start brokers, let one idle, and show what that took."""
    broker = OwnBroker(options=(*NO_FLUSH, *broker_options), directory=directory)
    measured = [measure_start(broker) for _ in range(starts)]
    states = watch_states(broker, seconds)
    show(measured, states)
    write(output, measured, states)
    click.echo(output)


def measure_start(broker: OwnBroker) -> Start:
    """Measure the start of a broker on an empty directory, and end it."""
    began = time.perf_counter()
    with broker.running() as running:
        ready_seconds = time.perf_counter() - began
        assert running.pid is not None
        return Start(ready_seconds=ready_seconds, cpu_seconds=processes.cpu_seconds(running.pid))


def watch_states(broker: OwnBroker, seconds: float) -> Sequence[Idle]:
    """One broker, and one step after the other."""
    steps: dict[str, Callable[[RunningBroker], object]] = {
        "no topic": lambda running: None,
        f"{PARTITIONS:,} empty partitions": lambda running: running.create_topic(PARTITIONS),
        "a record in each, not in the bucket": fill,
        "a record in each, in the bucket": lambda running: running.flush(),
    }
    with broker.running() as running:
        states = []
        for state, step in steps.items():
            step(running)
            time.sleep(SETTLE_SECONDS)
            states.append(watch(running, state, seconds))
        return states


def fill(running: RunningBroker) -> None:
    """Produce one record to each partition."""
    point = Point(batch_bytes=KIB, in_flight=1, partitions=PARTITIONS)
    run_produce(ProduceLoad(address=running.address, point=point, seconds=math.inf, count=PARTITIONS))


def watch(running: RunningBroker, state: str, seconds: float) -> Idle:
    assert running.pid is not None
    before, began = processes.cpu_seconds(running.pid), time.perf_counter()
    time.sleep(seconds)
    used = processes.cpu_seconds(running.pid) - before
    return Idle(
        state=state,
        cpu_percent=100 * used / (time.perf_counter() - began),
        rss_mib=rss_mib(running.pid),
    )


def show(starts: Sequence[Start], states: Sequence[Idle]) -> None:
    ready, cpu = ([getattr(start, name) for start in starts] for name in ("ready_seconds", "cpu_seconds"))
    console().print(
        f"ready after {middle(ready):.2f} s ({min(ready):.2f}–{max(ready):.2f}), "
        f"of which {middle(cpu):.2f} s of CPU time ({min(cpu):.2f}–{max(cpu):.2f})"
    )
    table = Table(title="a broker that idles")
    table.add_column("state")
    for heading in ("CPU, % of a core", "RSS MiB"):
        table.add_column(heading, justify="right")
    for state in states:
        table.add_row(state.state, f"{state.cpu_percent:.2f}", f"{state.rss_mib:.0f}")
    console().print(table)


def write(path: Path, starts: Sequence[Start], states: Sequence[Idle]) -> None:
    content = {
        "version": __version__,
        "machine": machine(),
        "starts": [attrs.asdict(start) for start in starts],
        "idle": [attrs.asdict(state) for state in states],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
