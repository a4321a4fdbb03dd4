"""docs/benchmarks/tls.md, made from the findings of a run over TLS and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.peers.journal import Findings
from bench.peers.page import failure_lines, machine_line, part_lines, ratios_plot, table_lines, write_figures
from bench.peers.targets import HEADINGS, target_rows
from bench.peers_tls.targets import TARGETS
from bench.places import RESULTS, link, page_directory

FILE_NAME = "tls.json"
PLOT_NAME = "tls.svg"

_HEAD = """# Over TLS beside Apache Kafka

One run on one machine; [without TLS](peers.md) explains brokers and loads. `make bench-peers BENCH_ARGS=--tls` writes
this page from `bench/results/tls.json`. Figures are medians of the rounds.

- **Brokers** have one listener, SASL_SSL: ECDSA P-256, TLS 1.3 with TLS_AES_256_GCM_SHA384, SCRAM-SHA-512 of 4,096
  iterations. Kafka encrypts in Java, KafScale in OpenSSL on its event loop. `kafscale` and `kafka-durable` sync what
  they acknowledge. `kafscale, 2 processes` is `--processes 2`. With all files in memory (`/dev/shm`) a sync takes no
  time.
- **Clients** check the certificate and log in before the time begins. A JVM encrypts slowly at first, so
  ProducerPerformance runs for 5 s at least and ConsumerPerformance reads 512 MiB.
"""


def write_page(findings: Findings, directory: Path = RESULTS) -> Path:
    """Write the plot and the tables to `directory`, and the page; returns the path of the page."""
    (directory / PLOT_NAME).write_text(ratios_plot(target_rows(TARGETS, findings.results)).svg())
    path = page_directory(directory) / "tls.md"
    figures = write_figures(findings, directory / "tls-figures.md")
    with figures.open("a") as file:
        rows = [row.cells() for row in target_rows(TARGETS, findings.results)]
        file.write("\n".join(["\n## What it must reach\n", *table_lines(HEADINGS, rows), ""]))
    path.write_text("\n".join(_lines(findings, link(path, directory / PLOT_NAME), link(path, figures))))
    return path


def _lines(findings: Findings, plot: str, figures: str) -> Iterator[str]:
    yield _HEAD
    yield machine_line(findings)
    yield from part_lines(findings)
    yield "\n## What it must reach\n"
    rows = target_rows(TARGETS, findings.results)
    missed = [row for row in rows if not row.is_reached]
    yield f"{len(rows) - len(missed)} of {len(rows)} targets are reached ([all figures]({figures})). Not reached:\n"
    yield from table_lines(HEADINGS, [row.cells() for row in missed])
    yield f"\n![tls]({plot})\n"
    yield from failure_lines(findings)
