"""From a frame to its handler, and from a handler's response to the buffers of the reply. No I/O here.

The table of `kafscale.api.table` decides: what is not in it ends the connection, as in Kafka. The exception is a
version of ApiVersions that is not known: it is answered in version 0, with the versions that are (KIP-511).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from typing import Any

import attrs

from kafscale.api import api_versions, produce
from kafscale.api.calls import Api, Call, Peer
from kafscale.api.fetch import FetchReply
from kafscale.api.produce import PendingProduce
from kafscale.api.produce_group import ProduceGroup, append_plain
from kafscale.api.services import Services
from kafscale.errors import ProtocolError
from kafscale.log.partition.chunks import Lease
from kafscale.log.partition.tail import Releasable
from kafscale.log.wal.local_wal import Round
from kafscale.metrics import Counter, Histogram
from kafscale.server.kafka.error_counts import ErrorCounter
from kafscale.store.file.open_files import Sendable
from kafscale.wire.codec import decoder, encoder
from kafscale.wire.frames import parse_request_header, response_frame
from kafscale.wire.plain_produce import PlainRequest

NOTHING = memoryview(b"")


@attrs.define(eq=False)
class Request:
    """One request on its way to its reply, or a group of `count` Produces, which share the version of `call` alone.

    `pending` is set for Produce, which is in the log already; any other request is still a frame, run at its turn.
    `lease` holds the frame if it was received into the chunk pool. `throttle_ms` is for how long its connection is
    not to be read from, by a quota.
    """

    api: Api
    call: Call
    body: memoryview
    received_at: float
    lease: Lease | None
    size_bytes: int
    pending: PendingProduce | ProduceGroup | None = None
    throttle_ms: int = 0

    @property
    def count(self) -> int:
        return len(self.pending.replies) if isinstance(self.pending, ProduceGroup) else 1

    def release(self) -> None:
        """The frame is not needed any more; what Produce keeps of it has leases of its own."""
        if self.lease is not None:
            self.lease.release()
            self.lease = None


@attrs.define(eq=False)
class Reply:
    """The buffers to send, none for `acks=0`, and the memory of some of them: `release` once they are sent.

    `throttle_ms` is as for a request.
    """

    buffers: list[Sendable]
    held: Releasable | None = None
    throttle_ms: int = 0

    def release(self) -> None:
        if self.held is not None:
            self.held.release()


@attrs.frozen(eq=False)
class _Row:
    """One API, and what is looked up for each of its requests."""

    api: Api
    flexible_since: int
    may_wait: bool
    request_count: Counter
    latency_seconds: Histogram
    errors: ErrorCounter


@attrs.define(eq=False)
class Dispatcher:
    """Shared by all connections of a broker."""

    services: Services
    apis: Sequence[Api]
    _rows: dict[int, _Row] = attrs.field(init=False)
    _flexible_since: dict[int, int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        metrics = self.services.metrics
        requests = metrics.counter("kafscale_requests_total", "Requests answered.", "api")
        latency = metrics.histogram("kafscale_request_seconds", "From a request's arrival to its reply.", "api")
        errors = metrics.counter("kafscale_errors_total", "Errors in responses.", "api", "error")
        self._rows = {
            api.key: _Row(
                api,
                flexible_since=_flexible_since(api.request),
                may_wait=inspect.iscoroutinefunction(api.handle),
                request_count=requests.of(api.name),
                latency_seconds=latency.of(api.name),
                errors=ErrorCounter.of(api.name, api.response, errors),
            )
            for api in self.apis
        }
        self._flexible_since = {key: row.flexible_since for key, row in self._rows.items()}

    def accept(self, frame: memoryview, peer: Peer, received_at: float, lease: Lease | None) -> Request:
        """Read a frame's header; a Produce is begun. Raises ProtocolError for what ends the connection."""
        header = parse_request_header(frame, self._flexible_since)
        row = self._rows.get(header.api_key)
        if row is None:
            raise ProtocolError(f"API key {header.api_key} is not supported")
        api, version = row.api, header.api_version
        if api is not api_versions.API and not api.min_version <= version <= api.max_version:
            raise ProtocolError(
                f"{api.name} version {version} is not supported, only {api.min_version} to {api.max_version}"
            )
        call = Call(api.key, version, header.correlation_id, header.client_id or "", peer)
        request = Request(api, call, frame[header.body_offset :], received_at, lease, len(frame))
        if api is produce.API:
            request.pending = produce.begin(self.services, call, self._decode(request), lease)
            if self.services.quotas.producer is not None:
                request.throttle_ms = self.services.quotas.producer.throttle_ms(call.client_id, len(frame))
                request.pending.response.throttle_time_ms = request.throttle_ms
        return request

    def takes_plain(self) -> bool:
        """Whether Produces need not be looked at one by one, as for a quota, or for want of room."""
        return self.services.quotas.producer is None and not self.services.log.is_full

    def append_plain(self, plain: PlainRequest) -> tuple[Round, bytes] | None:
        """As `kafscale.api.produce_group`."""
        return append_plain(self.services, plain)

    def request_of(self, group: ProduceGroup, peer: Peer, received_at: float) -> Request:
        """What stands in the queue for a group."""
        return Request(
            produce.API, Call(produce.API.key, group.version, 0, "", peer), NOTHING, received_at, None, 0, group
        )

    def may_wait(self, request: Request) -> bool:
        """Whether the reply may take a while, so that those before it had better be sent first."""
        if isinstance(request.pending, ProduceGroup):
            return not request.pending.round.done
        if request.pending is not None:
            return not request.pending.ready
        return self._rows[request.api.key].may_wait

    async def answer(self, request: Request) -> Reply:
        """Run the handler, or wait for what Produce has begun. Raises ProtocolError."""
        row = self._rows[request.api.key]
        version = request.call.version
        if isinstance(request.pending, ProduceGroup):
            return await self._answer_group(row, request.pending)
        if request.pending is not None:
            await request.pending.wait()
            response: Any = request.pending.response
        elif version > row.api.max_version:
            version, response = 0, api_versions.unsupported_version_response(self.services)
        else:
            response = row.api.handle(self.services, request.call, self._decode(request))
            if isinstance(response, Awaitable):
                response = await response
        reply = Reply([])
        if isinstance(response, FetchReply):
            reply.held, response = response, response.response
            reply.throttle_ms = response.throttle_time_ms
        row.errors.count(response)
        if request.pending is None or request.pending.acks != produce.ACKS_NONE:
            reply.buffers = self._encode(row, request.call, response, version)
        return reply

    async def _answer_group(self, row: _Row, group: ProduceGroup) -> Reply:
        await group.wait()
        for response in group.refused:
            row.errors.count(response)
        return Reply([b"".join(group.replies)])

    def _decode(self, request: Request) -> Any:
        decode: Any = decoder(request.api.request, request.call.version)
        return decode(request.body, 0)[0]

    def _encode(self, row: _Row, call: Call, response: Any, version: int) -> list[Sendable]:
        parts: list[Sendable] = []
        encoder(type(response), version)(response, parts.append)
        flexible = version >= row.flexible_since and row.api is not api_versions.API
        return response_frame(call.correlation_id, parts, flexible)

    def sent(self, request: Request, now: float) -> None:
        """The reply is on its way, or those of the group."""
        row = self._rows[request.api.key]
        row.request_count.value += request.count
        row.latency_seconds.observe(now - request.received_at, request.count)


def _flexible_since(message: Any) -> int:
    return int(message.FLEXIBLE_SINCE)
