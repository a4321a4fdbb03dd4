"""Bounds on the memory and time of requests that were received in part, or wait for their turn.

Both follow the received bytes, not the announced size. Bytes beyond FREE_BYTES of a connection count against
`buffer_bytes`; when these are used up, only one counted connection (the favourite) reads on, so that they don't all
wait for each other. One task checks the deadlines of frames; time in which a connection is not read from, or the
process does not run, does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.concurrency.signals import Signal
from kafscale.metrics import Counter, Metrics

FREE_BYTES = 64 << 10
STEP_BYTES = 256 << 10  # what one read may bring
SLOWEST_BYTES = 8 << 10  # a second, on the slowest of links
PROGRESS_BYTES = 256 << 10
STALL_SECONDS = 1.0
SWEEP_SECONDS = 1.0
STOOD_STILL_SECONDS = 3.0  # between two sweeps


@attrs.define(eq=False, repr=False)
class Arrival:
    """The bytes that one connection holds. `give_up` ends the connection for a reason."""

    arrivals: Arrivals
    give_up: Callable[[str], None]
    frame_bytes: int = attrs.field(default=0, init=False)  # of the frame that is coming, as far as it is here
    queued_bytes: int = attrs.field(default=0, init=False)  # of whole requests whose turn has not come
    pool_bytes: int = attrs.field(default=0, init=False)  # of the chunk pool, for the frame that is coming
    counted_bytes: int = attrs.field(default=0, init=False)
    begun_at: float = attrs.field(default=math.inf, init=False)
    got_on_at: float = attrs.field(default=math.inf, init=False)
    _got_on_bytes: int = attrs.field(default=0, init=False)

    def note(self, frame_bytes: int) -> None:
        """Note the received bytes of the frame that is coming; 0 when it is complete."""
        now = trio.current_time()
        if not frame_bytes:
            self.begun_at = math.inf
            self.got_on_at = now
            self.arrivals.drop_favourite(self)
        elif not self.frame_bytes or frame_bytes - self._got_on_bytes >= PROGRESS_BYTES:
            self.begun_at = min(self.begun_at, now)
            self.got_on_at, self._got_on_bytes = now, frame_bytes
        self.frame_bytes = frame_bytes
        self.recount()

    def recount(self) -> None:
        held_bytes = self.queued_bytes + (0 if self.pool_bytes else self.frame_bytes)
        if held_bytes > FREE_BYTES or self.counted_bytes:
            self.arrivals.count(self, max(0, held_bytes - FREE_BYTES))
        if self.frame_bytes or self.counted_bytes:
            self.arrivals.add(self)
        else:
            self.arrivals.remove(self)

    def end(self) -> None:
        self.queued_bytes = 0
        self.note(0)

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Stop the clock of the deadlines while the block waits for something other than the peer."""
        since = trio.current_time()
        begun_at, got_on_at = self.begun_at, self.got_on_at
        self.begun_at = self.got_on_at = math.inf
        try:
            yield
        finally:
            waited_seconds = trio.current_time() - since
            self.begun_at, self.got_on_at = begun_at + waited_seconds, got_on_at + waited_seconds

    def is_late(self, now: float) -> bool:
        return now > self.begun_at + self.arrivals.timeout_seconds + self.frame_bytes / SLOWEST_BYTES

    def has_stalled(self, now: float) -> bool:
        return now > self.got_on_at + STALL_SECONDS


