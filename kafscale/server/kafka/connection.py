"""One client connection: a reader task and a writer task, and a queue of requests between them.

    reader   receives, cuts frames, and takes every Produce into the log at once (`kafscale.api.produce`);
             puts requests into the queue in the order of their arrival, Produces that are like earlier ones in groups
    writer   answers them in that order: waits until a Produce is durable, runs any other request at its turn,
             and sends what is ready in one go

A request in progress never mutes the connection. The reader stops only while one of `PauseReason` holds.
A connection that breaks the protocol, or whose peer goes away, ends by itself; nobody else notices.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from time import perf_counter

import attrs
import trio

from kafscale.api.calls import Peer
from kafscale.api.produce import PendingProduce
from kafscale.api.produce_group import ProduceGroup
from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.config import Limits
from kafscale.errors import ProtocolError, StorageFailed
from kafscale.log.partition.chunks import ChunkPool, Lease
from kafscale.metrics import Counter
from kafscale.server.dispatch import NOTHING, Dispatcher, Reply, Request
from kafscale.server.kafka.pauses import PauseReason, Pauses
from kafscale.server.kafka.transport import Transport
from kafscale.store.file.open_files import Sendable
from kafscale.wire.frames import FrameReader, LargeFrame
from kafscale.wire.plain_produce import PlainProduces

logger = logging.getLogger(__name__)

# One read. With 64 KiB, batches of 1 KiB cost 42 us instead of 34, of 16 KiB 105 instead of 82.
RECEIVE_BYTES = 256 << 10
# A Produce above this is received straight into the chunk pool, alone, and misses the group of its read. When that
# befell one in sixteen batches of 16 KiB, they took 138 us each instead of 122.
LARGE_FRAME_BYTES = 64 << 10
OTHER_FRAME_MAX_BYTES = 16 << 20  # decoded, a request takes up to 40 times its size; 500,000 partitions fit
PRODUCE_PREFIX = b"\0\0"  # the API key, at the start of every request
ROOM_MAX_SECONDS = 20.0  # for memory or disk space; Kafka's clients give up a request after 30 s
ROOM_AGAIN_MAX_SECONDS = 0.25  # once that was in vain: those sent together must all be refused in time
OVERFLOW_MAX_BYTES = 32 << 20  # of all connections: large frames that the pool had no room for, until they are refused
OVERFLOW_MAX_SECONDS = 5.0  # for such a frame to arrive: with what it has waited, still less than a client's 30 s
EOF_GRACE_SECONDS = 1.0  # how long requests that were sent before the peer closed may still take


@attrs.define(eq=False, kw_only=True)
class ConnectionMetrics:
    """Shared by all connections."""

    bytes_in: Counter = attrs.field(factory=Counter)
    bytes_out: Counter = attrs.field(factory=Counter)
    pauses: dict[PauseReason, Counter] = attrs.field(factory=lambda: {reason: Counter() for reason in PauseReason})
    ended_by_error_count: Counter = attrs.field(factory=Counter)


@attrs.define(eq=False, kw_only=True)
class Connection:
    """Serves one client until it goes away, errs, or the broker drains."""

    transport: Transport
    peer: Peer
    dispatcher: Dispatcher
    pool: ChunkPool
    overflow: ByteBudget
    limits: Limits
    metrics: ConnectionMetrics
    pauses: Pauses = attrs.field(init=False)
    last_active: float = attrs.field(factory=trio.current_time, init=False)
    sending_since: float = attrs.field(default=math.inf, init=False)  # how long the peer has not taken what is sent
    _frames: FrameReader = attrs.field(init=False)
    _queue: deque[Request] = attrs.field(factory=deque, init=False)
    _queued_count: int = attrs.field(default=0, init=False)
    _queued_bytes: int = attrs.field(default=0, init=False)
    _plain: PlainProduces = attrs.field(factory=PlainProduces, init=False)
    _group: ProduceGroup | None = attrs.field(default=None, init=False)  # of the queue's last, while it may grow
    _work: trio.Event = attrs.field(factory=trio.Event, init=False)
    _reading: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _serving: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    _was_refused: bool = attrs.field(default=False, init=False)  # for want of room, and nothing was taken since

    def __attrs_post_init__(self) -> None:
        self._frames = FrameReader(self.limits.max_frame_bytes, large_frame_bytes=LARGE_FRAME_BYTES)
        self.pauses = Pauses(self.metrics.pauses)

    @property
    def idle(self) -> bool:
        """Whether nothing is being received or answered."""
        return not self._queue and not self._frames.buffered_bytes

    def drain(self) -> None:
        """Read no more; answer what has been read, then end."""
        self._reading.cancel()

    def abort(self) -> None:
        """End at once."""
        self._serving.cancel()

    async def run(self) -> None:
        """Serve the connection, and close it."""
        refused: ProtocolError | None = None
        try:
            with self._serving:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    refused = await self._read_until_end()
                    self._ended = True
                    self._work.set()
                    if not self._reading.cancel_called:  # a drain has the broker's own deadline
                        nursery.cancel_scope.deadline = trio.current_time() + EOF_GRACE_SECONDS
            if refused is not None:
                raise refused
        except* ProtocolError as group:
            self.metrics.ended_by_error_count.value += 1
            logger.warning("closing the connection of %s: %s", self.peer.address, _first(group))
        except* StorageFailed:
            raise  # the disk is lost: the broker must stop
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            logger.debug("%s went away", self.peer.address)
        except* Exception:
            self.metrics.ended_by_error_count.value += 1
            logger.exception("closing the connection of %s after a bug in the broker", self.peer.address)
        finally:
            self._abandon()
            await trio.aclose_forcefully(self.transport)  # type: ignore[arg-type]

    def _abandon(self) -> None:
        for request in self._queue:
            request.release()
        self._queue.clear()

    # ---- reader -----------------------------------------------------------------------------------------------

    async def _read_until_end(self) -> ProtocolError | None:
        """Read until there is no more to read, or something that ends the connection: earlier requests are answered."""
        with self._reading:
            try:
                await self._read()
            except ProtocolError as exc:
                return exc
        return None

    async def _read(self) -> None:
        while data := await self.transport.receive(RECEIVE_BYTES):
            received_at = perf_counter()
            self.last_active = trio.current_time()
            self.metrics.bytes_in.value += len(data)
            self._frames.receive_data(data)
            self._group = None
            while frames := self._frames.next_frames():
                for frame in frames:
                    if self._queued_count >= self.limits.max_in_flight_requests_count or self.pauses.reasons:
                        await self._wait_until_resumed()
                    if not self._take_plain(frame, received_at):
                        await self._take(frame, received_at, None)
            large = self._frames.take_large_frame()
            if large is not None and not await self._receive_large(large):
                break
            self._work.set()
            if self._over_limits() or self.pauses.reasons:
                await self._wait_until_resumed()

    def _take_plain(self, frame: memoryview, received_at: float) -> bool:
        """Add a Produce that is like an earlier one to the group of this read; False if it has to go the long way.

        1 KiB batches, 64 in flight, cost the event loop 35 to 38 us like this, 62 to 92 without, on a busy machine.
        """
        plain = self._plain.match(frame)
        if plain is None or (self._group is None and not self.dispatcher.takes_plain()):
            return False
        appended = self.dispatcher.append_plain(plain)
        if appended is None:
            return False
        round, reply = appended
        group, version = self._group, plain[0].version
        if group is None or group.round is not round or group.version != version:
            group = self._group = ProduceGroup(version, round)
            self._queue.append(self.dispatcher.request_of(group, self.peer, received_at))
        group.replies.append(reply)
        self._queue[-1].size_bytes += len(frame)
        self._queued_count += 1
        self._queued_bytes += len(frame)
        self._was_refused = False
        return True

    async def _take(self, frame: memoryview, received_at: float, lease: Lease | None) -> None:
        """Queue one request; awaits only if a Produce has to wait for the pool, or for a thread."""
        self._group = None
        request = self.dispatcher.accept(frame, self.peer, received_at, lease)
        if request.throttle_ms:
            self._mute(request.throttle_ms)
        if isinstance(request.pending, PendingProduce):
            if lease is None:  # one that was received into the pool is never matched, and long to look at
                self._plain.learn(frame)
            if request.pending.incomplete:
                await self._complete(request.pending)
            else:
                self._was_refused = False
            request.pending.order()
            request.body = NOTHING  # what is kept of it has been copied, or has leases of its own
        self._queued_count += 1
        self._queued_bytes += request.size_bytes
        self._queue.append(request)

    async def _complete(self, pending: PendingProduce) -> None:
        self._work.set()
        reason = PauseReason.LOG_FULL if pending.services.log.is_full else PauseReason.POOL
        if pending.unchecked:
            reason = PauseReason.VALIDATION
        with self.pauses.because(reason):
            try:
                self._was_refused = not await pending.complete(self._patience_seconds())
            except BaseException:
                pending.abandon()
                raise

    def _patience_seconds(self) -> float:
        return ROOM_AGAIN_MAX_SECONDS if self._was_refused else ROOM_MAX_SECONDS

    async def _receive_large(self, large: LargeFrame) -> bool:
        """Receive the rest of a large frame into the pool if it is a Produce. False at the end of the stream."""
        self._work.set()
        if self._queued_count >= self.limits.max_in_flight_requests_count or self.pauses.reasons:
            await self._wait_until_resumed()
        if large.received[:2] != PRODUCE_PREFIX:
            if large.size_bytes > OTHER_FRAME_MAX_BYTES:
                raise ProtocolError(f"a frame of {large.size_bytes} bytes that is no Produce")
            return await self._receive_rest(large, memoryview(bytearray(large.size_bytes)), None)
        lease = self.pool.acquire_nowait(large.size_bytes) or await self._acquire(large.size_bytes)
        if lease is None:
            return await self._receive_overflow(large)
        return await self._receive_rest(large, lease.view, lease)

    async def _receive_rest(self, large: LargeFrame, frame: memoryview, lease: Lease | None) -> bool:
        try:
            filled = len(large.received)
            frame[:filled] = large.received
            while filled < len(frame):
                count = await self.transport.receive_into(frame[filled:])
                if not count:
                    return False
                filled += count
                self.metrics.bytes_in.value += count
            await self._take(frame, perf_counter(), lease)
            lease = None
            return True
        finally:
            if lease is not None:
                lease.release()

    async def _acquire(self, size_bytes: int) -> Lease | None:
        """Room in the pool; None if there is none in time."""
        if size_bytes > self.pool.size_bytes:
            raise ProtocolError(f"a Produce of {size_bytes} bytes is larger than the chunk pool, --chunk-pool-bytes")
        with self.pauses.because(PauseReason.POOL), trio.move_on_after(self._patience_seconds()):
            return await self.pool.acquire(size_bytes)
        self._was_refused = True
        return None

    async def _receive_overflow(self, large: LargeFrame) -> bool:
        """Receive a Produce that the pool has no room for as a small one is: only who has read it can refuse it.

        The memory for that is bounded, and so is the time for which one frame may have it.
        """
        with trio.move_on_after(OVERFLOW_MAX_SECONDS):
            async with self.overflow.held(large.size_bytes):
                return await self._receive_rest(large, memoryview(bytearray(large.size_bytes)), None)
        raise ProtocolError(f"a Produce of {large.size_bytes} bytes came too slowly while there was no memory for it")

    # ---- pauses -----------------------------------------------------------------------------------------------

    def _over_limits(self) -> bool:
        return (
            self._queued_count >= self.limits.max_in_flight_requests_count
            or self._queued_bytes >= self.limits.max_in_flight_bytes
        )

    def _update_pauses(self) -> None:
        """As many requests and bytes are in flight as there are now."""
        self.pauses.set(PauseReason.IN_FLIGHT_REQUESTS, self._queued_count >= self.limits.max_in_flight_requests_count)
        self.pauses.set(PauseReason.IN_FLIGHT_BYTES, self._queued_bytes >= self.limits.max_in_flight_bytes)

    def _mute(self, throttle_ms: int) -> None:
        """Do not read for so long: the client is above its quota, and its reply says so."""
        until = trio.current_time() + throttle_ms / 1000
        self.pauses.mute(until)
        self.last_active = max(self.last_active, until)  # it is silent as it was told to be

    async def _wait_until_resumed(self) -> None:
        """Until there is no more reason not to read. What was read is answered meanwhile."""
        self._work.set()
        self._group = None
        self._update_pauses()
        await self.pauses.wait_until_none()

    # ---- writer -----------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Answer the queue in order until the reader has ended and nothing is left."""
        outgoing: list[tuple[Request, Reply]] = []
        try:
            while True:
                while self._queue:
                    request = self._queue[0]
                    if outgoing and self.dispatcher.may_wait(request):
                        await self._send(outgoing)
                    reply = await self.dispatcher.answer(request)
                    outgoing.append((request, reply))
                    if reply.throttle_ms:
                        self._mute(reply.throttle_ms)
                    request.release()
                    self._queue.popleft()
                    self._queued_count -= request.count
                    self._queued_bytes -= request.size_bytes
                if outgoing:
                    await self._send(outgoing)  # meanwhile the reader may have queued more
                    continue
                if self._ended:
                    return
                self._work = trio.Event()
                await self._work.wait()
        finally:
            for _, reply in outgoing:
                reply.release()

    async def _send(self, outgoing: list[tuple[Request, Reply]]) -> None:
        """Send the replies, in order and in one go, and release what they hold."""
        buffers: list[Sendable] = [buffer for _, reply in outgoing for buffer in reply.buffers]
        if buffers:
            self.sending_since = trio.current_time()
            await self.transport.send(buffers)
            self.sending_since = math.inf
            self.metrics.bytes_out.value += sum(map(len, buffers))
        now = perf_counter()
        for request, reply in outgoing:
            self.dispatcher.sent(request, now)
            reply.release()
        outgoing.clear()
        self.last_active = max(self.last_active, trio.current_time())
        if self.pauses.reasons:
            self._update_pauses()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception inside of a group of groups."""
    exc: BaseException = group
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc
