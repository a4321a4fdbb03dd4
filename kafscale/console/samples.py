"""The last hour of numbers, in steps of STEP_SECONDS and bounded memory. May not import the rest of the console.

A `Series` takes a value at any time and keeps the last one of each step. A `Samples` has those of one cluster: lags by
group, and throughputs by topic and of all topics, from the ends of the partitions.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import attrs

from kafscale.client.brokers import At

STEP_SECONDS = 10
STEPS_COUNT = 361  # an hour and both of its ends
HOUR_SECONDS = 3600.0
GROUPS_MAX_COUNT = 200  # the one that was shown longest ago makes room; 2.9 KB each
TOPICS_MAX_COUNT = 500  # the one that got no records for longest makes room
GROWING_MINUTES = 5
STEPS_A_MINUTE = 60 // STEP_SECONDS
GAP_SECONDS = 35.0  # a rate over a longer one says little


@attrs.define(eq=False, repr=False)
class Series:
    """Values of the last hour; steps without one are None."""

    _values: array[float] = attrs.field(factory=lambda: array("d", [math.nan] * STEPS_COUNT), init=False)
    _last_step: int = attrs.field(default=-STEPS_COUNT, init=False)

    def put(self, now_seconds: float, value: float) -> None:
        step = int(now_seconds // STEP_SECONDS)
        for missing in range(max(self._last_step + 1, step - STEPS_COUNT + 1), step):
            self._values[missing % STEPS_COUNT] = math.nan
        self._values[step % STEPS_COUNT] = value
        self._last_step = step

    def last_hour(self, now_seconds: float) -> list[float | None]:
        """Return STEPS_COUNT values, the oldest first and that of the present step last."""
        now_step = int(now_seconds // STEP_SECONDS)
        kept = range(self._last_step - STEPS_COUNT + 1, self._last_step + 1)
        values = (
            self._values[step % STEPS_COUNT] if step in kept else math.nan
            for step in range(now_step - STEPS_COUNT + 1, now_step + 1)
        )
        return [None if math.isnan(value) else value for value in values]

    def latest(self, now_seconds: float, within_steps: int = 3) -> float | None:
        """Return the newest value of the last `within_steps` steps."""
        recent = [value for value in self.last_hour(now_seconds)[-within_steps:] if value is not None]
        return recent[-1] if recent else None


@attrs.define(eq=False, repr=False)
class Samples:
    """Samples of one cluster. Times are monotonic seconds."""

    lags: dict[str, Series] = attrs.field(factory=dict, init=False)
    topics: dict[str, Series] = attrs.field(factory=dict, init=False)  # records a second; missing: none in the hour
    throughput: Series = attrs.field(factory=Series, init=False)
    _shown_at: dict[str, float] = attrs.field(factory=dict, init=False)  # the longest ago first
    _ends: Mapping[At, int] = attrs.field(factory=dict, init=False)
    _ends_at: float = attrs.field(default=-math.inf, init=False)

    def show(self, groups: Sequence[str], now_seconds: float) -> None:
        """Note that a page shows groups: they are sampled for an hour."""
        for group in groups[:GROUPS_MAX_COUNT]:
            self._shown_at.pop(group, None)
            self._shown_at[group] = now_seconds
        while len(self._shown_at) > GROUPS_MAX_COUNT:
            oldest = next(iter(self._shown_at))
            del self._shown_at[oldest]
            self.lags.pop(oldest, None)

    def keep(self, groups: Iterable[str], now_seconds: float) -> None:
        """Sample groups for another hour, though no page shows them: those make room first as before."""
        self._shown_at |= dict.fromkeys(groups, now_seconds)

    def wanted(self, now_seconds: float) -> list[str]:
        """Return the groups that were shown in the last hour, and forget the others."""
        for group in [group for group, shown_at in self._shown_at.items() if now_seconds - shown_at > HOUR_SECONDS]:
            del self._shown_at[group]
            self.lags.pop(group, None)
        return list(self._shown_at)

    def forget(self, group: str) -> None:
        """Forget a deleted group."""
        self._shown_at.pop(group, None)
        self.lags.pop(group, None)

    def put_lag(self, group: str, now_seconds: float, lag: float) -> None:
        """Keep the lag of a shown group."""
        if group in self._shown_at:
            self.lags.setdefault(group, Series()).put(now_seconds, lag)

    def growing(self, now_seconds: float) -> dict[str, float]:
        """Return by how much lags have grown that grew in each of the last GROWING_MINUTES."""
        grown = {}
        for group, series in self.lags.items():
            values = series.last_hour(now_seconds)[-1 - GROWING_MINUTES * STEPS_A_MINUTE :: STEPS_A_MINUTE]
            known = [value for value in values if value is not None]
            if len(known) == len(values) and all(before < after for before, after in pairwise(known)):
                grown[group] = known[-1] - known[0]
        return grown

    def put_ends(self, ends: Mapping[At, int], now_seconds: float) -> None:
        """Keep throughputs between the last ends of the partitions and these. A partition counts from its second end
        on, and one that was made again, with a lower end, from then on.
        """
        seconds = now_seconds - self._ends_at
        if 0 < seconds <= GAP_SECONDS:
            counts: dict[str, int] = {}
            for at, end in ends.items():
                counts[at[0]] = counts.get(at[0], 0) + max(0, end - self._ends.get(at, end))
            self.throughput.put(now_seconds, sum(counts.values()) / seconds)
            self._put_topics({topic: count / seconds for topic, count in counts.items()}, now_seconds)
        self._ends, self._ends_at = ends, now_seconds

    def _put_topics(self, rates: Mapping[str, float], now_seconds: float) -> None:
        for topic, rate in rates.items():
            if rate:
                series = self.topics.pop(topic, None) or Series()
                self.topics[topic] = series  # behind those that got none
                series.put(now_seconds, rate)
            elif topic in self.topics:
                self.topics[topic].put(now_seconds, 0.0)
        for topic in [topic for topic in self.topics if topic not in rates]:
            del self.topics[topic]
        while len(self.topics) > TOPICS_MAX_COUNT:
            del self.topics[next(iter(self.topics))]
