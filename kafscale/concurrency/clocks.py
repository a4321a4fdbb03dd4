"""A clock that goes on while the machine is suspended, which trio's does not: for what others may decide meanwhile.

Linux leaves that time out of CLOCK_MONOTONIC, which trio goes by, and has it in CLOCK_BOOTTIME. Where there is no such
clock, or the machine is a virtual one whose clocks all stand still, this one goes with trio's.

May not import anything of KafScale.
"""

from __future__ import annotations

import time

import attrs
import trio

_CLOCK_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
LEAST_SECONDS = 0.5  # what is less is how long it takes to read two clocks, one after the other


def _asleep_seconds() -> float:
    """Return for how long the machine has been suspended since it was started."""
    if _CLOCK_BOOTTIME is None:
        return 0.0
    since_boot = time.clock_gettime(_CLOCK_BOOTTIME)  # first: a process that stands still in between has less
    return since_boot - time.clock_gettime(time.CLOCK_MONOTONIC)


@attrs.define(eq=False, repr=False)
class _Asleep:
    """How long the machine was suspended while this process was there, in steps: without, time is exactly trio's."""

    before_seconds: float = attrs.field(factory=_asleep_seconds)
    counted_seconds: float = 0.0

    def count(self) -> float:
        found_seconds = _asleep_seconds() - self.before_seconds
        if found_seconds - self.counted_seconds > LEAST_SECONDS:
            self.counted_seconds = found_seconds
        return self.counted_seconds


_asleep = _Asleep()


def elapsed() -> float:
    """Return the time, in seconds from any moment on, with that in which the machine was suspended."""
    return trio.current_time() + _asleep.count()
