"""Severity and frequency of the troubles of simulated machines; most seeds are fair, some are storms.

In a storm a broker lives for a moment only. Uploads take longer than that, and than a takeover: several brokers have
segments of the same offsets under way at once, some of which arrive after the next one has looked. Reads are slow, so
much happens between two steps of a recovery.

In a short seed less happens, and sooner. Some short seeds are successions: a leader is suspended when it is about to
put a segment, often for longer than a takeover takes, and the next leader when it is about to put its first one; in
half of them, a merged one. So several have late segments of the same offsets, before or after another one has looked. A
broker that puts a merged segment deletes the merged ones quickly, and learns of its successor slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

STORM_PROBABILITY = 0.2
SUCCESSION_PROBABILITY = 0.1  # of a short seed


@attrs.frozen(kw_only=True)
class Weather:
    """`turns_counts` are of all machines together. Each life, or seed, takes one value of a sequence."""

    turns_counts: Sequence[int] = (8,)
    life_max_seconds: float = 4.0
    down_max_seconds: float = 3.0
    suspensions_count: int = 2  # among the endings of a life, of which there are ten
    suspended_max_seconds: float = 12.0  # longer than a takeover waits
    cut_off_max_seconds: float = 8.0
    links_mean_seconds: float = 4.0  # between two troubles of the links between brokers
    links_cut_max_seconds: float = 8.0  # longer than the longest session
    links_late_probability: float = 0.5  # that what is sent over links that are cut is late, and not lost
    links_seconds: Sequence[float] = (0.0, 0.02, 0.1)  # from one broker to another
    sessions_seconds: Sequence[float] = (1.0, 3.0)
    uploads_max_seconds: Sequence[float] = (0.0,)
    reads_max_seconds: Sequence[float] = (0.0,)
    late_max_seconds: Sequence[float] = (0.0, 0.3, 10.0)
    straggler_probabilities: Sequence[float] = (0.0, 0.0, 0.1)  # of a PUT that is lost for its sender and arrives later
    start_max_seconds: float = 0.5  # until a crash during a start
    point_passes_max_count: int = 20  # of a crash point, without a crash
    suspended_at: str = ""  # a point (`tests.devtools.processes.crash_points`), if it is a succession
    is_clock_troubled: bool = True
    is_store_troubled: bool = True  # for a broker, which then puts off merges for seconds

    @classmethod
    def of(cls, seed: int, *, is_short: bool = False) -> Weather:
        if is_short and is_succession(seed):
            return SUCCESSION_OF_MERGES if is_succession(seed, of_merges=True) else SUCCESSION
        if is_storm(seed):
            return SHORT_STORM if is_short else STORM
        return SHORT_FAIR if is_short else FAIR


FAIR = Weather()
STORM = Weather(
    turns_counts=(16,),
    life_max_seconds=1.5,
    down_max_seconds=1.0,
    suspensions_count=6,
    suspended_max_seconds=4.0,
    cut_off_max_seconds=3.0,
    sessions_seconds=(1.0,),
    uploads_max_seconds=(0.0, 1.0, 4.0),
    reads_max_seconds=(0.0, 0.1, 0.5),
    late_max_seconds=(1.0, 4.0),
    links_late_probability=0.0,
    links_seconds=(0.0,),
)
SHORT_FAIR = attrs.evolve(
    FAIR,
    turns_counts=(1, 2, 3),
    life_max_seconds=1.0,
    down_max_seconds=0.5,
    suspended_max_seconds=3.0,
    cut_off_max_seconds=2.0,
    links_mean_seconds=1.0,
    links_cut_max_seconds=2.5,
    sessions_seconds=(1.0, 2.0),
    late_max_seconds=(0.0, 0.3, 3.0),
    point_passes_max_count=5,
)
SHORT_STORM = attrs.evolve(
    STORM,
    turns_counts=(3, 4, 6),
    life_max_seconds=0.7,
    links_mean_seconds=1.0,
    links_cut_max_seconds=2.5,
    point_passes_max_count=5,
)
SUCCESSION = attrs.evolve(
    SHORT_STORM,
    turns_counts=(12,),
    life_max_seconds=6.0,
    suspended_at="kfs-put-before",
    suspended_max_seconds=4.0,
    uploads_max_seconds=(0.0,),
    reads_max_seconds=(0.0, 0.3),
    point_passes_max_count=2,
)
SUCCESSION_OF_MERGES = attrs.evolve(
    SUCCESSION, suspended_at="merge-kfs-put-before", reads_max_seconds=(0.3,), is_store_troubled=False
)


def is_storm(seed: int) -> bool:
    return Random(f"{seed} weather").random() < STORM_PROBABILITY


def is_succession(seed: int, of_merges: bool | None = None) -> bool:
    """Tell whether a short seed is a succession; `of_merges` selects those of merged segments, or the others."""
    drawn = Random(f"{seed} weather").random()
    is_of_merges = drawn >= 1 - SUCCESSION_PROBABILITY / 2
    return drawn >= 1 - SUCCESSION_PROBABILITY and of_merges in (None, is_of_merges)
