"""`python -m bench.smoke`: the main loads in a minute, each against a calibration loop that is run beside it.

What is compared with the committed ratio (`bench/smoke.json`) is the load's requests per second divided by the loop's
exchanges per second, so that a slow-down of the broker is seen on any machine. Below about 20 % a difference says
nothing on a machine that does other things. `--commit` writes the ratios of this run. Nothing is asserted: this is a
table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
import click
from rich.console import Console
from rich.table import Table

from bench.brokers import OwnBroker
from bench.calibration import Exchange, exchanges_per_second
from bench.consume import FETCH_BYTES, SOURCE_OPTIONS, FetchPoint, fill
from bench.fetch_load import run_fetch
from bench.figures import Figures
from bench.frames import ProduceRing, produce_reply_layout
from bench.points import Point
from bench.produce_load import ProduceLoad, run_produce
from bench.report import WIDTH
from bench.runner import Runner
from kafscale.config.units import MIB

RATIOS = Path(__file__).parent / "smoke.json"
PRODUCE = ("960KiB/5/1", "16KiB/64/16", "1KiB/64/1")
FETCH = ("tail/960KiB/1", "backlog/960KiB/1")
FETCH_REQUEST_BYTES = 100
CALIBRATION_SHARE = 0.25  # of a load's own time, before it and after it


@attrs.frozen(kw_only=True)
class Measured:
    """One load and its calibration, both in requests per second."""

    name: str
    requests_per_second: float
    mib_per_second: float
    calibration_per_second: float

    @property
    def ratio(self) -> float:
        return self.requests_per_second / self.calibration_per_second


def measure_produce(runner: Runner, name: str, seconds: float) -> Measured:
    """A broker of its own for the load, on an empty directory."""
    point = Point.parse(name)
    ring = ProduceRing.of(point, range(point.partitions))
    exchange = Exchange(
        request_bytes=ring.frame_bytes,
        reply_bytes=produce_reply_layout().size,
        in_flight=point.in_flight,
        is_synced=True,
    )

    def load() -> Figures:
        with OwnBroker().running() as broker:
            broker.create_topic(point.partitions)
            wanted = ProduceLoad(address=broker.address, point=point, seconds=seconds / 4)
            runner.send(run_produce, wanted)
            return runner.send(run_produce, attrs.evolve(wanted, seconds=seconds))

    return _beside(f"produce {name}", load, exchange, seconds)


def measure_fetch(runner: Runner, name: str, seconds: float) -> Measured:
    """Measure fetches from memory, or of flushed records."""
    point = FetchPoint.parse(name)
    exchange = Exchange(
        request_bytes=FETCH_REQUEST_BYTES, reply_bytes=FETCH_BYTES, in_flight=point.partitions, is_synced=False
    )

    def load() -> Figures:
        with OwnBroker(options=SOURCE_OPTIONS[point.source]).running() as broker:
            broker.create_topic(point.partitions)
            wanted = fill(runner, broker, point)
            runner.send(run_fetch, attrs.evolve(wanted, seconds=seconds / 4))
            return runner.send(run_fetch, attrs.evolve(wanted, seconds=seconds))

    return _beside(f"fetch {name}", load, exchange, seconds)


def _beside(name: str, load: Callable[[], Figures], exchange: Exchange, seconds: float) -> Measured:
    before = exchanges_per_second(exchange, seconds * CALIBRATION_SHARE)
    figures = load()
    after = exchanges_per_second(exchange, seconds * CALIBRATION_SHARE)
    return Measured(
        name=name,
        requests_per_second=figures.requests / figures.seconds,
        mib_per_second=figures.size_bytes / MIB / figures.seconds,
        calibration_per_second=(before + after) / 2,
    )


def table_of(measured: Sequence[Measured], committed: Mapping[str, float]) -> Table:
    """Return the measured loads, and their differences from the committed ones."""
    table = Table(title="main loads, against a calibration loop")
    table.add_column("load", no_wrap=True)
    for heading in ("requests/s", "MiB/s", "calibration/s", "ratio", "committed", "change"):
        table.add_column(heading, justify="right")
    for load in measured:
        known = committed.get(load.name)
        table.add_row(
            load.name,
            f"{load.requests_per_second:,.0f}",
            f"{load.mib_per_second:,.0f}",
            f"{load.calibration_per_second:,.0f}",
            f"{load.ratio:.3f}",
            "–" if known is None else f"{known:.3f}",
            "–" if known is None else f"{100 * (load.ratio / known - 1):+.0f} %",
        )
    return table


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=4.0, show_default=True, help="Per load.")
@click.option("--commit", is_flag=True, help="Write the ratios to bench/smoke.json.")
def main(seconds: float, commit: bool) -> None:
    """Measure the main loads, and show how they compare with the ratios that are committed."""
    runner = Runner()
    measured = [measure_produce(runner, name, seconds) for name in PRODUCE]
    measured += [measure_fetch(runner, name, seconds) for name in FETCH]
    runner.close()
    committed: dict[str, float] = json.loads(RATIOS.read_text()) if RATIOS.exists() else {}
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table_of(measured, committed))
    if commit:
        RATIOS.write_text(json.dumps({load.name: round(load.ratio, 4) for load in measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
