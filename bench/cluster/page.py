"""docs/benchmarks/cluster.md, made from the findings of a run and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.cluster import costs, killing, model, moving, scaling, simulated
from bench.cluster.findings import Findings
from bench.cluster.jobs import BESIDE, CONTROLLER, HEADINGS, KILLING, MOVING, SCALING, Target
from bench.peers.page import table_lines
from bench.places import RESULTS, page_directory

TARGETS: Sequence[Target] = [*scaling.TARGETS, *moving.TARGETS, *simulated.TARGETS, *killing.TARGETS]
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
log, so that fewer requests share a sync and what a round costs. How much of it that is, shows 1 process with as many
connections and partitions as each of several has.
""",
    MOVING: """## A hundred partitions move at once

Three brokers; broker 1 leads all 100 partitions of a topic, and broker 2 is to lead them, by one reassignment, while
ten idempotent producers of librdkafka send records of 4 KiB to ten of them each: one alone has five requests under way,
each for one partition. A gap is the longest time from sending to the acknowledgement of a record of a partition, from
then until a second after the last has moved. So it has what a producer waits by itself (`retry.backoff.ms`, 100 ms),
and what a busy machine has anybody wait: see `before`. `wal` has a directory as the bucket, `s3-wal` MinIO, with a
stream that waits for a PUT. In simulated time nobody waits for a core: what is left is the bucket's 25 ms an operation,
and who waits for whom; a gap is there how long nobody leads.
""",
    KILLING: """## A broker is killed

Three of ours in `s3-wal` on MinIO, which runs on the same machine, and three nodes of Apache Kafka 4.1.1 (KRaft, three
replicas, `min.insync.replicas` 2), both as they are by default, under an idempotent producer of librdkafka with 500
records a second to 12 partitions. One is killed (SIGKILL) and stays away: the one that decides for all, or another. A
gap is the longest time from sending to acknowledgement. Kafka's brokers are missed when they have sent no heartbeat for
9 s (`broker.session.timeout.ms`), ours when their address refuses connections. In the end all is read back.
""",
    BESIDE: """## Beside three of Apache Kafka

The same clusters under our own generator with batches encoded beforehand, a connection to each broker with 64 in
flight, `acks=all`; and at a pace that both keep up with. CPU is that of the three brokers, without MinIO's, which
stands for a service. What brokers send each other is what the kernel has counted as received by connections with a
broker at both ends (`ss`), both ways together.
""",
    CONTROLLER: """## The controller, with many brokers

Real code and no broker: the metadata that brokers share, the rows of who leads what, fail-over, balance, checkpoints.
CPU is that of one controller and one other broker, each with its SQLite file, on a bucket in memory. Their metadata has
brokers and partitions only, in topics of 100. A checkpoint is what a broker that joins reads; a commit is read by every
other one. In simulated time, all brokers are there, and each operation of the bucket takes 25 ms: one broker is lost,
what it led is spread over all others, and each of these has the controller commit where what it got begins.
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
            if group == BESIDE:
                yield "## What three zones cost\n"
                yield costs.about()
                yield from table_lines(costs.HEADINGS, costs.rows())
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
