"""The other brokers that were heard of lately, and those that have lost the store. Decides nothing by itself.

A broker is lost when nothing was heard of it for the session timeout, or for REFUSED_INTERVALS if its address refuses
connections: its process is gone, or is being stopped and sends heartbeats until it has left. A broker that was never
heard of has two more intervals. Time in which this process was suspended does not count.

A broker that alone has lost the store is declared dead, although it can be heard of: with `s3-wal` and `segment` all
that it has acknowledged is in the bucket. It answers heartbeats with the time since the store last answered it. The
controller declares it dead after `timeout_seconds` if the store answers here; all others do that with the controller,
and one of them becomes the controller. The dead one hears it from them, ends, and starts anew when the store is back.

When all have lost the store and it is back, some notice that sooner than others. So it must have answered here for
NOTICED_SECONDS of the reported silence, without a pause: if all have lost it, nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import attrs
import trio

from kafscale.cluster.membership.records import BrokerRecord
from kafscale.concurrency.clocks import elapsed
from kafscale.errors import DeclaredDead
from kafscale.store.wrappers.reach import SILENT_SECONDS, Reach

HEARTBEATS_COUNT = 6  # in a session timeout
REFUSED_INTERVALS = 1.5
NEW_INTERVALS = 2.0
PATIENCE_TIMEOUTS = 3.0  # session timeouts
LATE_INTERVALS = 2.0  # between two looks; the rest is time in which this process did not run


@attrs.define(eq=False, repr=False)
class _Heard:
    incarnation: int
    at: float
    is_refusing: bool = False
    failure: str = ""
    is_new: bool = True
    asked_at: float = -math.inf  # when the heartbeat was sent that it has answered last


@attrs.define(eq=False, repr=False)
class Liveness:
    """Records what was heard of the watched brokers. Call `follow` with their incarnations all the time.

    `disowned_at`: when another broker last said that the incarnation of this broker is over.
    """

    session_timeout_seconds: float
    clock: Callable[[], float] = elapsed
    disowned_at: float = attrs.field(default=-math.inf, init=False)
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
        """Watch these brokers from now on; a new one, or one with another incarnation, counts as heard of."""
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
        known = self._find(broker_id, incarnation)
        if known is not None:
            known.at = self.clock()
            known.is_refusing = known.is_new = False
            known.failure = ""

    def answered(self, broker_id: int, incarnation: int, asked_at: float) -> None:
        """Note an answer to a heartbeat that was sent at `asked_at`."""
        self.heard(broker_id, incarnation)
        known = self._find(broker_id, incarnation)
        if known is not None:
            known.asked_at = max(known.asked_at, asked_at)

    def failed(self, broker_id: int, incarnation: int, why: str, *, is_refusing: bool = False) -> None:
        """Note a heartbeat that failed; `is_refusing`: the address refuses connections."""
        known = self._find(broker_id, incarnation)
        if known is not None:
            known.failure = why
            known.is_refusing |= is_refusing

    def lost(self) -> Mapping[int, str]:
        """Return the lost brokers, and why; none after a suspension of this process, before the next `follow`."""
        now = self.clock()
        found = ((broker_id, self._why_lost(known, now)) for broker_id, known in self._heard.items())
        return {broker_id: why for broker_id, why in found if why}

    def _why_lost(self, known: _Heard, now: float) -> str:
        silent_seconds, interval_seconds = now - known.at, self.interval_seconds
        if silent_seconds < interval_seconds or now - self._looked_at > LATE_INTERVALS * interval_seconds:
            return ""  # the usual case
        if silent_seconds >= self.session_timeout_seconds:
            why = f" ({known.failure})" if known.failure else ""
            return f"nothing was heard of it for {silent_seconds:.1f} s{why}"
        refused_seconds = (REFUSED_INTERVALS + NEW_INTERVALS * known.is_new) * interval_seconds
        return "its address refuses connections" if known.is_refusing and silent_seconds >= refused_seconds else ""

    def watches(self, broker_id: int, incarnation: int) -> bool:
        return self._find(broker_id, incarnation) is not None

    def is_heard(self, broker_id: int) -> bool:
        """Tell whether a broker was heard of lately; always true while this broker does not watch."""
        if not self.is_watching:
            return True
        known = self._heard.get(broker_id)
        return known is not None and not known.is_new and not self._is_silent(known, self.clock())

    def is_replaceable(self, broker_id: int) -> bool:
        """Tell whether a controller is lost; one that was never heard of is given longer."""
        known, now = self._heard.get(broker_id), self.clock()
        if known is None or not self._why_lost(known, now):
            return False
        patience_seconds = PATIENCE_TIMEOUTS * self.session_timeout_seconds
        return not known.is_new or known.is_refusing or now - known.at >= patience_seconds

    def hears_half(self) -> bool:
        """Tell whether at least half of the watched brokers answer recent heartbeats; False if none is watched."""
        since = self.clock() - self.session_timeout_seconds / 2
        answering_count = sum(known.asked_at > since for known in self._heard.values())
        return self.is_watching and 2 * answering_count >= max(1, len(self._heard))

    def silent(self) -> Collection[int]:
        now = self.clock()
        return {broker_id for broker_id, known in self._heard.items() if self._is_silent(known, now)}

    def _is_silent(self, known: _Heard, now: float) -> bool:
        return known.at <= now - self.session_timeout_seconds / 2 or bool(self._why_lost(known, now))

    def oldest_seconds(self) -> float:
        """Return the longest time since a watched broker was heard of; 0 if none is watched."""
        return self.clock() - min((known.at for known in self._heard.values()), default=self.clock())

    def _find(self, broker_id: int, incarnation: int) -> _Heard | None:
        known = self._heard.get(broker_id)
        return known if known is not None and known.incarnation == incarnation else None


NOTICED_SECONDS = 3.0  # a probe a second, of two seconds at most
TOLD_SECONDS = 3.0  # for which a report counts; there is one every few tenths of a second
TICK_SECONDS = 0.25


@attrs.frozen
class _Silence:
    """A broker's report that the store does not answer it; it answers this one since `answered_since`."""

    incarnation: int
    seconds: float
    told_at: float
    answered_since: float = math.inf


