"""Which internal partitions this broker leads, and so coordinates: their keepers read them, and let go of them.

Whoever keeps the state of an internal topic's partitions is a `Keeper`. It is told synchronously when a partition is
led here, and gets what the partition has, batch by batch; until it is told that this was all, it answers
COORDINATOR_LOAD_IN_PROGRESS. It is told to resign, synchronously too, before anybody else may lead the partition.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

import attrs
import trio

from kafscale.cluster.coordinator.left_out import LeftOut
from kafscale.cluster.coordinator.loading import InternalBatch, load
from kafscale.concurrency.signals import Signal
from kafscale.errors import DamagedObject, KafkaError, StoreError
from kafscale.formats.manifest import PartitionId
from kafscale.log.log import Log
from kafscale.log.partition.partition import Partition
from kafscale.metrics import Metrics
from kafscale.wire.error_codes import OFFSET_OUT_OF_RANGE

logger = logging.getLogger(__name__)

LOADS_AT_ONCE_COUNT = 4  # partitions that are read at once; each has a read of 1 MiB in memory
RETRY_SECONDS = 1.0  # after a read that the retrying store has given up on


class Loader(Protocol):
    """What takes the contents of one partition, once. What it can't read it leaves out, and notes."""

    @property
    def left_out(self) -> LeftOut: ...

    def apply(self, batch: InternalBatch) -> None:
        """Take the next batch."""

    def finish(self) -> None:
        """Know that there is no more: requests are answered from now on."""


class Keeper(Protocol):
    """Who keeps the state of one internal topic's partitions."""

    def begin_loading(self, partition: Partition) -> Loader:
        """Know that this broker leads the partition, with its leader epoch; what was known of it before is void."""

    def resign(self, index: int) -> None:
        """Know that this broker leads that partition no more."""


@attrs.define(eq=False, repr=False)
class Leadership:
    """The internal partitions that are led here. `keepers` are by topic."""

    log: Log
    keepers: dict[str, Keeper] = attrs.field(factory=dict)
    _loads: dict[PartitionId, trio.CancelScope] = attrs.field(factory=dict, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(LOADS_AT_ONCE_COUNT), init=False)
    _idle: Signal = attrs.field(factory=Signal, init=False)
    _left_out: Counter[str] = attrs.field(factory=Counter, init=False)  # records, by topic

    def register(self, metrics: Metrics) -> None:
        """Show how much could not be read to whoever scrapes."""
        help = "Records of internal topics that could not be read when their partition came here, and were left out."
        name = "kafscale_internal_records_left_out_total"
        metrics.counts(name, help, "topic", lambda: {topic: self._left_out[topic] for topic in self.keepers})

    @property
    def loading_count(self) -> int:
        """Count the partitions that are being read."""
        return len(self._loads)

    async def wait_loaded(self) -> None:
        """Wait until no partition is being read."""
        while self._loads:
            await self._idle.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the log until cancelled; reports started when the keepers know of all that is led here already."""
        async with trio.open_nursery() as nursery:

            def opened(partition: Partition) -> None:
                self._begin(partition, nursery)

            self.log.on_opened.append(opened)
            self.log.on_withdrawn.append(self._end)
            try:
                for partition in self._led():
                    opened(partition)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self.log.on_opened.remove(opened)
                self.log.on_withdrawn.remove(self._end)

    def _led(self) -> Sequence[Partition]:
        rows = (self.log.by_name.get(topic, ()) for topic in self.keepers)
        return [partition for row in rows for partition in row if partition is not None]

    def _begin(self, partition: Partition, nursery: trio.Nursery) -> None:
        keeper = self.keepers.get(partition.topic)
        if keeper is None:
            return
        self._cancel(partition)
        scope = self._loads[partition.partition_id] = trio.CancelScope()
        loader = keeper.begin_loading(partition)
        nursery.start_soon(self._load, keeper, loader, partition, scope)

    def _end(self, partition: Partition) -> None:
        keeper = self.keepers.get(partition.topic)
        if keeper is not None:
            self._cancel(partition)
            keeper.resign(partition.index)

    def _cancel(self, partition: Partition) -> None:
        scope = self._loads.pop(partition.partition_id, None)
        if scope is not None:
            scope.cancel()
            self._idle.wake()

    async def _load(self, keeper: Keeper, loader: Loader, partition: Partition, scope: trio.CancelScope) -> None:
        with scope:
            while not await self._attempt(loader, partition):
                await trio.sleep(RETRY_SECONDS)
                loader = keeper.begin_loading(partition)
        if self._loads.get(partition.partition_id) is scope:
            del self._loads[partition.partition_id]
            self._idle.wake()

    async def _attempt(self, loader: Loader, partition: Partition) -> bool:
        """Read a partition to its end; False if the store did not give it, so that it is to be read anew."""
        async with self._limiter:
            try:
                async with aclosing(load(self.log.reader, partition)) as found:
                    async for batch in found:
                        loader.apply(batch)
                    loader.finish()
                    self._tell_left_out(partition, loader.left_out)
            except KafkaError as exc:
                if partition.closed:
                    logger.info("%s is not coordinated here any more: %s", partition, exc)
                elif exc.code == OFFSET_OUT_OF_RANGE:  # a topic that is not only compacted, as somebody has set it
                    logger.info("%s is read again from its new beginning on: %s", partition, exc)
                    return False
                else:
                    raise
            except (StoreError, DamagedObject) as exc:
                logger.warning("%s can't be read, so what it coordinates has to wait: %s", partition, exc)
                return False
        return True

    def _tell_left_out(self, partition: Partition, left_out: LeftOut) -> None:
        if left_out.count:
            self._left_out[partition.topic] += left_out.count
            logger.error(
                "%s: %d records can't be read and are left out, as if they were not there; the first is at %s",
                partition,
                left_out.count,
                left_out.first,
            )
