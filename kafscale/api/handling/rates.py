"""How much somebody does in a second, as Kafka measures it, and for whom that is remembered.

`Rate` is what was counted in the last 11 windows of a second, over the time since the first of them began, and over
10 s at least. So who was silent may do ten seconds' worth at once. `TokenBucket` holds eleven seconds' worth (KIP-599):
a burst that empties it is not remembered for longer than it takes to fill again.

There is no clock here: times are seconds of one that does not go back.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import attrs

WINDOW_SECONDS: Final = 1.0  # Kafka: quota.window.size.seconds and controller.quota.window.size.seconds
WINDOWS_COUNT: Final = 11  # Kafka: quota.window.num and controller.quota.window.num
BURST_SECONDS: Final = (WINDOWS_COUNT - 1) * WINDOW_SECONDS  # of a rate
REMEMBERED_MAX_COUNT = 10_000  # whoever was silent for longest is forgotten first. Kafka: for an hour, without a limit

Key = TypeVar("Key")
Measure = TypeVar("Measure")


@attrs.define(eq=False, repr=False)
class _Window:
    began_at: float
    last_at: float
    amount: float = 0


@attrs.define(eq=False, repr=False)
class Rate:
    """What was counted in the last windows."""

    _windows: deque[_Window] = attrs.field(factory=deque, init=False)

    def add(self, amount: float, now: float) -> None:
        windows = self._windows
        if not windows or now - windows[-1].began_at >= WINDOW_SECONDS:
            windows.append(_Window(now, now))
        windows[-1].amount += amount
        windows[-1].last_at = now
        while now - windows[0].last_at >= WINDOWS_COUNT * WINDOW_SECONDS or len(windows) > WINDOWS_COUNT + 1:
            windows.popleft()

    def excess_seconds(self, per_second: float, now: float) -> float:
        """Return how long nothing more may come until the rate is down to that; negative if it is below.

        To be called after `add`.
        """
        elapsed = now - self._windows[0].began_at
        missing_windows = max(0, WINDOWS_COUNT - 1 - int(elapsed / WINDOW_SECONDS))
        measured_seconds = elapsed + missing_windows * WINDOW_SECONDS
        return sum(window.amount for window in self._windows) / per_second - measured_seconds


@attrs.define(eq=False, repr=False)
class TokenBucket:
    """One that is full at first. It may be emptied below nothing by what is taken at once."""

    _tokens: float | None = attrs.field(default=None, init=False)
    _filled_at: float = attrs.field(default=0.0, init=False)

    def missing_seconds(self, per_second: float, now: float) -> float:
        """Return how long it takes until nothing is missing; 0 if nothing is."""
        return max(0.0, -self._fill(per_second, now) / per_second)

    def take(self, count: float, per_second: float, now: float) -> None:
        """Take some, whether they are there or not."""
        self._tokens = self._fill(per_second, now) - count

    def _fill(self, per_second: float, now: float) -> float:
        most = WINDOWS_COUNT * WINDOW_SECONDS * per_second
        tokens = most if self._tokens is None else self._tokens + (now - self._filled_at) * per_second
        self._tokens, self._filled_at = min(most, tokens), now
        return self._tokens


@attrs.define(eq=False, repr=False)
class Remembered(Generic[Key, Measure]):
    """A measure for each key, made when it is first asked for. There are at most `REMEMBERED_MAX_COUNT`."""

    make: Callable[[], Measure]
    _measures: OrderedDict[Key, Measure] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._measures)

    def of(self, key: Key) -> Measure:
        """Return what there is for the key, which is now the last to be forgotten."""
        measures = self._measures
        measure = measures.get(key)
        if measure is None:
            measure = measures[key] = self.make()
            if len(measures) > REMEMBERED_MAX_COUNT:
                measures.popitem(last=False)
        else:
            measures.move_to_end(key)
        return measure