@attrs.define(eq=False, kw_only=True, repr=False)
class StoreLoss:
    """Brokers that have lost the store, as broker `broker_id` knows; `reach` tells how it reaches the store itself."""

    broker_id: int
    timeout_seconds: float
    reach: Reach
    liveness: Liveness
    _silences: dict[int, _Silence] = attrs.field(factory=dict, init=False)

    @property
    def silent_ms(self) -> int:
        """Return for how long the store has not answered this broker; 0 if that is short."""
        seconds = self.reach.silent_seconds
        return int(1000 * seconds) if seconds >= SILENT_SECONDS else 0

    def is_suspected(self) -> bool:
        """Tell whether a broker has reported a silence lately, so that this one should ask the store often."""
        after = trio.current_time() - TOLD_SECONDS
        return any(silence.told_at >= after for silence in self._silences.values())

    def heard(self, broker_id: int, incarnation: int, silent_ms: int) -> None:
        """Note for how long the store has not answered another broker."""
        if not silent_ms:
            self._silences.pop(broker_id, None)
            return
        now, seconds, answered_since = trio.current_time(), silent_ms / 1000, math.inf
        if not self.silent_ms and self.reach.answered_at > now - seconds:
            known = self._silences.get(broker_id)
            answered_since = self.reach.answered_at
            if known is not None and known.incarnation == incarnation:
                answered_since = min(known.answered_since, answered_since)
        self._silences[broker_id] = _Silence(incarnation, seconds, now, answered_since)

    def lost(self, records: Mapping[int, BrokerRecord]) -> Mapping[int, str]:
        """Return those of these brokers that have lost the store while it answers this one, and why."""
        if self.silent_ms:
            return {}
        now = trio.current_time()
        return {
            broker_id: f"the store has not answered it for {silence.seconds:.1f} s, and answers broker {self.broker_id}"
            for broker_id, silence in self._silences.items()
            if broker_id in records
            and records[broker_id].incarnation == silence.incarnation
            and silence.seconds >= self.timeout_seconds
            and now - silence.told_at <= TOLD_SECONDS
            and now - silence.answered_since >= NOTICED_SECONDS
        }

    async def run(self) -> None:
        """Raise DeclaredDead when others have declared this broker dead and it can't ask the store."""
        while True:
            await trio.sleep(TICK_SECONDS)
            seconds = self.reach.silent_seconds
            if seconds >= self.timeout_seconds and elapsed() - self.liveness.disowned_at < seconds:
                raise DeclaredDead(
                    f"broker {self.broker_id} was declared dead by the others, which lead what it led, as the store "
                    f"has not answered it for {seconds:.1f} s"
                )
