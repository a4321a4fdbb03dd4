"""This code beside the code before, each in a broker of its own, in one run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from statistics import median

from rich.table import Table

from bench.figures import Reading, Result, mib_per_second, p99_ms, requests_per_second
from bench.peers.names import BEFORE_OF
from bench.report import console

COLUMNS: dict[str, Reading] = {
    "requests/s": requests_per_second,
    "MiB/s": mib_per_second,
    "CPU us/request": lambda each: each.cpu_us_per_request,
    "p99 ms": p99_ms,
}
HEADINGS = ("load", "broker", "figure", "before", "from–to", "now", "from–to", "now / before")


def with_before(pairs: Collection[tuple[str, str]]) -> Collection[tuple[str, str]]:
    """Loads and brokers, and those of them that are ours with the code before, too."""
    return {*pairs, *((load, BEFORE_OF[broker]) for load, broker in pairs if broker in BEFORE_OF)}


def beside_before(results: Sequence[Result]) -> Iterator[Sequence[str]]:
    """A row under `HEADINGS` for each figure of each load that both were put under."""
    for load, now in dict.fromkeys((result.point, result.broker) for result in results if result.broker in BEFORE_OF):
        for name, reading in COLUMNS.items():
            new, old = (_readings(results, load, broker, reading) for broker in (now, BEFORE_OF[now]))
            if new and old:
                ratio = median(new) / median(old) if median(old) else float("nan")
                yield [load, now, name, *_cells(old), *_cells(new), f"{ratio:.3f}"]


def show_beside_before(results: Sequence[Result]) -> None:
    """Show both codes on the terminal, if there is something to show."""
    found = list(beside_before(results))
    if not found:
        return
    table = Table(title="beside the code before: medians of the rounds")
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in found:
        table.add_row(*row)
    console().print(table)


def _readings(results: Sequence[Result], load: str, broker: str, reading: Reading) -> Sequence[float]:
    """Return the readings without what was not told, and without what is not a number."""
    found = [reading(result) for result in results if (result.point, result.broker) == (load, broker)]
    return [value for value in found if value is not None and value == value]


def _cells(values: Sequence[float]) -> Sequence[str]:
    return [f"{median(values):,.5g}", f"{min(values):,.5g}–{max(values):,.5g}"]
