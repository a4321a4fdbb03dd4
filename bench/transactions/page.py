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

One run on one machine. In each round the brokers, which run for all rounds, take turns under each load, with an empty
topic. `make bench-transactions` runs them and writes this page from `bench/results/transactions.json`. Figures are the
medians of the rounds.

- **Brokers.** `kafscale` with its defaults: what it acknowledges is synced, and its bucket is a directory on the same
  disk. `kafka-durable` has `log.flush.interval.messages=1`, so it syncs each batch, those of `__transaction_state` too;
  `kafka-default` leaves that to the kernel. Both are Apache Kafka 4.1.1 with `transaction.version` 2.
- **Producers.** A generator of our own with batches encoded beforehand, the same for all brokers; it speaks Produce 12
  and EndTxn 5, as Kafka's clients do from 4.0 on: the first batch for a partition enrols it, and each transaction has
  an epoch of its own. `SIZE, commits every 100 ms` are 4 producers with 5 batches in flight each, to 4 partitions each;
  `SIZE, idempotent` the same without transactions. What is answered with CONCURRENT_TRANSACTIONS is sent again after
  1 ms, sooner than any client does. `librdkafka` is confluent-kafka, which speaks the protocol before that, with
  AddPartitionsToTxn; its records have 1 KiB.
- **Commits.** `EndTxn after one record` sends, one after the other, a plain produce with acks=all, whose p50 is a round
  of the log, a transaction's one record, and EndTxn, whose p50 and p99 are told. `transactions of one record` are
  without the plain produce. `read, process, write` fetches a batch of 16 KiB, writes as much to another partition,
  commits the offset in the transaction (TxnOffsetCommit 5) and ends it: one such loop, with one request at a time.
- **Fetches** are of a partition with transactions of 16 batches of 16 KiB, all committed, up to 1 MiB each.
"""


def write_page(findings: Findings, directory: Path = RESULTS) -> Path:
    """Write the plot to `directory`, and the page; returns the path of the page."""
    (directory / PLOT_NAME).write_text(ratios_plot(target_rows(_COMPARED, findings.results)).svg())
    path = page_directory(directory) / "transactions.md"
    path.write_text("\n".join(_lines(findings, link(path, directory / PLOT_NAME))))
    return path


_COMPARED = [each for each in TARGETS if each.peer is not None]


def _lines(findings: Findings, plot: str) -> Iterator[str]:
    yield _HEAD
    yield machine_line(findings)
    yield from part_lines(findings)
    yield "\n## What it must reach\n"
    yield from table_lines(HEADINGS, [row.cells() for row in target_rows(TARGETS, findings.results)])
    yield f"\n![transactions]({plot})\n"
    yield "## All figures\n"
    yield "A request is a batch, a record of librdkafka's, a fetch, or a transaction, with the latency of its end.\n"
    names = ["load", "broker", "rounds", *_COLUMNS, "requests/s, from–to"]
    yield from table_lines(names, list(_rows(findings.results)))
    yield ""
    yield from failure_lines(findings)


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
    for load, broker in dict.fromkeys((each.point, each.broker) for each in results):
        found = [each for each in results if (each.point, each.broker) == (load, broker)]
        medians = [_cell(middle([read(each) for each in found])) for read in _COLUMNS.values()]
        rates = [requests_per_second(each) for each in found]
        yield [load, broker, str(len(found)), *medians, f"{_cell(min(rates))}–{_cell(max(rates))}"]


def _cell(value: float | None) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
