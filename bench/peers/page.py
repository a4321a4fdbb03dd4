"""docs/benchmarks/peers.md and its plots, made from the findings of a run and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from bench.bars import Bar, Bars
from bench.claims.plot import Plot, Point
from bench.figures import Reading, Result, median_of, mib_per_second, p99_ms
from bench.peers.journal import Findings, Part
from bench.peers.loads import DISK_ALONE, SHARES, end_to_end_name, produce_name
from bench.peers.names import DISK, NO_BROKERS
from bench.peers.targets import HEADINGS, TARGETS, Target, TargetRow, target_rows
from bench.places import RESULTS, link, page_directory
from bench.points import LARGE_BATCH_BYTES
from bench.points import Point as ProducePoint
from bench.report import console, headings, rows
from kafscale.config.units import KIB

BATCH_SIZES = (KIB, 16 * KIB, LARGE_BATCH_BYTES)

_HEAD = """# KafScale beside Apache Kafka

One run on one machine; the brokers take turns in rounds, with an empty topic each, and figures are medians of the
rounds. `make bench-peers` writes this page from `bench/results/peers.json`.

- **Brokers.** `kafscale` syncs what it acknowledges; its bucket is a directory on the same disk, so each byte is
  written twice. `kafscale-memory` has the bucket in memory, `kafscale-minio` on MinIO here. `kafka-durable` syncs each
  batch (`log.flush.interval.messages=1`), `kafka-default` leaves that to the kernel. `only-answers` answers without
  doing anything, `disk` writes 4 MiB and syncs.
- **Loads.** `produce SIZE/IN FLIGHT/PARTITIONS` and `fetch SOURCE/SIZE/PARTITIONS` use our own cheap generators.
  `java RECORD/BATCH/PARTITIONS` is ProducerPerformance; `article` has records of 64 KiB, `batch.size` 1 MiB,
  `linger.ms` 1. A backlog is flushed before: Kafka reads it from the page cache, KafScale by ranged GETs.
- **Disturbance.** `steal %` is what the host kept of the cores. With `--steal-max` a disturbed measurement is repeated,
  up to twice, and the least disturbed one counts.
"""


def show_targets(targets: Sequence[TargetRow]) -> None:
    """Show what must be reached, on the terminal."""
    table = Table(title="what must be reached")
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in targets:
        table.add_row(*row.cells())
    console().print(table)


def write_page(findings: Findings, directory: Path = RESULTS) -> Path:
    """Write the plots that there is something for to `directory`, and the page; returns the path of the page."""
    plots = {"peers.svg": ratios_plot(target_rows(TARGETS, findings.results)).svg()}
    plots |= {name: plot.svg() for name, plot in _line_plots(findings.results).items()}
    for name, svg in plots.items():
        (directory / name).write_text(svg)
    figures = write_figures(findings, directory / "peers-figures.md")
    path = page_directory(directory) / "peers.md"
    path.write_text("\n".join(_lines(findings, [link(path, directory / name) for name in plots], link(path, figures))))
    return path


def write_figures(findings: Findings, path: Path) -> Path:
    """Write the table of all figures, which few readers want, beside the JSON that it is made from."""
    table = table_lines(headings(), list(rows(findings.results)))
    path.write_text("\n".join(["# All figures\n", *table, ""]))
    return path


def _lines(findings: Findings, plots: Sequence[str], figures: str) -> Iterator[str]:
    yield _HEAD
    yield machine_line(findings)
    if (disk := median_of(findings.results, DISK_ALONE, DISK, mib_per_second)) is not None:
        yield f"The disk takes {disk:,.0f} MiB/s when each 4 MiB are synced."
    yield from part_lines(findings)
    yield "\n## What it must reach\n"
    yield from table_lines(HEADINGS, [row.cells() for row in target_rows(TARGETS, findings.results)])
    yield "\nWhere two figures are wanted, the second is 80 % of half of what the disk takes.\n"
    for name in plots:
        yield f"![{Path(name).stem}]({name})\n"
    yield f"[All figures]({figures}).\n"
    yield from failure_lines(findings)


def machine_line(findings: Findings) -> str:
    """Return what a page says of the machine."""
    here = findings.machine
    return (
        f"Measured on {here['cpus']} cores of {here['cpu']} with {here['memory_gib']} GiB, Linux {here['kernel']}, "
        f"Python {here['python']}, TCP with {here['congestion_control']}."
    )


def part_lines(findings: Findings) -> Iterator[str]:
    """Return what a page says of each command that measured something."""
    for part in findings.parts:
        yield f"\n{_told(part)}"


def failure_lines(findings: Findings) -> Iterator[str]:
    """Return the lines about failed measurements."""
    if findings.failures:
        yield "## Not measured\n"
        yield from table_lines(
            ["load", "broker", "round", "why"],
            [
                [failure.load, failure.broker, str(failure.round + 1), _in_a_cell(failure.error)]
                for failure in findings.failures
            ],
        )
        yield ""


def _told(part: Part) -> str:
    passed = f", `{' '.join(part.broker_options)}`" if part.broker_options else ""
    return (
        f"From {part.began}: KafScale {part.version}, {part.seconds:g} s a measurement after "
        f"{part.warm_up_seconds:g} s of warm-up{passed}, at a load average of {part.load_average[0]:.1f} before it."
    )


def _in_a_cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:300]


def table_lines(names: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return a table as Markdown."""
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in cells:
        yield f"| {' | '.join(row)} |"


# ---- plots ----------------------------------------------------------------------------------------------------------


def ratios_plot(targets: Sequence[TargetRow]) -> Bars:
    """Return how much better KafScale is, a bar for each target."""
    return Bars(
        title="times as good as the peer",
        bars=[Bar(_bar_label(row.target), row.goodness) for row in targets],
        label_width=560,
        most_ratio=4,
    )


def _bar_label(target: Target) -> str:
    beside = target.against if target.peer else f"the {target.factor:g} that is wanted"
    return f"{target.load}, {target.unit}: {target.broker} against {beside}"


def _line_plots(results: Sequence[Result]) -> Mapping[str, Plot]:
    """Return the plots for which there are lines: a broker that was measured at all points of one."""
    plots = {
        "peers-produce.svg": Plot(
            title="produced to 16 partitions with 64 requests in flight",
            x_label="KiB per batch",
            y_label="MiB/s",
            series=_series(results, {
                size / KIB: produce_name(ProducePoint(batch_bytes=size, in_flight=64, partitions=16))
                for size in BATCH_SIZES
            }, mib_per_second),
        ),
        "peers-end-to-end.svg": Plot(
            title="produce to consume, batches of 16 KiB",
            x_label="% of what the broker took at produce 16KiB/64/1",
            y_label="p99 ms",
            series=_series(
                results, {100 * share: end_to_end_name(share) for share in SHARES}, p99_ms
            ),
            is_linear=True,
        ),
    }  # fmt: skip
    return {name: plot for name, plot in plots.items() if plot.series}


def _series(results: Sequence[Result], loads: Mapping[float, str], reading: Reading) -> Mapping[str, Sequence[Point]]:
    """A line for each broker, over all of these loads."""
    series: dict[str, Sequence[Point]] = {}
    for broker in dict.fromkeys(result.broker for result in results if result.broker not in NO_BROKERS):
        found = {x: median_of(results, load, broker, reading) for x, load in loads.items()}
        points = [Point(x, y) for x, y in found.items() if y is not None and not math.isnan(y)]
        if len(points) == len(loads):
            series[broker] = points
    return series
