"""Measure the recent bytes per second written to and read from the partitions that this broker leads.

Each partition sums up its bytes; `LoadMeter` samples and resets them. A moving average that halves in HALF_LIFE_SECONDS
distinguishes a lasting load from a burst. The average of a young partition is corrected for its unmeasured past, and
not reported before MATURE_SECONDS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest

import attrs
import trio

from kafscale.concurrency.turns import in_turns
from kafscale.formats.manifest import PartitionId
from kafscale.log.partition.partition import Partition
from kafscale.metrics import Metrics

SAMPLE_SECONDS = 5.0
HALF_LIFE_SECONDS = 60.0
MATURE_SECONDS = 15.0
TOLD_MOST_COUNT = 200  # partitions; they are about 5 KiB together
TOLD_LEAST_BYTES_PER_SECOND = 1 << 10
FORGOTTEN_BYTES_PER_SECOND = 1.0


@attrs.frozen(kw_only=True)
class BrokerLoad:
    """A broker's reported load: bytes per second of the busiest partitions, and of the others together.

    `is_settled`: it has measured long enough what it has led since its start.
    """

    busiest: Mapping[PartitionId, int]
    others_count: int
    others_bytes_per_second: int
    is_settled: bool

    @property
    def bytes_per_second(self) -> int:
        return sum(self.busiest.values()) + self.others_bytes_per_second

    @property
    def of_others(self) -> float:
        """The average bytes per second of each of the others."""
        return self.others_bytes_per_second / self.others_count if self.others_count else 0.0


@attrs.define(eq=False, repr=False)
class LoadMeter:
    """Measures the partitions led here. `run` it when it leads again what it led before its start."""

    clock: Callable[[], float] = trio.current_time
    partitions: Callable[[], Iterable[Partition]] = tuple
    _settled_at: float = attrs.field(default=math.inf, init=False)
    _sampled_at: float = attrs.field(init=False)
    _averages: dict[PartitionId, float] = attrs.field(factory=dict, init=False)  # of those that are not idle
    _opened_at: dict[PartitionId, float] = attrs.field(factory=dict, init=False)  # of the same
    _count: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._sampled_at = self.clock()

    def register(self, metrics: Metrics) -> None:
        help = (
            "Bytes per second written to and read from the partitions led here, a moving average of the last minutes."
        )
        metrics.gauge("kafscale_load_bytes_per_second", help, lambda: float(self.load().bytes_per_second))

    async def run(self) -> None:
        await self.sample()
        self._settled_at = self.clock() + MATURE_SECONDS if self._count else self.clock()
        while True:
            await self.sample()
            await trio.sleep(SAMPLE_SECONDS)

    async def sample(self) -> None:
        """Sample all partitions; others run in between."""
        now = self.clock()
        seconds = now - self._sampled_at
        self._sampled_at = now
        keep = 0.5 ** (seconds / HALF_LIFE_SECONDS)
        averages: dict[PartitionId, float] = {}
        opened_at: dict[PartitionId, float] = {}
        known, count = self._averages, 0
        async for partition in in_turns(list(self.partitions())):
            count += 1
            recent_bytes, partition.recent_bytes = partition.recent_bytes, 0
            if not recent_bytes and not known:
                continue
            partition_id = partition.partition_id
            average = known.get(partition_id, 0.0) * keep
            if recent_bytes and seconds > 0:
                average += recent_bytes / seconds * (1 - keep)
            if average >= FORGOTTEN_BYTES_PER_SECOND:
                averages[partition_id] = average
                opened_at[partition_id] = now if partition.opened_at is None else partition.opened_at
        self._averages, self._opened_at, self._count = averages, opened_at, count

    def load(self) -> BrokerLoad:
        now = self._sampled_at
        loads: dict[PartitionId, int] = {}
        total = 0
        for partition_id, average in self._averages.items():
            age_seconds = now - self._opened_at[partition_id]
            if age_seconds < MATURE_SECONDS:
                continue
            bytes_per_second = round(average / (1 - 0.5 ** (age_seconds / HALF_LIFE_SECONDS)))
            total += bytes_per_second
            if bytes_per_second >= TOLD_LEAST_BYTES_PER_SECOND:
                loads[partition_id] = bytes_per_second
        busiest = nlargest(TOLD_MOST_COUNT, loads, key=lambda each: (loads[each], each))
        told = {partition_id: loads[partition_id] for partition_id in busiest}
        return BrokerLoad(
            busiest=told,
            others_count=self._count - len(told),
            others_bytes_per_second=total - sum(told.values()),
            is_settled=now >= self._settled_at,
        )
