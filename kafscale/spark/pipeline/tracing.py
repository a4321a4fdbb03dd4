"""The span of a micro-batch, linked to trace contexts in its records' headers. Imported only with `traces`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span
from pyspark.sql import functions

from kafscale.spark.pipeline.records import RECORD, BatchRows
from kafscale.spark.pipeline.snapshots import MicroBatch
from kafscale.traces import CONTEXTS_MAX_COUNT, Traces, distinct_contexts


@contextmanager
def batch_span(traces: Traces, batch: MicroBatch, table: str) -> Iterator[Span]:
    """Record the block, which writes a batch, as a span."""
    attributes: dict[str, str | int] = {
        "kafscale.mapping": batch.mapping,
        "kafscale.table": table,
        "kafscale.batch_id": batch.batch_id,
    }
    with traces.tracer.start_as_current_span("pipeline batch", attributes=attributes) as span:
        yield span


def link_records(span: Span, rows: BatchRows) -> None:
    """Link a span to the contexts in the first CONTEXTS_MAX_COUNT headers `traceparent` of a batch."""
    header = functions.explode(f"{RECORD}.headers").alias("header")
    found = rows.frame.select(header).where("header.key = 'traceparent'").select("header.value")
    values = [bytes(row.value) for row in found.limit(CONTEXTS_MAX_COUNT).collect() if row.value is not None]
    for context in distinct_contexts(values):
        span.add_link(context)
