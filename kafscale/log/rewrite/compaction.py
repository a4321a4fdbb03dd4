"""Compaction: of partitions whose topic has `compact` in `cleanup.policy`, keep the latest record of each key.

Once in a while all such partitions are looked at, and the dirtiest of those that are worth it is compacted, until none
is. One at a time; nothing is done, and nothing read, where no topic is compacted. How far a partition is clean is in
the footers of what compaction wrote, so a restart knows it.

One at which the store failed is left alone for a while, so that it does not keep others waiting; one in which a batch
is damaged until the next start, as in Kafka. What only came damaged does not come so twice in the same way.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

import attrs
import trio

from kafscale.errors import DamagedObject, StoreError
from kafscale.log.partition.partition import Partition
from kafscale.log.read.footers import Footers
from kafscale.log.rewrite.compaction_pass import Unreadable
from kafscale.log.rewrite.compaction_plan import CleanablePart, find_cleanable
from kafscale.log.rewrite.compaction_round import CompactionRound, CompactionStatistics
from kafscale.log.rewrite.rewriting import Rewriter
from kafscale.metrics import Counter, Metrics

logger = logging.getLogger(__name__)

FAILED_PAUSE_SECONDS = 300.0  # the store client has retried already, and no request waits for it
PASSED_BY_COUNT = 1_000  # partitions with nothing to compact, between two of trio's checkpoints
GENERATIONS_LEFT_OUT_COUNT = 2  # above those listed: an upload of the process before may still arrive, and a merge's


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@attrs.define(eq=False, kw_only=True, repr=False)
class Compactor:
    """Looks for something to compact once in a while.

    map_bytes: memory for the offset map. target_bytes: size of the segments that are written, about.
    """

    rewriter: Rewriter
    footers: Footers
    map_bytes: int
    target_bytes: int
    interval_seconds: float
    statistics: CompactionStatistics = attrs.field(factory=CompactionStatistics, init=False)
    rounds_count: Counter = attrs.field(factory=Counter, init=False)
    failed_count: Counter = attrs.field(factory=Counter, init=False)
    unreadable_count: Counter = attrs.field(factory=Counter, init=False)
    now_ms: Callable[[], int] = _now_ms
    max_dirty_ratio: float = attrs.field(default=0.0, init=False)  # of all partitions, when they were last looked at
    _paused_until: WeakKeyDictionary[Partition, float] = attrs.field(factory=WeakKeyDictionary, init=False)
    _damage: WeakKeyDictionary[Partition, str] = attrs.field(factory=WeakKeyDictionary, init=False)  # met the last time
    _reported_to: WeakKeyDictionary[Partition, int] = attrs.field(factory=WeakKeyDictionary, init=False)
    _generations: WeakKeyDictionary[Partition, int] = attrs.field(factory=WeakKeyDictionary, init=False)

    def register(self, metrics: Metrics) -> None:
        """Register the metrics."""
        self.statistics.register(metrics)
        metrics.adopt_counter("kafscale_compactions_total", "Compactions of a partition.", self.rounds_count)
        help = "Compactions that failed; see the log."
        metrics.adopt_counter("kafscale_compaction_failures_total", help, self.failed_count)
        help = "Batches whose records can't be read, which were kept."
        metrics.adopt_counter("kafscale_compaction_unreadable_batches_total", help, self.unreadable_count)
        help = "Of the dirtiest partition, how much of what could be compacted is dirty."
        metrics.gauge("kafscale_compaction_max_dirty_ratio", help, lambda: self.max_dirty_ratio)

    async def run(self, partitions: Callable[[], Iterable[Partition]]) -> None:
        """Compact what is worth it of these partitions, at every interval, until cancelled. Raises Fenced."""
        while True:
            await trio.sleep(self.interval_seconds)
            await self.compact_all(partitions)

    async def compact_all(self, partitions: Callable[[], Iterable[Partition]]) -> None:
        """Compact the dirtiest partition until none is worth it. Raises Fenced."""
        while (part := await self._dirtiest(partitions())) is not None:
            partition = part.partition
            self._paused_until[partition] = trio.current_time() + self.interval_seconds
            try:
                if await self._compact(part):
                    del self._paused_until[partition]
            except (DamagedObject, StoreError) as exc:
                self._failed(partition, exc)

    async def _dirtiest(self, partitions: Iterable[Partition]) -> CleanablePart | None:
        worth_it: list[CleanablePart] = []
        max_dirty_ratio = 0.0
        for count, partition in enumerate(partitions, start=1):
            if not count % PASSED_BY_COUNT:
                await trio.lowlevel.checkpoint()
            if not partition.config.compact or not partition.manifest.segments:
                continue
            if partition.closed or self._is_paused(partition):
                continue
            try:
                part = await find_cleanable(partition, self.footers, self.now_ms())
                await trio.lowlevel.checkpoint()  # it goes through all segments of the partition
            except (DamagedObject, StoreError) as exc:
                self._failed(partition, exc)
                continue
            max_dirty_ratio = max(max_dirty_ratio, part.dirty_ratio)
            if part.is_worth_it:
                worth_it.append(part)
        self.max_dirty_ratio = max_dirty_ratio
        return max(worth_it, key=lambda part: part.dirty_ratio, default=None)

    def _is_paused(self, partition: Partition) -> bool:
        return self._paused_until.get(partition, 0.0) > trio.current_time()

    def _failed(self, partition: Partition, exc: Exception) -> None:
        if partition.closed:
            return  # the topic was deleted meanwhile, and its objects
        self.failed_count.value += 1
        if isinstance(exc, DamagedObject) and self._damage.get(partition) == str(exc):
            self._paused_until[partition] = math.inf
            logger.error("%s is not compacted any more until the next start: %s", partition, exc)
            return
        if isinstance(exc, DamagedObject):
            self._damage[partition] = str(exc)
        self._paused_until[partition] = trio.current_time() + FAILED_PAUSE_SECONDS
        logger.error("compaction of %s failed and is tried again later: %s", partition, exc)

    async def _compact(self, part: CleanablePart) -> bool:
        partition, started = part.partition, trio.current_time()
        size_bytes = partition.manifest.size_bytes
        this_round = CompactionRound(
            part=part,
            rewriter=self.rewriter,
            footers=self.footers,
            map_bytes=self.map_bytes,
            target_bytes=self.target_bytes,
            generation=self._next_generation(partition),
            now_ms=self.now_ms(),
            statistics=self.statistics,
        )
        self._generations[partition] = this_round.generation
        async with self.rewriter.reserve(partition):
            is_done = await this_round.run()
        if this_round.unreadable.count:
            self._report_unreadable(partition, this_round.unreadable)
        if is_done:
            self._damage.pop(partition, None)
            self.rounds_count.value += 1
            logger.info(
                "compacted %s from offset %d on in %.1f s: %d bytes were %d",
                partition,
                part.first_dirty_offset,
                trio.current_time() - started,
                partition.manifest.size_bytes,
                size_bytes,
            )
        return is_done

    def _report_unreadable(self, partition: Partition, unreadable: Unreadable) -> None:
        """Log unreadable segments once; the next compaction starts behind them."""
        if unreadable.first_offset > self._reported_to.get(partition, -1):
            self._reported_to[partition] = unreadable.first_offset
            self.unreadable_count.value += unreadable.count
            logger.warning(
                "%s: the records of %d batches, the first at offset %d, are not to be read, and compaction keeps them "
                "as their clients sent them: %s",
                partition,
                unreadable.count,
                unreadable.first_offset,
                unreadable.reason,
            )

    def _next_generation(self, partition: Partition) -> int:
        """Above every generation that the bucket may hold of a partition."""
        newest = max((segment.generation for segment in partition.manifest.segments), default=0)
        return max(newest + GENERATIONS_LEFT_OUT_COUNT, self._generations.get(partition, 0)) + 1
