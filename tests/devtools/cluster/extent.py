"""How much there is of a seed: a short one costs a fraction of a long one, so that many can be run.

What a short seed lacks another one has: which clients take part, how many machines there are, whether all is quiet in
the end for long enough to be balanced.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum

import attrs


class Clients(Enum):
    """What belongs together and takes part, or does not."""

    PLAIN = "plain"
    MEMBERS = "members"  # of groups that share what the plain ones write
    TRANSACTIONAL = "transactional"
    TEMPORARY = "temporary"


@attrs.frozen(kw_only=True)
class Extent:
    """Of what there are several, each seed has one."""

    machine_counts: Sequence[int] = (2, 3, 3, 4)
    clients: Sequence[Collection[Clients]] = (
        tuple(Clients),
        (Clients.PLAIN, Clients.MEMBERS, Clients.TRANSACTIONAL),
    )
    partition_count: int = 4  # of each topic
    internal_partition_count: int = 2
    member_sessions_seconds: Sequence[float] = (2.0, 10.0)
    topic_life_max_seconds: Sequence[float] = (2.0, 6.0)
    join_max_seconds: float = 5.0
    calm_max_seconds: float = 2.0  # of load, before the trouble and behind it
    quiet_seconds: Sequence[float] = (60.0,)  # until partitions are balanced, and what is not needed is gone
    reads_often: bool = True  # a reader of each partition; and all is read back before the last restart, too


LONG = Extent()
SHORT = Extent(
    machine_counts=(2, 2, 2, 2, 3, 3, 3, 4),
    clients=(
        *[(Clients.PLAIN,)] * 3,
        *[(Clients.TRANSACTIONAL,)] * 4,
        (Clients.PLAIN, Clients.TRANSACTIONAL),
        (Clients.PLAIN, Clients.MEMBERS),
        (Clients.TEMPORARY,),
    ),
    partition_count=2,
    internal_partition_count=1,
    member_sessions_seconds=(2.0,),
    topic_life_max_seconds=(0.5, 1.5),
    join_max_seconds=1.0,
    calm_max_seconds=0.5,
    quiet_seconds=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 30.0),
    reads_often=False,
)
