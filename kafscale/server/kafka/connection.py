"""One client connection: a reader task and a writer task, and a queue of requests between them.

The reader appends every Produce to the log at once (`kafscale.api.produce`), and queues all requests in order, alike
Produces in groups. The writer answers them in that order and sends ready replies together. The reader stops only while
a `PauseReason` holds. An error of a connection has no effect on others.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable
from time import perf_counter
from typing import TypeVar

import attrs
import trio

from kafscale.api import produce
from kafscale.api.handling.calls import Call, Peer
from kafscale.api.produce import PendingProduce, ProduceGroup, ShortWay
from kafscale.buffers import size_of
from kafscale.concurrency.metering import Meter, metered
from kafscale.concurrency.nurseries import beside, leaves
from kafscale.concurrency.signals import Signal
from kafscale.config import Limits
from kafscale.errors import ProtocolError, StorageFailed
from kafscale.escaping import bounded
from kafscale.log.partition.chunks import ChunkPool, Lease
from kafscale.metrics import Counter, Metrics
from kafscale.security.session import SaslSession
from kafscale.server.kafka.arrivals import FREE_BYTES, Arrival, Arrivals
from kafscale.server.kafka.dispatch import Dispatcher, EncodedReply, Request
from kafscale.server.kafka.pauses import PauseReason, Pauses
from kafscale.server.kafka.transport import Transport
from kafscale.server.quiet_log import QuietLog
from kafscale.store.file.open_files import Sendable
from kafscale.wire.frames import FrameReader

logger = logging.getLogger(__name__)

T = TypeVar("T")

# One read. With 64 KiB, batches of 1 KiB cost 42 us instead of 34, of 16 KiB 105 instead of 82.
RECEIVE_BYTES = 256 << 10
# A Produce above this is received straight into the chunk pool, alone, and misses the group of its read. When that
# befell one in sixteen batches of 16 KiB, they took 138 us each instead of 122.
LARGE_FRAME_BYTES = 64 << 10
# ... once FREE_BYTES of it are here, and this part if it is larger than usual: what is announced gets none of the pool.
UNUSUAL_FRAME_HERE_FRACTION = 8
OTHER_FRAME_MAX_BYTES = 16 << 20  # decoded, a request takes up to 40 times its size; 500,000 partitions fit
PRODUCE = produce.API.key
PRODUCE_PREFIX = b"\0\0"  # the API key, at the start of every request
ROOM_MAX_SECONDS = 20.0  # for memory or disk space; Kafka's clients give up a request after 30 s
ROOM_AGAIN_MAX_SECONDS = 0.25  # once that was in vain: those sent together must all be refused in time
REASON_MAX_COUNT = 300  # characters of a log line about bad input, which may quote the peer
# While others, whose patience is often 30 s, wait for memory that replies to a peer hold: how long it may take nothing
# at all, and how slow it may be with all of a reply.
STUCK_SECONDS = 2.0
TAKING_SECONDS = 5.0
TAKING_MIN_BYTES_PER_SECOND = 1 << 20
EOF_GRACE_SECONDS = 1.0  # how long requests that were sent before the peer closed may still take


@attrs.define(eq=False, kw_only=True, repr=False)
class ConnectionMetrics:
    bytes_in: Counter = attrs.field(factory=Counter)
    bytes_out: Counter = attrs.field(factory=Counter)
    pauses: dict[PauseReason, Counter] = attrs.field(factory=lambda: {reason: Counter() for reason in PauseReason})
    ended_by_error_count: Counter = attrs.field(factory=Counter)
    quiet: QuietLog = attrs.field(factory=lambda: QuietLog(logger))

    def register(self, metrics: Metrics) -> None:
        count = metrics.adopt_counter
        count("kafscale_connections_errors_total", "Connections ended by an error.", self.ended_by_error_count)
        count("kafscale_network_received_bytes_total", "Bytes received from clients.", self.bytes_in)
        count("kafscale_network_sent_bytes_total", "Bytes sent to clients.", self.bytes_out)
        metrics.counts(
            "kafscale_connection_pauses_total",
            "Times that the broker paused reading from a connection, by reason.",
            "reason",
            lambda: {reason.value: counted.value for reason, counted in self.pauses.items()},
        )


@attrs.define(eq=False, kw_only=True, repr=False)
class ServedConnection:
    """Serves one client until it goes away, makes an error, or the broker drains."""

    transport: Transport
    peer: Peer
    dispatcher: Dispatcher
    pool: ChunkPool
    arrivals: Arrivals
    limits: Limits
    metrics: ConnectionMetrics
    pauses: Pauses = attrs.field(init=False)
    last_active: float = attrs.field(factory=trio.current_time, init=False)
    has_asked: bool = attrs.field(default=False, init=False)  # at least one request was whole, or a login with SASL
    sending_since: float = attrs.field(default=math.inf, init=False)  # how long the peer has not taken what is sent
    arrival: Arrival = attrs.field(init=False)
    sending_bytes: int = attrs.field(default=0, init=False)  # how much that was in all
    _frames: FrameReader = attrs.field(init=False)
    _queue: deque[Request] = attrs.field(factory=deque, init=False)
    _queued_count: int = attrs.field(default=0, init=False)
    _queued_bytes: int = attrs.field(default=0, init=False)
    _short_way: ShortWay = attrs.field(init=False)
    _last_call: Call | None = attrs.field(default=None, init=False)  # by whose client what comes and goes is counted
    _early: Meter = attrs.field(factory=Meter, init=False)  # what a frame took that came before there was one
    _group: ProduceGroup | None = attrs.field(default=None, init=False)  # of the queue's last, while it may grow
    _work: Signal = attrs.field(factory=Signal, init=False)
    _reading: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _serving: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    _seen_untaken: tuple[float, int] = attrs.field(default=(math.inf, 0), init=False)
    _stuck_since: float = attrs.field(default=math.inf, init=False)
    _was_refused: bool = attrs.field(default=False, init=False)  # for want of room, and nothing was taken since
    _without_lease: bool = attrs.field(default=False, init=False)  # the frame that is coming: the pool had no room
    _given_up: ProtocolError | None = attrs.field(default=None, init=False)
    _session: SaslSession | None = attrs.field(init=False)  # of a listener with SASL

    def __attrs_post_init__(self) -> None:
        self._frames = FrameReader(self.limits.max_frame_bytes, large_frame_bytes=LARGE_FRAME_BYTES)
        self.pauses = Pauses(self.metrics.pauses)
        self.arrival = Arrival(self.arrivals, self._give_up)
        self._short_way = self.dispatcher.short_way(self.peer)
        self._session = self.peer.sasl
        if self._session is not None:
            sasl = self.dispatcher.services.settings.sasl
            self._frames.max_frame_bytes = min(self.limits.max_frame_bytes, sasl.sasl_server_max_receive_bytes)
            self._serving.deadline = trio.current_time() + sasl.sasl_authentication_timeout_seconds

    @property
    def idle(self) -> bool:
        return not self._queue and not self.arrival.frame_bytes

    def drain(self) -> None:
        """Read no more; answer received requests, then end."""
        self._reading.cancel()
        self.pauses.end_holds()

    def takes_too_long(self, now: float) -> bool:
        """Tell whether the peer reads a reply too slowly, while others wait for the reply's memory."""
        if self.sending_since == math.inf:
            return False
        untaken_bytes = self.transport.untaken_bytes()
        if (self.sending_since, untaken_bytes) != self._seen_untaken:
            self._seen_untaken = self.sending_since, untaken_bytes
            self._stuck_since = now
        allowed_seconds = TAKING_SECONDS + self.sending_bytes / TAKING_MIN_BYTES_PER_SECOND
        return now - self._stuck_since >= STUCK_SECONDS or now - self.sending_since >= allowed_seconds

    def abort(self) -> None:
        self._serving.cancel()

    async def run(self) -> None:
        refused: ProtocolError | None = None
        try:
            with self._serving:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    refused = await self._read_until_end()
                    self._ended = True
                    self._work.set()
                    if not self._reading.cancel_called or refused:  # a drain has the broker's own deadline
                        nursery.cancel_scope.deadline = trio.current_time() + EOF_GRACE_SECONDS
            if self._serving.cancelled_caught and trio.current_time() >= self._serving.deadline:
                raise ProtocolError("it has not authenticated in time")
            if refused is not None:
                raise refused
        except* ProtocolError as group:
            self.metrics.ended_by_error_count.value += 1
            reason = bounded(str(next(leaves(group))), REASON_MAX_COUNT)
            self.metrics.quiet.tell("bad input", "closing the connection of %s: %s", self.peer.address, reason)
        except* StorageFailed:
            raise  # the disk is lost: the broker must stop
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            logger.debug("%s went away", self.peer.address)
        except* Exception:
            self.metrics.ended_by_error_count.value += 1
            self.metrics.quiet.tell(
                "bugs", "closing the connection of %s after a bug in the broker", self.peer.address, exc_info=True
            )
        finally:
            self._queue.clear()
            self.arrival.end()
            await trio.aclose_forcefully(self.transport)  # type: ignore[arg-type]

    def _give_up(self, reason: str) -> None:
        self._given_up = ProtocolError(reason)
        self._reading.cancel()

    # ---- reader -----------------------------------------------------------------------------------------------

    async def _read_until_end(self) -> ProtocolError | None:
        """Read until the end of the stream, or an error that ends the connection after the earlier replies."""
        with self._reading:
            try:
                await self._read()
            except ProtocolError as exc:
                return exc
            finally:
                self._frames.clear()
                self.arrival.note(0)
        return self._given_up

    async def _read(self) -> None:
        """Read until the end of the stream, without a reference to received data during a wait."""
        while await self._receive():
            await self._take_frames(perf_counter())
            if self._frames.begun_bytes:
                self.arrival.note(self._frames.begun_bytes)
                if self._frames.announced_bytes > LARGE_FRAME_BYTES and not await self._receive_large():
                    break
            elif self.arrival.counted_bytes:
                self.arrival.recount()
            self._wake_writer()
            is_over = self._queued_count >= self.limits.max_in_flight_requests_count
            if is_over or self._queued_bytes >= self.limits.max_in_flight_bytes or self.pauses.reasons:
                await self._wait_until_resumed(may_end=True)
            if self.arrivals.must_wait(self.arrival):
                with self.pauses.because(PauseReason.BUFFER):
                    await self.arrivals.wait_for_room(self.arrival)

    async def _receive(self) -> bool:
        data = await self._counted(self.transport.receive(RECEIVE_BYTES))
        if not data:
            return False
        self.metrics.bytes_in.value += len(data)
        self._frames.receive_data(data)
        return True

    async def _take_frames(self, received_at: float) -> None:
        self._end_group()
        while frames := self._frames.next_frames():
            self._note_whole()
            for frame in frames:
                if self._queued_count >= self.limits.max_in_flight_requests_count or self.pauses.reasons:
                    await self._wait_until_resumed()
                if not self._take_plain(frame, received_at):
                    await self._take(frame, received_at, None)

    def _wake_writer(self) -> None:
        """Wake the writer; if a group of Produces is first in the queue, once that is durable."""
        first = self._queue[0].pending if self._queue else None
        if isinstance(first, ProduceGroup):
            first.round.tell(self._work)
        else:
            self._work.set()

    def _note_whole(self) -> None:
        """Note that frames became complete: only that counts as activity."""
        self.last_active = now = trio.current_time()
        self.has_asked = self.has_asked or self._session is None
        if self._session is not None and not self._session.admits(PRODUCE, now):
            # It takes nothing that the gate has not seen.
            self._short_way = self.dispatcher.short_way(self.peer)
        self._without_lease = False
        if self.arrival.frame_bytes:
            self.arrival.note(0)

    def _counted(self, work: Awaitable[T]) -> Awaitable[T]:
        """Count the time of work outside of requests, if there are quotas for it."""
        if self.dispatcher.services.quotas.request is None:
            return work
        if self._last_call is None:
            return metered(self._early, work)
        return self.dispatcher.counted(self._last_call, work)

    def _note_call(self, call: Call) -> None:
        """Count the traffic from now on for this client, and that before its first call."""
        if self.dispatcher.is_countable(call):
            self._last_call = call
            if self._early.seconds:
                self.dispatcher.count(call, self._early)
        else:
            self._early.take()  # of a login, which is free

    def _take_plain(self, frame: memoryview, received_at: float) -> bool:
        """Add a Produce like an earlier one to the group of this read; False if the general way must take it."""
        group = self._short_way.take(frame)
        if group is None:
            return False
        if group is not self._group:
            self._group = group
            self._queue.append(self.dispatcher.request_of(group, received_at))
        request, size_bytes = self._queue[-1], len(frame)
        request.count += 1
        request.size_bytes += size_bytes
        self._queued_count += 1
        self._queued_bytes += size_bytes
        self._was_refused = False
        return True

    def _end_group(self) -> None:
        self._group = None
        self._short_way.interrupt()

    async def _take(self, frame: memoryview, received_at: float, lease: Lease | None) -> None:
        """Queue one request; awaits only if a Produce waits for the pool or a thread. Kept parts retain `lease`."""
        self._end_group()
        request = self.dispatcher.accept(frame, self.peer, received_at)
        self._note_call(request.call)
        if request.api is produce.API:
            request.pending = pending = await self._take_produce(request, lease)
            request.waiting_bytes = pending.refused_bytes
            request.size_bytes += request.waiting_bytes
            if lease is None:  # one that was received into the pool is never matched, and long to look at
                self._short_way.learn(frame)
        else:
            request.let_go_of(frame)
            request.waiting_bytes = request.size_bytes
        self.arrival.queued_bytes += request.waiting_bytes
        if self.arrival.queued_bytes > FREE_BYTES:
            self.arrival.note(0)  # it has got on
        self._queued_count += 1
        self._queued_bytes += request.size_bytes
        self._queue.append(request)

    async def _take_produce(self, request: Request, lease: Lease | None) -> PendingProduce:
        pending = await self.dispatcher.begin(request, lease)
        if pending.throttle_ms:
            self._mute(pending.throttle_ms)
        if pending.incomplete:
            await self._complete(request.call, pending)
        else:
            self._was_refused = False
        pending.order()
        return pending

    async def _complete(self, call: Call, pending: PendingProduce) -> None:
        self._work.set()
        reason = PauseReason.LOG_FULL if pending.services.log.journal.is_full else PauseReason.POOL
        if pending.unchecked:
            reason = PauseReason.VALIDATION
        with self.pauses.because(reason):
            try:
                completing = pending.complete(self._patience_seconds())
                async with beside(self._end_if_closed):
                    self._was_refused = not await self.dispatcher.counted(call, completing)
            except BaseException:
                pending.abandon()
                raise

    async def _end_if_closed(self) -> None:
        """End the connection soon after its peer has closed it, as long checks of its requests are useless then."""
        await self.transport.wait_closed()
        await trio.sleep(EOF_GRACE_SECONDS)
        self.abort()

    def _patience_seconds(self) -> float:
        return ROOM_AGAIN_MAX_SECONDS if self._was_refused else ROOM_MAX_SECONDS

    async def _receive_large(self) -> bool:
        """Receive the rest of a large Produce into the pool. False at the end of the stream.

        Other frames, and those without room in the pool, are received like small ones: a Produce must be read to be
        refused.
        """
        size_bytes = self._frames.announced_bytes
        is_produce = self._frames.begins_with(PRODUCE_PREFIX)
        self._check_announced(size_bytes, is_produce)
        is_usual = size_bytes <= self._usual_max_bytes
        here_bytes = FREE_BYTES if is_usual else max(FREE_BYTES, size_bytes // UNUSUAL_FRAME_HERE_FRACTION)
        if not is_produce or self._without_lease or self._frames.begun_bytes < here_bytes:
            return True
        self._work.set()
        if self._queued_count >= self.limits.max_in_flight_requests_count or self.pauses.reasons:
            await self._wait_until_resumed()
        lease = await self._acquire(size_bytes, is_usual=is_usual)
        if lease is None:
            self._without_lease = True
            return True
        try:
            if not await self._receive_rest(lease.view):
                return False
            self._note_whole()
            await self._take(lease.view, perf_counter(), lease)
            return True
        finally:
            lease.release()

    @property
    def _usual_max_bytes(self) -> int:
        return max(LARGE_FRAME_BYTES, 2 * self.limits.max_message_bytes)

    def _check_announced(self, size_bytes: int, is_produce: bool | None) -> None:
        """Raise ProtocolError for a frame that must not be received."""
        if is_produce and self._session is not None and not self._session.admits(PRODUCE, trio.current_time()):
            raise ProtocolError("a large Produce of a client that has not authenticated, or has to do it again")
        if not self.has_asked and size_bytes > self._usual_max_bytes:
            raise ProtocolError(f"a first request of {size_bytes} bytes; the limit is {self._usual_max_bytes}")
        if is_produce is False and size_bytes > OTHER_FRAME_MAX_BYTES:
            raise ProtocolError(f"a frame of {size_bytes} bytes that is not a Produce")
        if is_produce and size_bytes > self.pool.size_bytes:
            raise ProtocolError(f"a Produce of {size_bytes} bytes is larger than the chunk pool, --chunk-pool-bytes")

    async def _receive_rest(self, frame: memoryview) -> bool:
        """Receive the frame that has begun into a buffer of the pool."""
        received = self._frames.take_large_frame()
        assert received is not None
        self.arrival.pool_bytes = len(frame)
        try:
            filled = len(received)
            frame[:filled] = received
            while filled < len(frame):
                self.arrival.note(filled)
                receiving = self.transport.receive_into(frame[filled:])
                count = await self._counted(receiving)
                if not count:
                    return False
                filled += count
                self.metrics.bytes_in.value += count
            return True
        finally:
            self.arrival.pool_bytes = 0
            self.arrivals.pool.release(len(frame))

    async def _acquire(self, size_bytes: int, *, is_usual: bool) -> Lease | None:
        """Acquire room in the pool, and in its part for coming frames; None if it is not free in time.

        A frame of unusual size does not wait, as it would block those of usual size.
        """
        if (is_usual or self.arrivals.has_much_room(size_bytes)) and self.arrivals.pool.acquire_nowait(size_bytes):
            lease = self.pool.acquire_nowait(size_bytes)
            if lease is not None:
                return lease
            self.arrivals.pool.release(size_bytes)
        if not is_usual:
            return None
        with self.pauses.because(PauseReason.POOL), self.arrival.excused():
            with trio.move_on_after(self._patience_seconds()):
                await self.arrivals.pool.acquire(size_bytes)
                try:
                    return await self.pool.acquire(size_bytes)
                except BaseException:
                    self.arrivals.pool.release(size_bytes)
                    raise
        self._was_refused = True
        return None

    # ---- pauses -----------------------------------------------------------------------------------------------

    def _update_pauses(self) -> None:
        self.pauses.set(PauseReason.IN_FLIGHT_REQUESTS, self._queued_count >= self.limits.max_in_flight_requests_count)
        self.pauses.set(PauseReason.IN_FLIGHT_BYTES, self._queued_bytes >= self.limits.max_in_flight_bytes)

    def _mute(self, throttle_ms: int) -> float:
        until = trio.current_time() + throttle_ms / 1000
        self.pauses.mute(until)
        self.last_active = max(self.last_active, until)  # it is silent as it was told to be
        return until

    async def _wait_until_resumed(self, *, may_end: bool = False) -> None:
        """Wait until no reason to pause is left. With `may_end`, the wait for a muted client ends when it goes away."""
        self._work.set()
        self._end_group()
        self._update_pauses()
        self.arrivals.drop_favourite(self.arrival)
        with self.arrival.excused():
            if may_end and PauseReason.QUOTA in self.pauses.reasons:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._notice_end, nursery.cancel_scope)
                    await self.pauses.wait_until_none()
                    nursery.cancel_scope.cancel()
            else:
                await self.pauses.wait_until_none()

    async def _notice_end(self, waiting: trio.CancelScope) -> None:
        if await self.transport.wait_end():
            waiting.cancel()

    # ---- writer -----------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        outgoing: list[tuple[Request, EncodedReply]] = []
        try:
            while True:
                while self._queue:
                    await self._answer_first(outgoing)
                if outgoing:
                    await self._send(outgoing)  # meanwhile the reader may have queued more
                    continue
                if self._ended:
                    return
                self._work.clear()
                await self._work.wait()
        finally:
            for _, reply in outgoing:
                reply.release()

    async def _answer_first(self, outgoing: list[tuple[Request, EncodedReply]]) -> None:
        """Answer the first request of the queue, and keep no reference to it: the next request may take long."""
        request = self._queue[0]
        if self.pauses.held_until and request.pending is None:
            if outgoing:
                await self._send(outgoing)
            await self.pauses.hold()
        if outgoing and self.dispatcher.may_wait(request):
            await self._send(outgoing)
        if request.waiting_bytes:  # its frame is decoded before its handler waits, so it counts no more
            self.arrival.queued_bytes -= request.waiting_bytes
            if self.arrival.counted_bytes:
                self.arrival.recount()
        reply = await self.dispatcher.answer(request)
        outgoing.append((request, reply))
        if self._session is not None:
            await self._follow(self._session, outgoing)
        if reply.throttle_ms:
            self.pauses.held_until = self._mute(reply.throttle_ms)
        self._queue.popleft()
        self._queued_count -= request.count
        self._queued_bytes -= request.size_bytes

    async def _follow(self, session: SaslSession, outgoing: list[tuple[Request, EncodedReply]]) -> None:
        """End the connection after a failed login; lift the limits after a successful one. Raises ProtocolError."""
        if session.failure is not None:
            await self._send(outgoing)
            raise ProtocolError(session.failure)
        if session.is_authenticated and self._serving.deadline != math.inf:
            self._serving.deadline = math.inf
            self._frames.max_frame_bytes = self.limits.max_frame_bytes
            self.has_asked = True

    async def _send(self, outgoing: list[tuple[Request, EncodedReply]]) -> None:
        buffers: list[Sendable] = [buffer for _, reply in outgoing for buffer in reply.buffers]
        if buffers:
            size_bytes = size_of(buffers)
            self.sending_since = trio.current_time()
            self.sending_bytes = size_bytes
            sending = self.transport.send(buffers)
            await (sending if self._last_call is None else self._counted(sending))  # a login's time does not count
            self.sending_since = math.inf
            self.metrics.bytes_out.value += size_bytes
        now = perf_counter()
        for request, reply in outgoing:
            self.dispatcher.sent(request, now)
            reply.release()
        outgoing.clear()
        self.last_active = max(self.last_active, trio.current_time())
        if self.pauses.reasons:
            self._update_pauses()
