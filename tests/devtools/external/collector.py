"""An OpenTelemetry collector in a thread: takes OTLP over HTTP, and decodes it with `opentelemetry-proto`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

import attrs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from kafscale.testing.http_server import http_server
from tests.devtools.external.clients import DEADLINE_SECONDS, PAUSE_SECONDS

CONTENT_TYPE = "application/x-protobuf"


@attrs.frozen(kw_only=True)
class ReceivedSpan:
    """One span; ids are in hexadecimal, `parent_id` is empty for a root."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: Sequence[tuple[str, str]]
    attributes: dict[str, Any]
    resource: dict[str, Any]
    start_ns: int
    end_ns: int
    error: str | None


@attrs.define(eq=False)
class Collector:
    """Keeps received spans. Answers with `status`; while `held` is set it doesn't answer."""

    url: str = ""
    status: int = 200
    held: threading.Event = attrs.field(factory=threading.Event)
    spans: list[ReceivedSpan] = attrs.field(factory=list)
    paths: set[str] = attrs.field(factory=set)

    def named(self, name: str) -> Sequence[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def children(self, parent: ReceivedSpan, name: str) -> Sequence[ReceivedSpan]:
        return [
            span for span in self.named(name) if (span.trace_id, span.parent_id) == (parent.trace_id, parent.span_id)
        ]

    def wait_for(self, found: Callable[[], Sequence[ReceivedSpan]], count: int = 1) -> Sequence[ReceivedSpan]:
        """Return the found spans when there are `count`."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(spans := found()) < count:
            assert time.monotonic() < deadline, f"{len(spans)} of {count} in {[span.name for span in self.spans]}"
            time.sleep(PAUSE_SECONDS)
        return spans


@contextmanager
def collector() -> Iterator[Collector]:
    """Serve until the block ends."""
    running = Collector()
    with http_server(_handler(running)) as url:
        running.url = url
        try:
            yield running
        finally:
            running.held.clear()


def _handler(running: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.headers["content-type"] == CONTENT_TYPE
            running.paths.add(self.path)
            while running.held.is_set():
                time.sleep(PAUSE_SECONDS)
            if running.status == 200:
                running.spans += _decoded(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            with suppress(OSError):  # a broker that has given up, or ended
                self.send_response(running.status)
                self.send_header("content-type", CONTENT_TYPE)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler


def _decoded(body: bytes) -> Iterator[ReceivedSpan]:
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield ReceivedSpan(
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    attributes=_values(span.attributes),
                    resource=_values(of_resource.resource.attributes),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    error=span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else None,
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(element) for element in value.array_value.values] if kind == "array_value" else getattr(value, kind)
