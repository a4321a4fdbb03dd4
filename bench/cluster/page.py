"""docs/benchmarks/cluster.md, made from the findings of a run and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.cluster import costs, killing, model, moving, scaling, simulated
from bench.cluster.findings import Findings
from bench.cluster.jobs import BESIDE, CONTROLLER, HEADINGS, KILLING, MISSED, MOVING, SCALING, Target
from bench.peers.page import table_lines
from bench.places import RESULTS, link, page_directory

TARGETS: Sequence[Target] = [*scaling.TARGETS, *moving.TARGETS, *simulated.TARGETS, *killing.TARGETS]
MOST_FIGURES = 8  # beside each other
FIGURES = "cluster-figures.md"
SHOWN = (SCALING, KILLING, BESIDE)  # on the page itself

_HEAD = """# Several brokers on one bucket

One run on one machine, whose cores brokers, store and clients share; figures are medians of the rounds. `make
bench-cluster` writes this page from `bench/results/cluster.json`; `python -m bench.cluster --group NAME --docs
--again` measures one group again.
"""

_ABOUT = {
    SCALING: """## Processes of one machine

`kafscale serve --processes N` in `wal`, with a directory as the bucket and the same clients for all N: 16 partitions,
64 requests in flight on each connection, one process for each. CPU is of all processes together. With more processes,
fewer requests share a sync; 1 process with as many connections and partitions as each of several shows how much that
costs.
""",
    MOVING: """## A hundred partitions move at once

Three brokers; all 100 partitions of a topic move from broker 1 to broker 2 by one reassignment, while ten idempotent
producers of librdkafka send records of 4 KiB. A gap is the longest time from sending to acknowledgement, so it
contains `retry.backoff.ms` (100 ms) and waiting for a core; `before` has the latter alone. In simulated time only the
bucket's 25 ms an operation count, and a gap is the time without a leader.
""",
    KILLING: """## A broker is killed

Three brokers in `s3-wal` on MinIO here, and three nodes of Apache Kafka 4.1.1 (KRaft, three replicas,
`min.insync.replicas` 2), with defaults, under an idempotent producer with 500 records a second to 12 partitions. The
deciding broker or another one is killed (SIGKILL). Kafka misses a broker after 9 s (`broker.session.timeout.ms`), ours
when its address refuses connections. At the end all records are read back.
""",
    BESIDE: """## Beside three of Apache Kafka

The same clusters under our own generator, a connection to each broker with 64 in flight, `acks=all`; and at a pace
that both keep up with. CPU is of the three brokers without MinIO. Traffic between brokers is what the kernel counted
(`ss`).
""",
    CONTROLLER: """## The controller, with many brokers

Real code without brokers: shared metadata, placements, fail-over, balance, checkpoints, with a bucket in memory. CPU
is of one controller and one other broker. A checkpoint is what a joining broker reads, a commit is read by every
other one. In simulated time, with 25 ms an operation, one broker is lost and its partitions are spread over all
others.
""",
}


def write_page(findings: Findings, directory: Path = RESULTS) -> Path:
    """Write the page of the findings in `directory`; returns its path."""
    (directory / FIGURES).write_text("\n".join(["# All figures of several brokers\n", *_figures(findings)]))
    path = page_directory(directory) / "cluster.md"
    path.write_text("\n".join(_lines(findings, link(path, directory / FIGURES))))
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
    return [cells for target in TARGETS if (cells := target.cells(findings)) is not None]


def _lines(findings: Findings, figures: str) -> Iterator[str]:
    yield _HEAD
    here = findings.machine
    yield (
        f"Measured on {here['cpus']} cores of {here['cpu']} with {here['memory_gib']} GiB, Linux {here['kernel']}, "
        f"Python {here['python']}, TCP with {here['congestion_control']}.\n"
    )
    cells = target_cells(findings)
    missed = [row for row in cells if row[-1] == MISSED]
    yield "## What it must reach\n"
    yield (
        f"{len(cells) - len(missed)} of {len(cells)} targets are reached ([all figures]({figures}), also of moves, the "
        "controller, the cost of three zones, and how many brokers that allows). Not reached:\n"
    )
    yield from table_lines(HEADINGS, missed)
    yield ""
    for group in SHOWN:
        if findings.of(group):
            yield from _group(findings, group)
    if findings.failures:
        yield "## Not measured\n"
        failed = [
            [failure.load, failure.system, str(failure.round + 1), _told(failure.error)]
            for failure in findings.failures
        ]
        yield from table_lines(["load", "system", "round", "why"], failed)
        yield ""


def _figures(findings: Findings) -> Iterator[str]:
    """Yield all targets, the groups that the page leaves out, and what follows from them."""
    yield "## What it must reach\n"
    yield from table_lines(HEADINGS, target_cells(findings))
    yield ""
    for group in _ABOUT:
        if group not in SHOWN and findings.of(group):
            yield from _group(findings, group)
    yield "## What three zones cost\n"
    yield costs.about()
    yield from table_lines(costs.HEADINGS, costs.rows())
    yield ""
    if reach := model.model_rows(findings):
        yield "## What more cores and machines reach\n"
        yield model.about(findings)
        yield from table_lines(model.HEADINGS, reach)
        yield ""


def _group(findings: Findings, group: str) -> Iterator[str]:
    yield _ABOUT[group]
    yield _when(findings, group)
    for headings, *rows in tables_of(findings, group):
        yield from table_lines(headings, rows)
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
