"""Metrics of a running pipeline for Prometheus, at `/metrics` of a small HTTP server in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from kafscale.config import Address
from kafscale.errors import StartupError
from kafscale.metrics import Metrics, PageFormat
from kafscale.metrics.process import register_process

if TYPE_CHECKING:
    from kafscale.spark.pipeline.batch import Outcome
    from kafscale.spark.pipeline.runner import Lag
    from kafscale.spark.pipeline.tables import Care

COMMIT_BUCKETS_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
LABEL = "mapping"
SILENCE_SECONDS = 10.0  # of a client, which has a thread for as long; Prometheus: scrape_timeout


class PipelineMetrics:
    """An observer of a pipeline that counts."""

    def __init__(self) -> None:
        self.registry = Metrics()
        self.lag: dict[str, int] = {}
        self.lag_bytes: dict[str, int] = {}
        self.lag_seconds: dict[str, float] = {}
        self.committed_seconds: dict[str, float] = {}
        register_process(self.registry)
        counter, prefix = self.registry.counter, "kafscale_pipeline"
        self.records = counter(f"{prefix}_records_total", "Records read from the bucket.", LABEL)
        self.added_bytes = counter(f"{prefix}_bytes_total", "Bytes of the files added to tables.", LABEL)
        self.added_rows = counter(f"{prefix}_rows_total", "Rows in the files added to tables.", LABEL)
        self.dead_letters = counter(f"{prefix}_dead_letters_total", "Records written to the dead-letter table.", LABEL)
        self.failures = counter(f"{prefix}_failures_total", "Mappings that stopped because of an error.", LABEL)
        self.restarts = counter(f"{prefix}_restarts_total", "Queries started again after an error.", LABEL)
        self.compacted_files = counter(
            f"{prefix}_compacted_files_total", "Files that maintenance of a table rewrote.", "table"
        )
        self.commit_seconds = self.registry.histogram(
            f"{prefix}_commit_seconds",
            "Time to write the files of a batch and commit its snapshot.",
            LABEL,
            bounds=COMMIT_BUCKETS_SECONDS,
        )
        for name, help, values in (
            ("lag_records", "Offsets in the bucket that are not in the table.", self.lag),
            ("lag_bytes", "Bytes of record batches in the bucket that are not in the table.", self.lag_bytes),
            ("lag_seconds", "Age of the oldest record in the bucket that is not in the table.", self.lag_seconds),
            (
                "last_commit_timestamp_seconds",
                "Time of the newest commit to the table, in seconds since 1970.",
                self.committed_seconds,
            ),
        ):
            self.registry.callback(f"{prefix}_{name}", help, LABEL, samples=partial(_samples, values))

    def batch_done(self, mapping: str, outcome: Outcome, row_count: int, lag: int) -> None:
        """Count a batch, unless it was already in the table."""
        self.lag[mapping] = lag
        if outcome.commit_seconds is not None:
            self.records.of(mapping).value += row_count
            self.committed_seconds[mapping] = time.time()
            self.added_bytes.of(mapping).value += outcome.added_bytes
            self.added_rows.of(mapping).value += outcome.added_rows
            self.dead_letters.of(mapping).value += outcome.dead_letter_count
            self.commit_seconds.of(mapping).observe(outcome.commit_seconds)

    def lag_measured(self, mapping: str, lag: Lag) -> None:
        self.lag[mapping], self.lag_bytes[mapping], self.lag_seconds[mapping] = lag.records, lag.bytes, lag.seconds
        if lag.committed_ms is not None:
            self.committed_seconds[mapping] = lag.committed_ms / 1000

    def mapping_failed(self, mapping: str, error: Exception) -> None:
        self.failures.of(mapping).value += 1

    def mapping_restarts(self, mapping: str, error: Exception, delay_seconds: float) -> None:
        self.restarts.of(mapping).value += 1

    def maintained(self, care: Care) -> None:
        self.compacted_files.of(care.table).value += care.compacted_files


def _samples(values: Mapping[str, float]) -> list[tuple[tuple[str, ...], float]]:
    return [((mapping,), float(value)) for mapping, value in list(values.items())]


@contextmanager
def serving(metrics: PipelineMetrics, address: Address) -> Iterator[Address]:
    """Serve metrics while the block runs; yield the address, with the chosen port. Raises StartupError."""

    class Handler(BaseHTTPRequestHandler):
        timeout = SILENCE_SECONDS

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404, "metrics are at /metrics")
                return
            form = PageFormat.accepted(self.headers.get("Accept"))
            body = metrics.registry.expose(form).encode()
            self.send_response(200)
            self.send_header("Content-Type", form.value)
            self.send_header("Vary", "Accept")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing for a scrape."""

    try:
        server = ThreadingHTTPServer((address.host, address.port), Handler)
    except OSError as exc:
        raise StartupError(f"metrics can't be served at {address}: {exc}; give another address as metrics") from exc
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Address(address.host, server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
