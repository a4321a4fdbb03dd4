"""Deadlines by key: each key has at most one; what is done with them costs the logarithm of their number.

A deadline that is set later than before costs nothing until the former one is reached, which is what most commits do to
the expiration of their id. Memory is bounded by the number of keys, however often their deadlines change.
"""

from __future__ import annotations

import heapq

import attrs


@attrs.frozen(order=True)
class _Alarm:
    """A time at which a key is looked at; it is not due then if its deadline was set later since."""

    time_ms: int
    key: str


@attrs.define(eq=False, repr=False)
class Timers:
    """The deadlines of some keys."""

    _deadlines: dict[str, int] = attrs.field(factory=dict, init=False)
    _alarms: dict[str, int] = attrs.field(factory=dict, init=False)  # the time of the one that counts; none is later
    _heap: list[_Alarm] = attrs.field(factory=list, init=False)

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def alarm_count(self) -> int:
        """Return how many are kept, those included that do not count any more."""
        return len(self._heap)

    def set(self, key: str, deadline_ms: int | None) -> None:
        """Give the key this deadline instead of the one it has; None: it has none."""
        if deadline_ms is None:
            self._deadlines.pop(key, None)
            self._alarms.pop(key, None)
            return
        self._deadlines[key] = deadline_ms
        alarm_ms = self._alarms.get(key)
        if alarm_ms is None or deadline_ms < alarm_ms:
            self._push(key, deadline_ms)

    def next_ms(self) -> int | None:
        """Return the earliest deadline."""
        self._settle()
        return self._heap[0].time_ms if self._heap else None

    def take(self, until_ms: int) -> str | None:
        """Take the key with the earliest deadline, if that is not after `until_ms`; it has none from now on."""
        self._settle()
        if not self._heap or self._heap[0].time_ms > until_ms:
            return None
        key = heapq.heappop(self._heap).key
        del self._deadlines[key], self._alarms[key]
        return key

    def _push(self, key: str, time_ms: int) -> None:
        self._alarms[key] = time_ms
        heapq.heappush(self._heap, _Alarm(time_ms, key))
        if len(self._heap) > 2 * len(self._deadlines) + 64:  # most count no more
            self._heap = [_Alarm(each, of) for of, each in self._alarms.items()]
            heapq.heapify(self._heap)

    def _settle(self) -> None:
        """Have the first alarm be one that counts, and be the key's deadline."""
        while self._heap:
            first = self._heap[0]
            if self._alarms.get(first.key) != first.time_ms:
                heapq.heappop(self._heap)
            elif self._deadlines[first.key] != first.time_ms:
                heapq.heappop(self._heap)
                self._push(first.key, self._deadlines[first.key])
            else:
                return
