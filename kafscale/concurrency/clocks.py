"""A clock that counts time in which the machine is suspended, for deadlines that other brokers act upon.

trio uses CLOCK_MONOTONIC, which stops meanwhile on Linux; CLOCK_BOOTTIME does not. Without the latter, or in a virtual
machine whose clocks all stop, this clock is trio's.
"""

from __future__ import annotations

import time

import attrs
import trio

_CLOCK_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
LEAST_SECONDS = 0.5  # a smaller difference is the time between reading the two clocks


def _asleep_seconds() -> float:
    if _CLOCK_BOOTTIME is None:
        return 0.0
    since_boot = time.clock_gettime(_CLOCK_BOOTTIME)  # first: a stop of the process in between makes the result smaller
    return since_boot - time.clock_gettime(time.CLOCK_MONOTONIC)


@attrs.define(eq=False, repr=False)
class _Asleep:
    """Time that the machine was suspended since this process began, in steps: without any, the clock is trio's."""

    before_seconds: float = attrs.field(factory=_asleep_seconds)
    counted_seconds: float = 0.0

    def count(self) -> float:
        found_seconds = _asleep_seconds() - self.before_seconds
        if found_seconds - self.counted_seconds > LEAST_SECONDS:
            self.counted_seconds = found_seconds
        return self.counted_seconds


_asleep = _Asleep()


def elapsed() -> float:
    return trio.current_time() + _asleep.count()
