"""docs/benchmarks/cluster.md, made from the findings of a run and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.cluster import model, scaling
from bench.cluster.findings import Findings
from bench.cluster.jobs import CONTROLLER, HEADINGS, SCALING, Target
from bench.peers.page import table_lines
from bench.places import RESULTS, page_directory

TARGETS: Sequence[Target] = [*scaling.TARGETS]
MOST_FIGURES = 8  # beside each other

_HEAD = """# Several brokers on one bucket

One run on one machine, whose cores the brokers, the store and the clients share. `make bench-cluster` runs it and
writes this page from `bench/results/cluster.json`; `python -m bench.cluster --group NAME` measures one group, in place
of what is there with `--docs --again`. Figures are the medians of the rounds.
"""

_ABOUT = {
    SCALING: """## Processes of one machine

`kafscale serve --processes N` in `wal`, with a directory as the bucket. The same clients for all N: 16 partitions, and
connections that have 64 requests in flight each, to one process each. CPU is that of all processes together, the
supervisor among them; 1 process is `kafscale serve` without the option. With more processes each of them syncs its own
log, so that fewer requests share a sync and what a round costs.
""",
    CONTROLLER: """## The controller, with many brokers

Real code and no broker: the metadata that brokers share, the rows of who leads what, fail-over, balance, checkpoints.
CPU is that of one controller and one other broker, each with its SQLite file, on a bucket in memory. Their metadata has
brokers and partitions only, in topics of 100. A checkpoint is what a broker that joins reads; a commit is read by every
other one. In simulated time, all brokers are there, and each operation of the bucket takes 25 ms: one broker is lost,
what it led is spread over all others, and each of these commits where what it got begins.
""",
}


def write_page(findings: Findings, directory: Path = RESULTS) -> Path:
    """Write the page of what is in `directory`; returns its path."""
    path = page_directory(directory) / "cluster.md"
    path.write_text("\n".join(_lines(findings)))
    return path


def tables_of(findings: Findings, group: str) -> Iterator[Sequence[Sequence[str]]]:
    """Yield a table, its headings first, for each set of columns of a group; a wide one has a line for each figure."""
    by_columns: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for key, figures in findings.of(group).items():
        by_columns.setdefault(tuple(figures), []).append([*key, *map(_cell, figures.values())])
    for names, rows in by_columns.items():
        table: list[Sequence[str]] = [("load", "system", *names), *rows]
        yield table if len(names) <= MOST_FIGURES else list(zip(*table, strict=True))


def target_cells(findings: Findings) -> list[Sequence[str]]:
    """Return the table of what must be reached, as far as that was measured."""
    return [cells for each in TARGETS if (cells := each.cells(findings)) is not None]


def _lines(findings: Findings) -> Iterator[str]:
    yield _HEAD
    here = findings.machine
    yield (
        f"Measured on {here['cpus']} cores of {here['cpu']} with {here['memory_gib']} GiB, Linux {here['kernel']}, "
        f"Python {here['python']}, TCP with {here['congestion_control']}.\n"
    )
    yield "## What it must reach\n"
    yield from table_lines(HEADINGS, target_cells(findings))
    yield ""
    for group, about in _ABOUT.items():
        if findings.of(group):
            yield about
            yield _when(findings, group)
            for headings, *rows in tables_of(findings, group):
                yield from table_lines(headings, rows)
                yield ""
    if reach := model.model_rows(findings):
        yield "## What more cores and machines reach\n"
        yield model.about(findings)
        yield from table_lines(model.HEADINGS, reach)
        yield ""
    if findings.failures:
        yield "## Not measured\n"
        failed = [[each.load, each.system, str(each.round + 1), _told(each.error)] for each in findings.failures]
        yield from table_lines(["load", "system", "round", "why"], failed)
        yield ""


def _when(findings: Findings, group: str) -> str:
    """Tell how many rounds there were, when, and how busy the machine was."""
    rows = [row for row in findings.rows if row.group == group]
    rounds = max(row.round for row in rows) + 1
    loads = [row.load_average for row in rows]
    return (
        f"{rounds} round{'' if rounds == 1 else 's'} from {min(row.at for row in rows)} on, at load averages of "
        f"{min(loads):.1f} to {max(loads):.1f} before each measurement.\n"
    )


def _cell(value: float) -> str:
    if value != value:
        return "–"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _told(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:300]
