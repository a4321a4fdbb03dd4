"""Deadlines of a component in one heap, served by one task.

Moving a deadline later, as every heartbeat does, leaves the heap alone: an old entry is pushed again when it comes up.
Moving it earlier costs a push. The queue is synchronous; `run` is its only task.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf

import attrs
import trio

from kafscale.concurrency.signals import Signal

# Entries of timers that were cancelled or moved earlier are dropped when they come up, or all at once when there are
# more of them than live ones, and more than this.
STALE_ENTRIES_MIN_COUNT = 256


@attrs.define(eq=False, repr=False)
class Timer:
    """Calls `fire` when its deadline has passed, which clears it; inf means no deadline."""

    fire: Callable[[], None]
    deadline: float = attrs.field(default=inf, init=False)
    _queued_at: float = attrs.field(default=inf, init=False)  # deadline of the heap entry that counts

    @property
    def is_set(self) -> bool:
        return self.deadline != inf


@attrs.define(eq=False, repr=False)
class TimerQueue:
    """Timers in order of their deadlines, in seconds of `now`."""

    now: Callable[[], float] = trio.current_time
    _heap: list[tuple[float, int, Timer]] = attrs.field(factory=list, init=False)
    _sequence: int = attrs.field(default=0, init=False)
    _stale_count: int = attrs.field(default=0, init=False)
    _moved_earlier: Signal = attrs.field(factory=Signal, init=False)

    def __len__(self) -> int:
        """Count the entries in the heap, also stale ones."""
        return len(self._heap)

    def set_after(self, timer: Timer, seconds: float) -> None:
        timer.deadline = deadline = self.now() + seconds
        if deadline < timer._queued_at:
            self._push(timer)

    def cancel(self, timer: Timer) -> None:
        timer.deadline = inf
        if timer._queued_at != inf:
            timer._queued_at = inf
            self._count_stale()

    @property
    def next_deadline(self) -> float:
        """The latest time for the next `fire_due`; infinite if no timer is set."""
        return self._heap[0][0] if self._heap else inf

    def fire_due(self) -> None:
        """Fire timers whose deadlines have passed. One that is set meanwhile waits for the next call."""
        now = self.now()
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now:
            queued_at, _, timer = heapq.heappop(self._heap)
            if timer._queued_at != queued_at:
                self._stale_count -= 1
                continue
            timer._queued_at = inf
            if timer.deadline > now:
                self._push(timer)
            else:
                due.append(timer)
        for timer in due:
            if timer.deadline <= now:  # unless an earlier timer has moved or cancelled it
                timer.deadline = inf
                timer.fire()

    async def run(self) -> None:
        """Fire timers at their deadlines, until cancelled."""
        while True:
            with trio.move_on_at(self.next_deadline):
                await self._moved_earlier.wait()
            self._moved_earlier.clear()
            self.fire_due()

    def _push(self, timer: Timer) -> None:
        if timer._queued_at != inf:
            self._count_stale()
        if timer.deadline < self.next_deadline:
            self._moved_earlier.set()
        self._sequence += 1
        timer._queued_at = timer.deadline
        heapq.heappush(self._heap, (timer.deadline, self._sequence, timer))

    def _count_stale(self) -> None:
        self._stale_count += 1
        if self._stale_count > STALE_ENTRIES_MIN_COUNT and self._stale_count > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2]._queued_at == entry[0]]
            heapq.heapify(self._heap)
            self._stale_count = 0
