"""Dispatch frames to handlers, and encode their responses. No I/O here.

An API or version that `kafscale.api.table` lacks ends the connection, as in Kafka; an unknown version of ApiVersions is
answered in version 0 with the known versions (KIP-511).
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import attrs
import trio

from kafscale.api import produce
from kafscale.api.cluster import api_versions
from kafscale.api.handling.calls import Api, Call, ListedApi, Peer
from kafscale.api.handling.quotas import RateQuota
from kafscale.api.handling.refusals import handle_guarded, refusal
from kafscale.api.handling.services import Services
from kafscale.api.produce import Pending, PendingProduce, ProduceGroup, ShortWay
from kafscale.api.records import fetch
from kafscale.api.records.fetch import FetchReply
from kafscale.concurrency.byte_budget import ByteBudget, Share
from kafscale.concurrency.metering import Meter, metered
from kafscale.errors import Fenced, ProtocolError, StoreError
from kafscale.log.partition.chunks import Lease
from kafscale.log.partition.tail import Releasable
from kafscale.metrics import Counter, CounterFamily, Histogram, HistogramFamily
from kafscale.security.session import SASL_AUTHENTICATE, SASL_HANDSHAKE, SaslSession
from kafscale.server.kafka.error_counts import ErrorCounter
from kafscale.server.kafka.pieces import (
    LONG_REQUEST_BYTES,
    LONG_REQUESTS_MAX_BYTES,
    AnswerEncoder,
    decode_in_pieces,
    encode_with_records,
)
from kafscale.server.quiet_log import QuietLog
from kafscale.store.file.open_files import Sendable
from kafscale.wire.codec import decoder
from kafscale.wire.error_codes import REQUEST_TIMED_OUT
from kafscale.wire.frames import parse_request_header, response_frame
from kafscale.wire.schema import NEVER

logger = logging.getLogger(__name__)

NOTHING = memoryview(b"")
LONG_PRODUCE_BYTES = 64 << 10  # may name 10,000 partitions, of 4 us each; else there is a large batch in it
LOAD_PAUSE_SECONDS = 0.05  # between two APIs that are loaded ahead of their first request
PERCENT: Final = 100
WRITE_TXN_MARKERS: Final = 27
BROKER_HEARTBEAT: Final = 63
# Requests whose time counts for no quota: logins, which are bounded otherwise, and those between brokers.
LOGINS: Final = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})
UNCOUNTED: Final = LOGINS | {WRITE_TXN_MARKERS, BROKER_HEARTBEAT}
WAIT_FOR_OTHERS = ("Fetch", "JoinGroup", "SyncGroup")  # so that they hold nothing that others need meanwhile

T = TypeVar("T")


@attrs.define(eq=False, repr=False)
class Request:
    """One request, or a group of `count` Produces, which share only the version of `call`.

    `pending` is set for Produce, which is in the log already; any other request is still a frame. `waiting_bytes` are
    held until its turn: that frame, or the answers to refused partitions of a Produce.
    """

    api: Api
    call: Call
    body: memoryview
    received_at: float
    size_bytes: int
    count: int = 1
    pending: Pending | None = None
    waiting_bytes: int = 0

    def let_go_of(self, frame: memoryview) -> None:
        """Copy the body if its read brought much more, as the request may wait for long."""
        if len(frame) <= len(frame.obj) // 2:  # type: ignore[arg-type] # bytes, or a bytearray
            self.body = memoryview(bytes(self.body))


@attrs.define(eq=False, repr=False)
class EncodedReply:
    """The buffers to send, none for `acks=0`, and the memory to release once they are sent.

    `throttle_ms` is how long the connection must not be read from, by a quota.
    """

    buffers: list[Sendable]
    held: Releasable | None = None
    throttle_ms: int = 0

    def release(self) -> None:
        if self.held is not None:
            self.held.release()


@attrs.frozen(eq=False, repr=False)
class _Row:
    """One API, and the values that each of its requests needs."""

    api: Api
    flexible_since: int
    may_wait: bool
    reply: Callable[[_Row, Call, Any, int], Awaitable[EncodedReply]]
    request_count: Counter
    latency_seconds: Histogram
    errors: ErrorCounter


def _superseded(fenced: Fenced) -> ProtocolError:
    """Return the error that ends a connection of a fenced broker; its lease check ends the broker."""
    return ProtocolError(f"this broker must not answer any more: {fenced}")


@attrs.define(eq=False, repr=False)
class Dispatcher:
    services: Services
    apis: Sequence[ListedApi]
    _listed: Mapping[int, ListedApi] = attrs.field(init=False)
    _rows: dict[int, _Row] = attrs.field(factory=dict, init=False)  # of those that are loaded
    _request_counts: CounterFamily = attrs.field(init=False)
    _latencies: HistogramFamily = attrs.field(init=False)
    _error_counts: CounterFamily = attrs.field(init=False)
    _long_requests: ByteBudget = attrs.field(factory=lambda: ByteBudget(LONG_REQUESTS_MAX_BYTES), init=False)
    _encoder: AnswerEncoder = attrs.field(init=False)
    _quiet: QuietLog = attrs.field(factory=lambda: QuietLog(logger), init=False)

    def __attrs_post_init__(self) -> None:
        self._encoder = AnswerEncoder(self.services.settings.limits.max_response_bytes)
        metrics, help = self.services.metrics, "Time from the arrival of a request to its reply."
        self._request_counts = metrics.counter("kafscale_requests_total", "Requests answered.", "api")
        self._latencies = metrics.histogram("kafscale_request_seconds", help, "api")
        self._error_counts = metrics.counter(
            "kafscale_errors_total", "Error codes in responses, by API and error.", "api", "error"
        )
        self._listed = {api.key: api for api in self.apis}
        for api in self.apis:
            self._request_counts.of(api.name)  # zeros from the start
            self._latencies.of(api.name)

    async def load_all(self) -> None:
        """Load the remaining APIs one at a time: clients then don't wait for them, nor get an upgrade's code."""
        waiting = deque(self._listed)
        while waiting:
            await trio.sleep(LOAD_PAUSE_SECONDS)
            if self._is_loaded(waiting[0]):
                waiting.popleft()

    def _is_loaded(self, key: int) -> bool:
        with suppress(ProtocolError):
            return self._row(key) is not None
        return False

    def _row(self, key: int) -> _Row | None:
        """Return the row of an API, None if it is not served. Raises ProtocolError if it can't be loaded now."""
        row = self._rows.get(key)
        if row is None and (listed := self._listed.get(key)) is not None:
            try:
                api = listed.load()
            except OSError as exc:  # no descriptor is left for its file: that passes
                raise ProtocolError(f"what {listed.name} needs can't be read: {exc}") from exc
            row = self._rows[key] = self._open(api)
        return row

    def _open(self, api: Api) -> _Row:
        return _Row(
            api,
            flexible_since=api.request.FLEXIBLE_SINCE,
            may_wait=inspect.iscoroutinefunction(api.handle),
            reply=self._fetch_reply if api is fetch.API else self._reply,
            request_count=self._request_counts.of(api.name),
            latency_seconds=self._latencies.of(api.name),
            errors=ErrorCounter.of(api.name, api.response, self._error_counts),
        )

    def _first_flexible(self, key: int) -> int:
        row = self._rows.get(key) or self._row(key)
        return NEVER if row is None else row.flexible_since

    def short_way(self, peer: Peer) -> ShortWay:
        """Make the short way of one connection."""
        return ShortWay(self.services, peer)

    def accept(self, frame: memoryview, peer: Peer, received_at: float) -> Request:
        """Read a frame's header. Raises ProtocolError."""
        header = parse_request_header(frame, self._first_flexible)
        row = self._rows.get(header.api_key)
        if row is None:
            raise ProtocolError(f"API key {header.api_key} is not supported")
        api, version = row.api, header.api_version
        if not api.serves(version) and api is not api_versions.API:
            raise ProtocolError(
                f"{api.name} version {version} is not supported, only {api.min_version} to {api.max_version}"
            )
        if peer.sasl is not None:
            _check_admitted(peer.sasl, api)
        call = Call(api.key, version, header.correlation_id, header.client_id or "", peer)
        return Request(api, call, frame[header.body_offset :], received_at, len(frame))

    async def begin(self, request: Request, frame_lease: Lease | None) -> PendingProduce:
        """Begin a Produce; awaits only for one with many partitions. Raises ProtocolError."""
        quota = self._request_quota(request.call)
        if quota is None:
            return await self._begin(request, frame_lease)
        meter = Meter()
        pending = await metered(meter, self._begin(request, frame_lease))
        self._hold_back(quota, request.call, meter, pending.response)
        return pending

    async def _begin(self, request: Request, frame_lease: Lease | None) -> PendingProduce:
        call, size_bytes = request.call, request.size_bytes
        if len(request.body) <= LONG_PRODUCE_BYTES:
            message, request.body = self._decode(request), NOTHING
            return produce.begin(self.services, call, message, size_bytes=size_bytes, frame_lease=frame_lease)
        message = await decode_in_pieces(request.api.request, call.version, request.body)
        request.body = NOTHING
        return await produce.begin_in_turns(
            self.services, call, message, size_bytes=size_bytes, frame_lease=frame_lease
        )

    def request_of(self, group: ProduceGroup, received_at: float) -> Request:
        return Request(produce.API, group.call, NOTHING, received_at, size_bytes=0, count=0, pending=group)

    def may_wait(self, request: Request) -> bool:
        """Tell whether the reply may take a while, so that earlier ones should be sent first."""
        pending = request.pending
        return self._rows[request.api.key].may_wait if pending is None else not pending.ready

    async def answer(self, request: Request) -> EncodedReply:
        """Run the handler, or wait for a Produce. Raises ProtocolError."""
        row = self._rows[request.api.key]
        if request.pending is not None:
            return await self._answer_produce(row, request.call, request.pending)
        try:
            await self.services.wait_awake()
        except Fenced as exc:
            raise _superseded(exc) from exc
        # Logins are answered late where they fail, and are bytes or a name however long they are.
        if len(request.body) <= LONG_REQUEST_BYTES or request.api.key in LOGINS:
            return await self._answer(row, request, None)
        share = await self._long_requests.share(len(request.body))
        assert share is not None
        try:
            return await self._answer(row, request, share)
        finally:
            share.release()

    async def _answer_produce(self, row: _Row, call: Call, pending: Pending) -> EncodedReply:
        await pending.wait()
        for response in pending.responses:
            row.errors.count(response)
        if pending.unencoded is not None:
            return await self.counted(call, self._encoded(row, call, pending.unencoded, call.version))
        return EncodedReply([b"".join(pending.replies)] if pending.replies else [])

    async def _answer(self, row: _Row, request: Request, share: Share | None) -> EncodedReply:
        """Answer a request; `share` is the room that a long one holds."""
        if not row.api.serves(request.call.version):
            return await self._reply(row, request.call, api_versions.unsupported_version_response(self.services), 0)
        responding = self._respond(row, request, share)
        quota = self._request_quota(request.call)
        if quota is None:
            return await row.reply(row, request.call, await responding, request.call.version)
        meter = Meter()
        response = await metered(meter, responding)
        told = response.response if isinstance(response, FetchReply) else response
        throttle_ms = self._hold_back(quota, request.call, meter, told)
        reply = await self.counted(request.call, row.reply(row, request.call, response, request.call.version))
        reply.throttle_ms = max(reply.throttle_ms, throttle_ms)
        return reply

    async def _respond(self, row: _Row, request: Request, share: Share | None) -> Any:
        decoded = await self._decode_at_its_turn(row, request, share)
        request.body = NOTHING  # what it is kept for may take long
        try:
            if self.services.access.authorizer is not None:
                return await handle_guarded(self.services, row.api, request.call, decoded)
            response = row.api.handle(self.services, request.call, decoded)
            return await response if row.may_wait else response
        except StoreError as exc:  # the metadata, where it is in the bucket
            self._quiet.tell("store", "%s is refused, and may be tried again: %s", row.api.name, exc)
            return refusal(decoded, row.api.response, REQUEST_TIMED_OUT)
        except Fenced as exc:
            raise _superseded(exc) from exc

    # ---- the time that requests take --------------------------------------------------------------------------

    def _request_quota(self, call: Call) -> RateQuota | None:
        """Return the quota for the time of a request; None if it counts for none."""
        quota = self.services.quotas.request
        return quota if quota is not None and self.is_countable(call) and quota.applies_to(call) else None

    def is_countable(self, call: Call) -> bool:
        """Tell whether the time of a request may count for a client, which that of a login does not."""
        sasl = call.peer.sasl
        return call.api_key not in UNCOUNTED and (sasl is None or sasl.is_authenticated)

    def _hold_back(self, quota: RateQuota, call: Call, meter: Meter, response: Any) -> int:
        """Count the time of a request. Returns the throttle time, and puts it into the response."""
        throttle_ms = quota.throttle_ms(call, meter.take() * PERCENT)
        if throttle_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = max(response.throttle_time_ms, throttle_ms)
        return throttle_ms

    def count(self, call: Call, meter: Meter) -> None:
        seconds = meter.take()
        if (quota := self._request_quota(call)) is not None:
            quota.count(call, seconds * PERCENT)

    async def counted(self, call: Call, work: Awaitable[T]) -> T:
        """Await work outside of a request. If the client has a quota, time above it delays the next request."""
        quota = self._request_quota(call)
        if quota is None:
            return await work
        meter = Meter()
        try:
            return await metered(meter, work)
        finally:
            quota.count(call, meter.take() * PERCENT)

    async def _reply(self, row: _Row, call: Call, response: object, version: int) -> EncodedReply:
        row.errors.count(response)
        reply = await self._encoded(row, call, response, version)
        reply.throttle_ms = getattr(response, "throttle_time_ms", 0)  # of which some versions do not tell the client
        return reply

    async def _encoded(self, row: _Row, call: Call, response: object, version: int) -> EncodedReply:
        encoded = await self._encoder.encode(response, version)
        return EncodedReply(self._frame(row, call, encoded.buffers, version), encoded.share)

    async def _fetch_reply(self, row: _Row, call: Call, fetched: FetchReply, version: int) -> EncodedReply:
        row.errors.count(fetched.response)
        try:
            parts = await encode_with_records(fetched.response, version)
        except BaseException:
            fetched.release()
            raise
        buffers = self._frame(row, call, parts, version)
        return EncodedReply(buffers, fetched, throttle_ms=fetched.response.throttle_time_ms)

    def _decode(self, request: Request) -> Any:
        decode: Any = decoder(request.api.request, request.call.version)
        return decode(request.body, 0)[0]

    async def _decode_at_its_turn(self, row: _Row, request: Request, share: Share | None) -> Any:
        if share is None:
            return self._decode(request)
        decoded = await decode_in_pieces(row.api.request, request.call.version, request.body)
        if row.api.name in WAIT_FOR_OTHERS:
            share.shrink(0)
        return decoded

    def _frame(self, row: _Row, call: Call, parts: list[Sendable], version: int) -> list[Sendable]:
        flexible = version >= row.flexible_since and row.api is not api_versions.API
        return response_frame(call.correlation_id, parts, flexible)

    @property
    def replies_wait_for_memory(self) -> bool:
        """Tell whether tasks wait for memory of replies that are being sent."""
        return bool(self._encoder.waiting_count or self.services.log.reader.ranges.budget.waiting_count)

    def sent(self, request: Request, now: float) -> None:
        """Count a request, or a group, whose reply was sent."""
        row = self._rows[request.api.key]
        row.request_count.value += request.count
        row.latency_seconds.observe(now - request.received_at, request.count)


def _check_admitted(session: SaslSession, api: Api) -> None:
    """Check a request of a SASL listener.

    Only the short way passes it by: that repeats admitted Produces, and forgets them when a session ends. Raises
    ProtocolError.
    """
    if not session.admits(api.key, trio.current_time()):
        reason = "its session is over" if session.is_authenticated else "it has not authenticated"
        raise ProtocolError(f"a request of {api.name}, although {reason}")