@attrs.define(eq=False, kw_only=True, repr=False)
class Arrivals:
    """Bounds shared by the arrivals of all connections. `pool_is_short` tells whether tasks wait for the chunk pool."""

    buffer_bytes: int
    pool: ByteBudget
    timeout_seconds: float
    pool_is_short: Callable[[], bool]
    used_bytes: int = attrs.field(default=0, init=False)
    waiting_count: int = attrs.field(default=0, init=False)
    given_up_count: Counter = attrs.field(factory=Counter, init=False)
    _under_way: dict[Arrival, None] = attrs.field(factory=dict, init=False)
    _favourite: Arrival | None = attrs.field(default=None, init=False)  # may go on although all is used
    _changed: Signal = attrs.field(factory=Signal, init=False)
    _begun: Signal = attrs.field(factory=Signal, init=False)

    def register(self, metrics: Metrics) -> None:
        help = "Bytes of --queued-max-request-bytes in use by requests that are arriving."
        metrics.gauge("kafscale_arriving_bytes", help, lambda: self.used_bytes)
        metrics.gauge(
            "kafscale_arriving_waiting",
            "Connections that wait for room in --queued-max-request-bytes.",
            lambda: self.waiting_count,
        )
        help = "Requests given up because their rest did not arrive."
        metrics.adopt_counter("kafscale_requests_given_up_total", help, self.given_up_count)

    async def run(self) -> None:
        """Enforce the deadlines of all arrivals until cancelled."""
        while True:
            if not self._under_way:
                self._begun.clear()
                await self._begun.wait()
            since = trio.current_time()
            await trio.sleep(SWEEP_SECONDS)
            self._sweep(trio.current_time() - since)

    def has_much_room(self, size_bytes: int) -> bool:
        """Tell whether coming frames would take at most half of `pool` with `size_bytes` more."""
        return 2 * (self.pool.used_bytes + size_bytes) <= self.pool.size_bytes

    def add(self, arrival: Arrival) -> None:
        if not self._under_way:
            self._begun.set()
        self._under_way[arrival] = None

    def remove(self, arrival: Arrival) -> None:
        self._under_way.pop(arrival, None)

    def count(self, arrival: Arrival, size_bytes: int) -> None:
        change = size_bytes - arrival.counted_bytes
        self.used_bytes += change
        arrival.counted_bytes = size_bytes
        if change < 0:
            self._wake()

    def drop_favourite(self, arrival: Arrival) -> None:
        if self._favourite is arrival:
            self._favourite = None
            self._wake()

    def must_wait(self, arrival: Arrival) -> bool:
        return arrival.counted_bytes > 0 and self.used_bytes > self.buffer_bytes

    async def wait_for_room(self, arrival: Arrival) -> None:
        """Wait until there is room, the arrival holds nothing, or it is the favourite."""
        self.waiting_count += 1
        try:
            with arrival.excused():
                while not self._may_go_on(arrival):
                    await self._changed.wait()
        finally:
            self.waiting_count -= 1

    def _may_go_on(self, arrival: Arrival) -> bool:
        if not arrival.counted_bytes:
            return True
        fits = self.used_bytes + STEP_BYTES <= self.buffer_bytes
        if self._favourite is None and not fits and arrival.frame_bytes:
            self._favourite = arrival
        if not fits and self._favourite is not arrival:
            return False
        self.count(arrival, arrival.counted_bytes + STEP_BYTES)  # until it is known what it has read
        return True

    def _wake(self) -> None:
        if self.waiting_count:
            self._changed.wake()

    def _sweep(self, since_seconds: float) -> None:
        now = trio.current_time()
        for arrival in list(self._under_way):
            if since_seconds > STOOD_STILL_SECONDS:
                arrival.begun_at += since_seconds
                arrival.got_on_at += since_seconds
            elif arrival.is_late(now):
                self._give_up(arrival, f"a request came too slowly, {arrival.frame_bytes} bytes of it in time")
            elif arrival.has_stalled(now) and (
                (arrival.pool_bytes and (self.pool.waiting_count or self.pool_is_short()))
                or (arrival.counted_bytes and self.waiting_count)
            ):
                self._give_up(arrival, "others wait for the room of a request that does not come on")

    def _give_up(self, arrival: Arrival, reason: str) -> None:
        self.given_up_count.value += 1
        arrival.give_up(reason)
