"""Reasons not to read from a connection, kept as flags: several may hold at once."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.metrics import Counter


class PauseReason(enum.StrEnum):
    IN_FLIGHT_REQUESTS = "in_flight_requests"
    IN_FLIGHT_BYTES = "in_flight_bytes"
    POOL = "pool"
    BUFFER = "buffer"  # large requests that have come in part, or wait for their turn, hold too much memory
    LOG_FULL = "log_full"  # the write-ahead log waits for space on the disk
    VALIDATION = "validation"  # a batch that takes long is checked
    QUOTA = "quota"  # the client has been told to hold back


@attrs.define(eq=False, repr=False)
class Pauses:
    """The reasons of one connection; `counts` has how often each began, over all connections."""

    counts: Mapping[PauseReason, Counter]
    reasons: set[PauseReason] = attrs.field(factory=set, init=False)
    _muted_until: float = attrs.field(default=0.0, init=False)
    held_until: float = attrs.field(default=0.0, init=False)  # queued requests, by the throttle time of the last reply
    _is_draining: bool = attrs.field(default=False, init=False)
    _holding: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _changed: Signal = attrs.field(factory=Signal, init=False)

    def set(self, reason: PauseReason, holds: bool) -> None:
        if holds is (reason in self.reasons):
            return
        if holds:
            self.reasons.add(reason)
            self.counts[reason].value += 1
        else:
            self.reasons.discard(reason)
        self._changed.set()

    @contextmanager
    def because(self, reason: PauseReason) -> Iterator[None]:
        """Hold a reason for the block, in which the reader waits for something."""
        self.set(reason, True)
        try:
            yield
        finally:
            self.set(reason, False)

    def mute(self, until: float) -> None:
        """Hold QUOTA until then, or until an earlier call's later time."""
        self._muted_until = max(self._muted_until, until)
        self.set(PauseReason.QUOTA, True)

    async def hold(self) -> None:
        """Wait until `held_until` or `end_holds`: requests that a client sent ahead would evade its quota."""
        if not self._is_draining:
            with trio.move_on_at(self.held_until) as self._holding:
                await trio.sleep_forever()
        self.held_until = 0.0

    def end_holds(self) -> None:
        self._is_draining = True
        self._holding.cancel()

    async def wait_until_none(self) -> None:
        while self.reasons:
            self._changed.clear()
            muted = PauseReason.QUOTA in self.reasons
            with trio.move_on_at(self._muted_until if muted else math.inf):
                await self._changed.wait()
            if muted:
                self.set(PauseReason.QUOTA, trio.current_time() < self._muted_until)
