"""Bound the idempotent producers that all partitions together remember, and their memory (KIP-936).

Kafka remembers every producer that wrote within a day, however many there are, and runs out of memory by them;
KIP-936, which would slow down clients with new ones, was never adopted. Here the number is bounded, in each partition
and in the broker. Without room the longest idle producers are evicted first: their last batch was acknowledged long
ago. New producers are never refused. An evicted producer goes on as a new one; only a batch that it repeats after the
eviction would be stored twice. That can happen only to producers that may still wait for an answer when evicted, so
these are counted and logged.

An id that the cluster has never given out is taken, as in Kafka: its producer may have it from a bucket that was wiped
or restored since. A client that makes ids up takes no more room than one that asks for them.
"""

from __future__ import annotations

import heapq
import logging
import sys
from collections.abc import Callable
from typing import Protocol

import attrs

from kafscale.config.limits import Limits
from kafscale.metrics import Counter, Metrics

PRODUCER_BYTES = 500  # in memory, measured, with its places in two dictionaries and without batches
BATCH_BYTES = 160  # in memory, measured; five of them are remembered
LEFT_ENTRIES_MAX_COUNT = 1000  # in the heap, of partitions that remember nothing any more
ACTIVE_MS = 120_000  # as Java's delivery.timeout.ms: producers repeat a batch for no longer
WARNING_INTERVAL_MS = 60_000

logger = logging.getLogger(__name__)


class Evictable(Protocol):
    """The producers of one partition."""

    def oldest_ms(self) -> int | None:
        """Return when the producer that has been idle for longest was last heard of, or None."""

    def evict_oldest(self, now_ms: int) -> None:
        """Forget the producer that has been idle for longest."""


def is_none(_producer_id: int) -> bool:
    """Say that no id is yet to be given out, where that is not known."""
    return False


@attrs.define(eq=False, kw_only=True, repr=False)
class ProducerBudget:
    """Shared by all partitions, which count in and out what they remember.

    `is_withheld` says whether an id is the next producer's, or will be soon.
    """

    partition_max_count: int = sys.maxsize
    max_count: int = sys.maxsize
    max_bytes: int = sys.maxsize
    is_withheld: Callable[[int], bool] = is_none
    evicted_idle_count: Counter = attrs.field(factory=Counter, init=False)
    evicted_active_count: Counter = attrs.field(factory=Counter, init=False)
    count: int = attrs.field(default=0, init=False)
    used_bytes: int = attrs.field(default=0, init=False)
    _holders: dict[Evictable, int] = attrs.field(
        factory=dict, init=False
    )  # that remember any, and which entry is theirs
    _by_age: list[tuple[int, int, Evictable]] = attrs.field(factory=list, init=False)  # a heap; see `make_room`
    _entered_count: int = attrs.field(default=0, init=False)
    _warned_ms: int | None = attrs.field(default=None, init=False)

    @classmethod
    def of(cls, limits: Limits, is_withheld: Callable[[int], bool]) -> ProducerBudget:
        return cls(
            partition_max_count=limits.max_producer_ids_per_partition_count,
            max_count=limits.max_producer_ids_count,
            max_bytes=limits.max_producer_state_bytes,
            is_withheld=is_withheld,
        )

    @property
    def is_full(self) -> bool:
        return self.count >= self.max_count or self.used_bytes >= self.max_bytes

    def register(self, metrics: Metrics) -> None:
        """Register the metrics."""
        metrics.counts(
            "kafscale_producer_ids_evicted_total",
            "Idempotent producers that were forgotten for want of room, by how long they had been idle.",
            "state",
            lambda: {"idle": self.evicted_idle_count.value, "active": self.evicted_active_count.value},
        )
        help = "Idempotent producers that partitions remember, each once a partition."
        metrics.gauge("kafscale_producer_ids", help, lambda: self.count)
        help = "Memory that they take, by an estimate."
        metrics.gauge("kafscale_producer_state_bytes", help, lambda: self.used_bytes)

    def enter(self, holder: Evictable, oldest_ms: int) -> None:
        """A partition remembers a producer, and had none before."""
        self._entered_count += 1
        self._holders[holder] = self._entered_count
        heapq.heappush(self._by_age, (oldest_ms, self._entered_count, holder))
        if len(self._by_age) > 2 * len(self._holders) + LEFT_ENTRIES_MAX_COUNT:
            self._by_age = [entry for entry in self._by_age if self._holders.get(entry[2]) == entry[1]]
            heapq.heapify(self._by_age)

    def leave(self, holder: Evictable) -> None:
        """Take note that a partition remembers no producer any more."""
        self._holders.pop(holder, None)

    def make_room(self, now_ms: int) -> None:
        """Let those go that have been idle for longest, in whatever partition, until there is room for one more.

        What a partition remembers only gets younger, so an entry of the heap tells too old a time or the right one.
        """
        while self.is_full and self._by_age:
            told_ms, number, holder = self._by_age[0]
            oldest_ms = holder.oldest_ms() if self._holders.get(holder) == number else None
            if oldest_ms is None:
                heapq.heappop(self._by_age)
            elif oldest_ms > told_ms:
                heapq.heapreplace(self._by_age, (oldest_ms, number, holder))
            else:
                holder.evict_oldest(now_ms)

    def evicted(self, last_timestamp_ms: int, now_ms: int) -> None:
        """A producer was forgotten for want of room."""
        if now_ms - last_timestamp_ms >= ACTIVE_MS:
            self.evicted_idle_count.value += 1
            return
        self.evicted_active_count.value += 1
        if self._warned_ms is None or now_ms - self._warned_ms >= WARNING_INTERVAL_MS:
            self._warned_ms = now_ms
            logger.warning(
                "idempotent producers were forgotten %d ms after their last batch, as there are too many of them: what "
                "they repeat is stored twice; raise --max-producer-ids-per-partition or "
                "--max-producer-state-bytes, or let clients keep their producers instead of making new ones",
                now_ms - last_timestamp_ms,
            )
