"""How bad it gets for the machines of a simulated cluster, and how often; most seeds are fair, some are storms.

In a storm a broker lives for a moment only. Uploads take longer than it, and than others need to take over: several
brokers have segments of the same offsets under way at once, some of which arrive when the next one has looked already.
What is read arrives late, so that much happens between two steps of whoever recovers a partition.

In a short seed less happens, and sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

STORM_PROBABILITY = 0.2


@attrs.frozen(kw_only=True)
class Weather:
    """`turns_counts` are of all machines together. Of what there are several, each life, or seed, has one."""

    turns_counts: Sequence[int] = (8,)
    life_max_seconds: float = 4.0
    down_max_seconds: float = 3.0
    suspensions_count: int = 2  # among the endings of a life, of which there are ten
    suspended_max_seconds: float = 12.0  # longer than a takeover waits
    cut_off_max_seconds: float = 8.0
    links_mean_seconds: float = 4.0  # between two troubles of the links between brokers
    links_cut_max_seconds: float = 8.0  # longer than the longest session
    sessions_seconds: Sequence[float] = (1.0, 3.0)
    uploads_max_seconds: Sequence[float] = (0.0,)
    reads_max_seconds: Sequence[float] = (0.0,)
    late_max_seconds: Sequence[float] = (0.0, 0.3, 10.0)
    point_passes_max_count: int = 20  # of a crash point, without a crash

    @classmethod
    def of(cls, seed: int, *, is_short: bool = False) -> Weather:
        """Return that of a seed."""
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


def is_storm(seed: int) -> bool:
    """Tell whether a seed is one."""
    return Random(f"{seed} weather").random() < STORM_PROBABILITY
