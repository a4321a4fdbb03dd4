"""Extent of a seed: a short one costs a fraction of a long one, so that many can be run.

Short seeds differ in their clients, in the number of machines, and in the quiet time at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from random import Random

import attrs

from tests.devtools.world.weather import is_succession


class Clients(Enum):
    PLAIN = "plain"
    MEMBERS = "members"  # of groups that share what the plain ones write
    TRANSACTIONAL = "transactional"
    TEMPORARY = "temporary"


@attrs.frozen(kw_only=True)
class Extent:
    """Size of a seed; each seed takes one value of each sequence."""

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
    segment_merges_bytes: Sequence[int] = (0, 32 << 10, 256 << 10)
    segment_delete_delays_ms: Sequence[int] = (0, 100, 60_000)
    askers_count: int = 0  # about the ends of epochs; 0: perhaps there is one
    store_loss_probability: float = 0.3
    reads_often: bool = True  # a reader of each partition; and all is read back before the last restart, too

    def loses_store(self, seed: int) -> bool:
        """Tell whether brokers lose the store when the other troubles of a seed are over."""
        return Random(f"{seed} loses store").random() < self.store_loss_probability

    @classmethod
    def of(cls, seed: int, *, is_short: bool = False) -> Extent:
        if not is_short:
            return LONG
        return SUCCESSION if is_succession(seed) else SHORT


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
    store_loss_probability=0.2,
    reads_often=False,
)
SUCCESSION = attrs.evolve(
    SHORT,
    machine_counts=(3,),
    clients=((Clients.PLAIN,),),
    partition_count=1,
    join_max_seconds=0.2,
    quiet_seconds=(0.0,),
    segment_merges_bytes=(32 << 10,),
    segment_delete_delays_ms=(0,),
    askers_count=5,
    store_loss_probability=0.0,
    reads_often=True,
)
