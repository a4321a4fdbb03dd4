"""Send OpenTelemetry spans by OTLP over HTTP, and find W3C trace contexts in records. Imported only with traces on.

It needs the extra `traces`. A thread of the SDK sends the spans; its queue is bounded, and drops the oldest spans while
the collector does not answer. Sampling, queue and headers are set by the SDK's own variables, such as
OTEL_TRACES_SAMPLER. May not import trio: Spark's pipeline uses it too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import attrs
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, TraceFlags, Tracer, set_span_in_context

from kafscale import __version__
from kafscale.buffers import Buffer
from kafscale.metrics import Counter, Metrics

EXPORT_PATH: Final = "/v1/traces"
SCANNED_BYTES: Final = 64 << 10  # of a request, which takes 10 us
CONTEXTS_MAX_COUNT: Final = 32  # of one request or batch
# The name of a record header with its length, and a value of version 00 with its own, as varints of Kafka's format.
_NAME: Final = b"\x16traceparent\x6e"
_HEADER: Final = re.compile(_NAME + rb"(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})")
_ABSENT: Final = (b"0" * 32, b"0" * 16)

logger = logging.getLogger(__name__)


def contexts_in(request: Buffer) -> Sequence[SpanContext]:
    """Return the distinct trace contexts in headers of uncompressed records, in the first SCANNED_BYTES."""
    data = bytes(memoryview(request)[:SCANNED_BYTES])
    return distinct_contexts(_HEADER.findall(data)) if _NAME in data else ()


def distinct_contexts(traceparents: Iterable[bytes]) -> Sequence[SpanContext]:
    """Return at most CONTEXTS_MAX_COUNT contexts of valid values of the header `traceparent`."""
    found: dict[bytes, SpanContext] = {}
    for traceparent in traceparents:
        if traceparent not in found and (context := context_of(traceparent)) is not None:
            found[traceparent] = context
            if len(found) == CONTEXTS_MAX_COUNT:
                break
    return list(found.values())


def context_of(traceparent: bytes) -> SpanContext | None:
    """Return the context of a header's value, None if it is not valid by version 00 of W3C's Trace Context."""
    if _HEADER.fullmatch(_NAME + traceparent) is None:
        return None
    _, trace_id, span_id, flags = traceparent.split(b"-")
    if trace_id == _ABSENT[0] or span_id == _ABSENT[1]:
        return None
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))


@attrs.frozen(eq=False, repr=False)
class Causes:
    """The spans that caused one: the first is its parent, the others are links."""

    contexts: Sequence[SpanContext]

    def start(self, tracer: Tracer, name: str, **details: object) -> Span:
        """Start a span that these have caused; `details` are those of `Tracer.start_span`."""
        parent = set_span_in_context(NonRecordingSpan(self.contexts[0])) if self.contexts else None
        links = [Link(context) for context in self.contexts[1:]]
        return tracer.start_span(name, context=parent, links=links, **details)  # type: ignore[arg-type]


@attrs.define(eq=False, repr=False)
class CountingExporter(SpanExporter):
    """Counts sent and lost spans. Logs when the collector stops taking spans and when it takes them again."""

    exporter: SpanExporter
    endpoint: str
    sent_count: Counter = attrs.field(factory=Counter, init=False)
    lost_count: Counter = attrs.field(factory=Counter, init=False)
    _lost_before: float = attrs.field(default=0, init=False)
    _is_failing: bool = attrs.field(default=False, init=False)
    _reason: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        logging.getLogger(type(self.exporter).__module__).addFilter(self._keep_reason)

    def _keep_reason(self, record: logging.LogRecord) -> bool:
        """Keep the exporter's own message, which it repeats for each attempt, out of the log."""
        self._reason = record.getMessage()
        return False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self.exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.sent_count.value += len(spans)
            if self._is_failing:
                lost = int(self.lost_count.value - self._lost_before)
                logger.warning("the collector at %s takes spans again; %d were lost", self.endpoint, lost)
        else:
            if not self._is_failing:
                self._lost_before = self.lost_count.value
                logger.warning("spans are lost until the collector at %s takes them: %s", self.endpoint, self._reason)
            self.lost_count.value += len(spans)
        self._is_failing = result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        self.exporter.shutdown()
        logging.getLogger(type(self.exporter).__module__).removeFilter(self._keep_reason)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self.exporter.force_flush(timeout_millis)


@attrs.frozen(eq=False, repr=False)
class Traces:
    """A tracer, and the thread that sends its spans. `close` it."""

    tracer: Tracer
    provider: TracerProvider
    exporter: CountingExporter

    @classmethod
    def open(cls, endpoint: str, resource: Mapping[str, str]) -> Traces:
        """Start to send spans of this process to a collector. OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME win."""
        url = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + EXPORT_PATH
        exporter = CountingExporter(OTLPSpanExporter(endpoint=url), url)
        own = Resource.create({"service.version": __version__, **resource})
        provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider.get_tracer("kafscale", __version__), provider, exporter)

    def register(self, metrics: Metrics) -> None:
        exporter = self.exporter
        help = "OpenTelemetry spans that the collector has taken."
        metrics.adopt_counter("kafscale_trace_spans_sent_total", help, exporter.sent_count)
        help = "OpenTelemetry spans that the collector has not taken."
        metrics.adopt_counter("kafscale_trace_spans_lost_total", help, exporter.lost_count)

    def close(self) -> None:
        """Send the waiting spans, and end the thread. Blocks while the collector does not answer."""
        self.provider.shutdown()
