"""How bad it gets for the machines of a simulated cluster, and how often; most seeds are fair, some are storms.

In a storm a broker lives for a moment only. Uploads take longer than it, and than others need to take over: several
brokers have segments of the same offsets under way at once, some of which arrive when the next one has looked already.
What is read arrives late, so that much happens between two steps of whoever recovers a partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

STORM_PROBABILITY = 0.2


@attrs.frozen(kw_only=True)
class Weather:
    """`turns_count` is of all machines together. Of what there are several, each life, or seed, has one."""

    turns_count: int = 8
    life_max_seconds: float = 4.0
    down_max_seconds: float = 3.0
    suspensions_count: int = 2  # among the endings of a life, of which there are ten
    suspended_max_seconds: float = 12.0  # longer than a takeover waits
    cut_off_max_seconds: float = 8.0
    sessions_seconds: Sequence[float] = (1.0, 3.0)
    uploads_max_seconds: Sequence[float] = (0.0,)
    reads_max_seconds: Sequence[float] = (0.0,)
    late_max_seconds: Sequence[float] = (0.0, 0.3, 10.0)

    @classmethod
    def of(cls, seed: int) -> Weather:
        """Return that of a seed."""
        return STORM if Random(f"{seed} weather").random() < STORM_PROBABILITY else FAIR


FAIR = Weather()
STORM = Weather(
    turns_count=16,
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
