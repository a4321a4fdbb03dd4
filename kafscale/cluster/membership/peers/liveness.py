"""The other brokers that were heard of lately. Pure but for a clock, which need not be right.

A broker is lost when nothing was heard of it for the session timeout: neither a heartbeat of its own nor an answer to
one of ours. If its address refuses connections its process is gone, and REFUSED_INTERVALS without a heartbeat are
enough; a broker that is being stopped refuses them, too, and sends heartbeats until it has left. A broker that was
never heard of has two more intervals to begin with them.

Time in which this process did not run, because it was suspended, does not count: nothing could be heard then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import attrs

from kafscale.concurrency.clocks import elapsed

HEARTBEATS_COUNT = 6  # in a session timeout
REFUSED_INTERVALS = 1.5
NEW_INTERVALS = 2.0
PATIENCE_TIMEOUTS = 3.0  # session timeouts
LATE_INTERVALS = 2.0  # between two looks; what is more is time in which this process did not run


@attrs.define(eq=False, repr=False)
class _Heard:
    incarnation: int
    at: float
    is_refusing: bool = False
    failure: str = ""  # why no heartbeat reaches it
    is_new: bool = True
    asked_at: float = -math.inf  # when that of our heartbeats was sent that it has answered last


@attrs.define(eq=False, repr=False)
class Liveness:
    """Records what was heard of the watched brokers. Call `follow` with their incarnations all the time."""

    session_timeout_seconds: float
    clock: Callable[[], float] = elapsed
    is_watching: bool = attrs.field(default=False, init=False)
    _heard: dict[int, _Heard] = attrs.field(factory=dict, init=False)
    _looked_at: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._looked_at = self.clock()

    @property
    def interval_seconds(self) -> float:
        """Seconds between two heartbeats, and between two looks."""
        return self.session_timeout_seconds / HEARTBEATS_COUNT

    def follow(self, incarnations: Mapping[int, int]) -> None:
        """Watch these brokers from now on; one that was not watched, or has another incarnation, counts as heard of."""
        now = self.clock()
        lost_seconds = now - self._looked_at - LATE_INTERVALS * self.interval_seconds
        self._looked_at = now
        if lost_seconds > 0:
            for broker in self._heard.values():
                broker.at = min(now, broker.at + lost_seconds)
        heard = self._heard
        self._heard = {
            broker_id: known
            if (known := heard.get(broker_id)) is not None and known.incarnation == incarnation
            else _Heard(incarnation, now)
            for broker_id, incarnation in incarnations.items()
        }

    def heard(self, broker_id: int, incarnation: int) -> None:
        """A heartbeat of this broker has come, or an answer to ours."""
        known = self._find(broker_id, incarnation)
        if known is not None:
            known.at = self.clock()
            known.is_refusing = known.is_new = False
            known.failure = ""

    def answered(self, broker_id: int, incarnation: int, asked_at: float) -> None:
        """Note that a broker has answered a heartbeat that was sent at this time."""
        self.heard(broker_id, incarnation)
        known = self._find(broker_id, incarnation)
        if known is not None:
            known.asked_at = max(known.asked_at, asked_at)

    def failed(self, broker_id: int, incarnation: int, why: str, *, is_refusing: bool = False) -> None:
        """A heartbeat to it failed; `is_refusing` is whether its address refuses connections."""
        known = self._find(broker_id, incarnation)
        if known is not None:
            known.failure = why
            known.is_refusing |= is_refusing

    def lost(self) -> Mapping[int, str]:
        """Return which of the watched brokers are lost, and why; none before it was looked whether this process ran."""
        now = self.clock()
        found = ((broker_id, self._why_lost(known, now)) for broker_id, known in self._heard.items())
        return {broker_id: why for broker_id, why in found if why}

    def _why_lost(self, known: _Heard, now: float) -> str:
        """Return why a broker is lost; nothing if it is not."""
        silent_seconds, interval_seconds = now - known.at, self.interval_seconds
        if silent_seconds < interval_seconds or now - self._looked_at > LATE_INTERVALS * interval_seconds:
            return ""  # mostly, and soon: either of what follows takes longer
        if silent_seconds >= self.session_timeout_seconds:
            why = f" ({known.failure})" if known.failure else ""
            return f"nothing was heard of it for {silent_seconds:.1f} s{why}"
        refused_seconds = (REFUSED_INTERVALS + NEW_INTERVALS * known.is_new) * interval_seconds
        return "its address refuses connections" if known.is_refusing and silent_seconds >= refused_seconds else ""

    def watches(self, broker_id: int, incarnation: int) -> bool:
        """Tell whether what is said of a broker is about this incarnation."""
        return self._find(broker_id, incarnation) is not None

    def is_heard(self, broker_id: int) -> bool:
        """Tell whether this incarnation was heard of lately; always true while this broker does not watch."""
        if not self.is_watching:
            return True
        known = self._heard.get(broker_id)
        return known is not None and not known.is_new and not self._is_silent(known, self.clock())

    def is_replaceable(self, broker_id: int) -> bool:
        """Tell whether a broker is lost that decides for others.

        Who has never heard of it is more likely the one that is cut off, and waits for longer.
        """
        known, now = self._heard.get(broker_id), self.clock()
        if known is None or not self._why_lost(known, now):
            return False
        patience_seconds = PATIENCE_TIMEOUTS * self.session_timeout_seconds
        return not known.is_new or known.is_refusing or now - known.at >= patience_seconds

    def hears_half(self) -> bool:
        """Tell whether at least half of the watched brokers answer; false where none is watched.

        Only answers to recent heartbeats count: others may have waited while this process was suspended.
        """
        since = self.clock() - self.session_timeout_seconds / 2
        answering_count = sum(known.asked_at > since for known in self._heard.values())
        return self.is_watching and 2 * answering_count >= max(1, len(self._heard))

    def silent(self) -> Collection[int]:
        """Return which are lost, or will be soon if nothing is heard of them."""
        now = self.clock()
        return {broker_id for broker_id, known in self._heard.items() if self._is_silent(known, now)}

    def _is_silent(self, known: _Heard, now: float) -> bool:
        return known.at <= now - self.session_timeout_seconds / 2 or bool(self._why_lost(known, now))

    def oldest_seconds(self) -> float:
        """Return how long ago the watched broker was heard of that was longest ago; 0 if none is watched."""
        return self.clock() - min((known.at for known in self._heard.values()), default=self.clock())

    def _find(self, broker_id: int, incarnation: int) -> _Heard | None:
        known = self._heard.get(broker_id)
        return known if known is not None and known.incarnation == incarnation else None
