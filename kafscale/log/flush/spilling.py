"""Free the chunks of batches that the local log also has, when memory runs short and flushes are too slow.

So an outage of the bucket costs disk, not memory: produces go on until the log is full, and flush and fetch read
spilled batches from its files. While the store keeps up nothing is spilled, except for tails too small to be worth
their objects (`kafscale.log.flush.flusher`): reading back costs more than waiting for an upload.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.formats.manifest import PartitionId
from kafscale.log.flush.flusher import Flusher
from kafscale.log.partition.chunks import ChunkPool
from kafscale.log.partition.partition import Partition
from kafscale.metrics import Counter, Metrics

PATIENCE_SECONDS = 0.25  # flushes that pressure has begun may take this long to relieve it
# A producer waits, and no flush has succeeded for so long. One that merely waits, since producers are faster than the
# store, waits on: what is spilled must be read back, and flushes would fall behind for good, until the log is full.
STALLED_BEFORE_PRODUCER_SECONDS = 0.5
STALLED_SECONDS = 2.0  # no flush has succeeded for so long: spill before a producer has to wait
SPILL_DOWN_TO_FRACTION = 0.5  # of the pool
SPILLED_AT_ONCE_COUNT = 1_000  # batches; then others may run, as it takes a microsecond for each


@attrs.define(eq=False, kw_only=True, repr=False)
class Spiller:
    """Looks at the pool while it is under pressure, of which the pool tells it."""

    pool: ChunkPool
    flusher: Flusher
    partitions: Mapping[PartitionId, Partition]
    spilled_bytes: Counter = attrs.field(factory=Counter, init=False)
    _pressed: Signal = attrs.field(factory=Signal, init=False)

    def __attrs_post_init__(self) -> None:
        self.pool.on_pressure.append(self.wake)

    def register(self, metrics: Metrics) -> None:
        """Register the metrics."""
        help = "Record batches that were left to the WAL as memory ran short."
        metrics.adopt_counter("kafscale_spilled_bytes_total", help, self.spilled_bytes)

    def wake(self) -> None:
        """Wake the spiller, as the pool runs short; this is `ChunkPool.on_pressure`."""
        self._pressed.set()

    async def run(self) -> None:
        """Spill when memory runs short, until cancelled."""
        while True:
            self._pressed.clear()
            if not self.pool.under_pressure:
                await self._pressed.wait()
            await trio.sleep(PATIENCE_SECONDS)
            if self._is_needed():
                await self._spill()

    def _is_needed(self) -> bool:
        patience_seconds = STALLED_BEFORE_PRODUCER_SECONDS if self.pool.waiting_count else STALLED_SECONDS
        return (self.pool.under_pressure or self.pool.waiting_count > 0) and (
            self.flusher.leaves_to_spilling or self.flusher.stalled_seconds() >= patience_seconds
        )

    async def _spill(self) -> None:
        """Spill the largest tails first and those being flushed last, as an upload keeps its chunks until its end."""
        holders = [partition for partition in self.partitions.values() if partition.held_bytes]
        holders.sort(key=lambda partition: (self.flusher.is_flushing(partition), -partition.held_bytes))
        for partition in holders:
            while self._wants_more():
                spilled_bytes = partition.spill(SPILLED_AT_ONCE_COUNT)
                self.spilled_bytes.value += spilled_bytes
                await trio.lowlevel.checkpoint()
                if not spilled_bytes:
                    break

    def _wants_more(self) -> bool:
        return self.pool.waiting_count > 0 or self.pool.used_bytes > self.pool.size_bytes * SPILL_DOWN_TO_FRACTION
