"""Load internal partitions when this broker becomes their leader, and resign them before another broker leads.

A partition that the log opens is loaded in a task; requests get COORDINATOR_LOAD_IN_PROGRESS meanwhile. A partition
that the log withdraws is resigned synchronously.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import aclosing
from typing import Any

import attrs
import trio

from kafscale.cluster.coordinator.loading import SkippedRecords, apply_batch, load
from kafscale.cluster.coordinator.partitions import LedPartitions, PartitionState
from kafscale.concurrency.signals import Signal
from kafscale.errors import DamagedObject, KafkaError, StoreError
from kafscale.formats.manifest import PartitionId
from kafscale.log.log import Log
from kafscale.log.partition.partition import Partition
from kafscale.metrics import Metrics
from kafscale.wire.error_codes import OFFSET_OUT_OF_RANGE

logger = logging.getLogger(__name__)

LOADS_AT_ONCE_COUNT = 4  # each load has a read of 1 MiB in memory
RETRY_SECONDS = 1.0  # after a read that the retrying store has given up on


@attrs.define(eq=False, repr=False)
class Leadership:
    """The internal partitions that this broker leads. `topics` has the led partitions by topic."""

    log: Log
    topics: dict[str, LedPartitions[Any]] = attrs.field(factory=dict)
    _loads: dict[PartitionId, trio.CancelScope] = attrs.field(factory=dict, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(LOADS_AT_ONCE_COUNT), init=False)
    _idle: Signal = attrs.field(factory=Signal, init=False)
    _skipped: Counter[str] = attrs.field(factory=Counter, init=False)  # records, by topic

    def register(self, metrics: Metrics) -> None:
        """Export the number of skipped records."""
        help = "Records of internal topics that could not be read when their partition came here, and were left out."
        name = "kafscale_internal_records_left_out_total"
        metrics.counts(name, help, "topic", lambda: {topic: self._skipped[topic] for topic in self.topics})

    @property
    def loading_count(self) -> int:
        """Count the partitions that are being loaded."""
        return len(self._loads)

    async def wait_loaded(self) -> None:
        """Wait until no partition is being loaded."""
        while self._loads:
            await self._idle.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the log until cancelled; reports started when the load of every led partition has begun."""
        async with trio.open_nursery() as nursery:

            def opened(partition: Partition) -> None:
                self._begin(partition, nursery)

            self.log.on_opened.append(opened)
            self.log.on_withdrawn.append(self._end)
            try:
                for topic in self.topics:
                    for partition in filter(None, self.log.by_name.get(topic, ())):
                        opened(partition)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self.log.on_opened.remove(opened)
                self.log.on_withdrawn.remove(self._end)

    def _begin(self, partition: Partition, nursery: trio.Nursery) -> None:
        led = self.topics.get(partition.topic)
        if led is None:
            return
        self._cancel(partition)
        scope = self._loads[partition.partition_id] = trio.CancelScope()
        state = led.begin_loading(partition.index, partition.leader_epoch)
        nursery.start_soon(self._load, led, state, partition, scope)

    def _end(self, partition: Partition) -> None:
        led = self.topics.get(partition.topic)
        if led is not None:
            self._cancel(partition)
            led.resign(partition.index)

    def _cancel(self, partition: Partition) -> None:
        scope = self._loads.pop(partition.partition_id, None)
        if scope is not None:
            scope.cancel()
            self._idle.wake()

    async def _load(
        self, led: LedPartitions[Any], state: PartitionState, partition: Partition, scope: trio.CancelScope
    ) -> None:
        with scope:
            while not await self._attempt(led, state, partition):
                await trio.sleep(RETRY_SECONDS)
                state = led.begin_loading(partition.index, partition.leader_epoch)
        if self._loads.get(partition.partition_id) is scope:
            del self._loads[partition.partition_id]
            self._idle.wake()

    async def _attempt(self, led: LedPartitions[Any], state: PartitionState, partition: Partition) -> bool:
        """Load a partition to its end; False if it has to be loaded anew."""
        skipped = SkippedRecords()
        async with self._limiter:
            try:
                async with aclosing(load(self.log.reader, partition)) as batches:
                    async for batch in batches:
                        apply_batch(state, batch, skipped)
                    led.finish_loading(state)
                    if skipped.count:
                        self._skipped[partition.topic] += skipped.count
                        first = f"{skipped.count} unreadable records, the first at {skipped.first}"
                        logger.error("%s: skipped %s", partition, first)
            except KafkaError as exc:
                if partition.closed:
                    logger.info("%s: the load ends, as another broker leads the partition: %s", partition, exc)
                elif exc.code == OFFSET_OUT_OF_RANGE:  # an administrator has set the topic to delete records
                    logger.info("%s: loading again from the new log start: %s", partition, exc)
                    return False
                else:
                    raise
            except (StoreError, DamagedObject) as exc:
                logger.warning("%s: the load failed and is tried again in %s s: %s", partition, RETRY_SECONDS, exc)
                return False
        return True
