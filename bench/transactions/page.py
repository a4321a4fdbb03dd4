"""docs/benchmarks/transactions.md, made from the findings of a run and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.figures import Result, middle, requests_per_second
from bench.peers.journal import Findings
from bench.peers.page import failure_lines, machine_line, part_lines, ratios_plot, table_lines
from bench.peers.targets import HEADINGS, target_rows
from bench.places import RESULTS, link, page_directory
from bench.transactions.targets import TARGETS, concurrent_count, rounds

FILE_NAME = "transactions.json"
PLOT_NAME = "transactions.svg"

_HEAD = """# Transactions beside Apache Kafka

One run on one machine; the brokers take turns in rounds, with an empty topic each, and figures are medians of the
rounds. `make bench-transactions` writes this page from `bench/results/transactions.json`.

- **Brokers.** `kafscale` with its defaults, the bucket on the same disk. `kafka-durable` syncs each batch, also of
  `__transaction_state`; `kafka-default` leaves that to the kernel. Both are Apache Kafka 4.1.1 with
  `transaction.version` 2.
- **Producers.** Our own generator speaks Produce 12 and EndTxn 5. `SIZE, commits every 100 ms` are 4 producers with 5
  batches in flight each, to 4 partitions each; `SIZE, idempotent` is the same without transactions.
  CONCURRENT_TRANSACTIONS is retried after 1 ms. `librdkafka` is confluent-kafka with AddPartitionsToTxn, 1 KiB records.
- **Commits.** `EndTxn after one record` sends a plain produce with acks=all (its p50 is a round of the log), a
  transaction's record, and EndTxn, whose latency counts. `transactions of one record` lack the plain produce. `read,
  process, write` fetches 16 KiB, writes it elsewhere, commits the offset in the transaction and ends it.
- **Fetches** read transactions of 16 batches of 16 KiB, all committed, up to 1 MiB each.
"""


def write_page(findings: Findings, directory: Path = RESULTS) -> Path:
    """Write the plot to `directory`, and the page; returns the path of the page."""
    (directory / PLOT_NAME).write_text(ratios_plot(target_rows(_COMPARED, findings.results)).svg())
    path = page_directory(directory) / "transactions.md"
    figures = directory / "transactions-figures.md"
    figures.write_text("\n".join(_figures(findings)))
    path.write_text("\n".join(_lines(findings, link(path, directory / PLOT_NAME), link(path, figures))))
    return path


_COMPARED = [target for target in TARGETS if target.peer is not None]


def _lines(findings: Findings, plot: str, figures: str) -> Iterator[str]:
    yield _HEAD
    yield machine_line(findings)
    yield from part_lines(findings)
    yield "\n## What it must reach\n"
    yield from table_lines(HEADINGS, [row.cells() for row in target_rows(TARGETS, findings.results)])
    yield f"\n![transactions]({plot})\n"
    yield f"[All figures]({figures}).\n"
    yield from failure_lines(findings)


def _figures(findings: Findings) -> Iterator[str]:
    yield "# All figures of transactions\n"
    yield "A request is a batch, a record of librdkafka's, a fetch, or a transaction, with the latency of its end.\n"
    names = ["load", "broker", "rounds", *_COLUMNS, "requests/s, from–to"]
    yield from table_lines(names, list(_rows(findings.results)))
    yield ""


_COLUMNS: dict[str, Callable[[Result], float | None]] = {
    "requests/s": requests_per_second,
    "MiB/s": lambda each: each.mib_per_second,
    "p50 ms": lambda each: each.figures.p50_ms,
    "p99 ms": lambda each: each.figures.p99_ms,
    "round, p50 ms": lambda each: each.figures.round_p50_ms,
    "p50 in rounds": rounds,
    "CPU us/request": lambda each: each.cpu_us_per_request,
    "client CPU us/request": lambda each: each.figures.client_cpu_seconds / max(1, each.figures.requests) * 1e6,
    "CONCURRENT_TRANSACTIONS": concurrent_count,
}


def _rows(results: Sequence[Result]) -> Iterator[Sequence[str]]:
    for load, broker in dict.fromkeys((result.point, result.broker) for result in results):
        found = [result for result in results if (result.point, result.broker) == (load, broker)]
        medians = [_cell(middle([read(round) for round in found])) for read in _COLUMNS.values()]
        rates = [requests_per_second(round) for round in found]
        yield [load, broker, str(len(found)), *medians, f"{_cell(min(rates))}–{_cell(max(rates))}"]


def _cell(value: float | None) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
