"""A broker that alone has lost the store is taken for dead, although it can be heard of.

With `s3-wal` and `segment` it acknowledges nothing, and it can hand over nothing, as it can't commit. All that it has
acknowledged is in the bucket, so others may lead what it leads, as after any fail-over.

    each broker      answers heartbeats with how long the store has not answered it; what others send could be forged
    the controller   declares a broker dead that has lost the store for `timeout_seconds`, if the store answers here
    all others       do that with the controller: one of them is the controller then
    the dead one     is told so by their answers, and ends, as it can't look for itself; it starts anew when the store
                     is back

When all have lost the store and it is back, some notice that sooner than others. So it must have answered here for
NOTICED_SECONDS of the silence that a broker tells of, without a pause: where all have lost it, nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs
import trio

from kafscale.cluster.membership.records import BrokerRecord
from kafscale.concurrency.clocks import elapsed
from kafscale.errors import DeclaredDead
from kafscale.store.wrappers.reach import SILENT_SECONDS, Reach

NOTICED_SECONDS = 3.0  # a probe a second, of two seconds at most
TOLD_SECONDS = 3.0  # for which counts what a broker has told; it does so every few tenths of a second
TICK_SECONDS = 0.25


@attrs.frozen
class _Silence:
    """A broker's report, at `told_at`, that the store does not answer it; it answers here since `answered_since`."""

    incarnation: int
    seconds: float
    told_at: float
    answered_since: float = math.inf


@attrs.define(eq=False, kw_only=True, repr=False)
class StoreLoss:
    """Brokers that have lost the store, as broker `broker_id` knows. `reach` is how it reaches the store itself.

    `disowned_at` returns when another broker said last that this incarnation is over.
    """

    broker_id: int
    timeout_seconds: float
    reach: Reach
    disowned_at: Callable[[], float]
    _silences: dict[int, _Silence] = attrs.field(factory=dict, init=False)

    @property
    def silent_ms(self) -> int:
        """Return for how long the store has not answered this broker; 0 if that is not worth telling."""
        seconds = self.reach.silent_seconds
        return int(1000 * seconds) if seconds >= SILENT_SECONDS else 0

    def is_suspected(self) -> bool:
        """Tell whether a broker has told of a silence lately, so that this one should ask the store often."""
        after = trio.current_time() - TOLD_SECONDS
        return any(silence.told_at >= after for silence in self._silences.values())

    def heard(self, broker_id: int, incarnation: int, silent_ms: int) -> None:
        """Take what another broker has told of the store."""
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
        """Return which of these brokers have lost the store that answers this one, and say so of each."""
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
        """Watch whether this broker was declared dead while it can't ask the store. Raises DeclaredDead."""
        while True:
            await trio.sleep(TICK_SECONDS)
            seconds = self.reach.silent_seconds
            if seconds >= self.timeout_seconds and elapsed() - self.disowned_at() < seconds:
                raise DeclaredDead(
                    f"broker {self.broker_id} was declared dead by the others, which lead what it led, as the store "
                    f"has not answered it for {seconds:.1f} s"
                )
