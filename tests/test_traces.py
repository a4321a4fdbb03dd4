"""Trace contexts in the bytes of records, and the count of spans that could not be sent."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import attrs
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from kafscale.traces import CONTEXTS_MAX_COUNT, SCANNED_BYTES, CountingExporter, Traces, context_of, contexts_in
from kafscale.wire.records import Record, build_batch

TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


def header_of(span_id: int = SPAN_ID, flags: str = "01") -> bytes:
    return f"00-{TRACE_ID:032x}-{span_id:016x}-{flags}".encode()


def batch_of(*traceparents: bytes, value: bytes = b"v") -> bytes:
    """Return an uncompressed batch, of a record for each value of the header."""
    records = [Record(value=value, headers=[("traceparent", traceparent)]) for traceparent in traceparents]
    return bytes(build_batch(records))


def test_the_contexts_of_a_batch_are_found_once_each_and_in_order() -> None:
    second = header_of(7, "00")
    found = contexts_in(memoryview(b"frame" + batch_of(header_of(), second, header_of())))
    assert [(context.trace_id, context.span_id) for context in found] == [(TRACE_ID, SPAN_ID), (TRACE_ID, 7)]
    assert [bool(context.trace_flags.sampled) for context in found] == [True, False]
    assert all(context.is_remote for context in found)


def test_only_the_start_of_a_request_is_searched_and_contexts_are_bounded() -> None:
    assert contexts_in(b"x" * SCANNED_BYTES + batch_of(header_of())) == ()
    many = [header_of(number + 1) for number in range(CONTEXTS_MAX_COUNT * 2)]
    assert [context.span_id for context in contexts_in(batch_of(*many))] == list(range(1, CONTEXTS_MAX_COUNT + 1))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01",
        header_of(0),
        header_of().upper(),
        header_of() + b"-more",
        b"ff" + header_of()[2:],
        header_of()[:-1],
    ],
)
def test_invalid_contexts_are_none(value: bytes) -> None:
    assert context_of(value) is None
    assert list(contexts_in(batch_of(value))) == []


@attrs.define(eq=False)
class Fake(SpanExporter):
    results: list[SpanExportResult]

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self.results.pop(0)
        if result is SpanExportResult.FAILURE:
            logging.getLogger(__name__).error("Connection refused")
        return result


def test_lost_spans_are_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    lost, sent = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
    exporter = CountingExporter(Fake([sent, lost, lost, sent, lost]), "http://collector:4318/v1/traces")
    spans = [ReadableSpan("one"), ReadableSpan("two")]
    for _ in range(5):
        exporter.export(spans)
    assert (exporter.sent_count.value, exporter.lost_count.value) == (4, 6)
    assert [record.getMessage() for record in caplog.records] == [
        "spans are lost until the collector at http://collector:4318/v1/traces takes them: Connection refused",
        "the collector at http://collector:4318/v1/traces takes spans again; 4 were lost",
        "spans are lost until the collector at http://collector:4318/v1/traces takes them: Connection refused",
    ]


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9/v1/traces"),
        ("http://127.0.0.1:9/", "http://127.0.0.1:9/v1/traces"),
        ("http://127.0.0.1:9/otlp/spans", "http://127.0.0.1:9/otlp/spans"),
    ],
)
def test_an_endpoint_without_a_path_gets_that_of_otlp(endpoint: str, url: str) -> None:
    traces = Traces.open(endpoint, {})
    assert traces.exporter.endpoint == url
    traces.close()


def test_variables_of_opentelemetry_name_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-log")
    traces = Traces.open("http://127.0.0.1:9", {"service.name": "kafscale", "service.instance.id": "7"})
    attributes = traces.provider.resource.attributes
    assert (attributes["service.name"], attributes["service.instance.id"]) == ("orders-log", "7")
    traces.close()
