"""docs/benchmarks/tls.md, made from the findings of a run over TLS and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.peers.journal import Findings
from bench.peers.page import failure_lines, machine_line, part_lines, ratios_plot, table_lines
from bench.peers.targets import HEADINGS, target_rows
from bench.peers_tls.targets import TARGETS
from bench.places import RESULTS, link, page_directory
from bench.report import headings, rows

FILE_NAME = "tls.json"
PLOT_NAME = "tls.svg"

_HEAD = """# Over TLS beside Apache Kafka

One run on one machine, as [without TLS](peers.md), where brokers and loads are described. `make bench-peers
BENCH_ARGS=--tls` runs it and writes this page from `bench/results/tls.json`. Figures are the medians of the rounds.

- **Brokers.** Each has one listener, SASL_SSL, with the same certificate (ECDSA, P-256), TLS 1.3 with
  TLS_AES_256_GCM_SHA384, and one user, who logs in by SCRAM-SHA-512 of 4,096 iterations. Kafka encrypts in Java,
  KafScale in OpenSSL, on its event loop. Neither can have files sent by the kernel any more. What `kafscale` and
  `kafka-durable` acknowledge is on the disk; `kafka-default` leaves that to the kernel, and so answers sooner;
  where nothing is written both are the same, and it stands for both. `kafscale, 2 processes` is `--processes 2`, under
  the loads whose clients look for the leader of each partition. How long a disk takes to sync is left out where all
  files of a broker, those of our bucket too, are in memory (`/dev/shm`). Settings are the same: KafScale syncs there
  too, and waits for nothing.
- **Clients** trust the certificate's authority and look for the broker's address in it. They log in before the time
  begins. Our generators decrypt in OpenSSL; that of `produce` encrypts each request anew. A JVM encrypts slowly until
  it has compiled that, so ProducerPerformance is measured for 5 s at least, and ConsumerPerformance reads 512 MiB.
"""


def write_page(findings: Findings, directory: Path = RESULTS) -> Path:
    """Write the plot to `directory`, and the page; returns the path of the page."""
    (directory / PLOT_NAME).write_text(ratios_plot(target_rows(TARGETS, findings.results)).svg())
    path = page_directory(directory) / "tls.md"
    path.write_text("\n".join(_lines(findings, link(path, directory / PLOT_NAME))))
    return path


def _lines(findings: Findings, plot: str) -> Iterator[str]:
    yield _HEAD
    yield machine_line(findings)
    yield from part_lines(findings)
    yield "\n## What it must reach\n"
    yield from table_lines(HEADINGS, [row.cells() for row in target_rows(TARGETS, findings.results)])
    yield f"\n![tls]({plot})\n"
    yield "## All figures\n"
    yield from table_lines(headings(), list(rows(findings.results)))
    yield ""
    yield from failure_lines(findings)
