"""Load internal partitions when this broker becomes their leader, and resign them before another broker leads.

A partition that the log opens is loaded in a task, in bounded steps; requests get COORDINATOR_LOAD_IN_PROGRESS
meanwhile. A partition that the log withdraws is resigned synchronously. Unreadable records are skipped and counted:
an earlier or later one of the key still counts. Kafka gives up the whole partition of `__consumer_offsets` then, or
all later records of `__transaction_state`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.cluster.coordinator.partitions import LedPartitions, PartitionState
from kafscale.concurrency.signals import Signal
from kafscale.errors import DamagedObject, DecodeError, KafkaError, StoreError
from kafscale.formats.manifest import PartitionId
from kafscale.log.log import Log
from kafscale.log.partition.partition import Partition
from kafscale.log.read.reader import LogReader
from kafscale.metrics import Metrics
from kafscale.wire.batch_header import BatchHeader, batches, parse_header
from kafscale.wire.control_records import EndMarker, parse_marker
from kafscale.wire.error_codes import OFFSET_OUT_OF_RANGE
from kafscale.wire.records import Record, iterate_records

READ_BYTES = 1 << 20  # by one read, which is one GET; Kafka: transactions.state.log.load.buffer.size, 5 MiB
DECOMPRESSED_MAX_BYTES = 64 << 20  # of one batch; what coordinators write is not compressed
RECORDS_PER_TURN = 256


@attrs.frozen(eq=False, repr=False)
class InternalBatch:
    """One batch of an internal partition: records, or the `marker` that ends its producer's transaction.

    A transactional batch counts when a marker of its producer commits it. An unreadable batch has only `damage`.
    """

    header: BatchHeader
    records: Sequence[Record] = ()
    marker: EndMarker | None = None
    damage: KafkaError | None = None


@attrs.define(eq=False, repr=False)
class SkippedRecords:
    """Unreadable records of one load: how many, and the offset and reason of the first."""

    count: int = 0
    first: str = ""

    def note(self, offset: int, reason: Exception, count: int = 1) -> None:
        """Record `count` unreadable records starting at `offset`."""
        if not self.count:
            self.first = f"offset {offset}: {reason}"
        self.count += count


def apply_batch(state: PartitionState, batch: InternalBatch, skipped: SkippedRecords) -> None:
    """Apply the records of a batch, or its marker, to the state of its partition."""
    if batch.damage is not None:
        skipped.note(batch.header.base_offset, batch.damage, batch.header.record_count)
    if batch.marker is not None:
        state.apply_marker(batch.marker)
    for record in batch.records:
        try:
            state.apply(record, batch.header)
        except (DecodeError, ValueError) as exc:
            skipped.note(record.offset, exc)


async def load(reader: LogReader, partition: Partition) -> AsyncGenerator[InternalBatch, None]:
    """Yield all batches of a partition in order, up to its end when the last batch has been taken.

    Between the last batch and the end of the iteration nothing is awaited, so the caller misses nothing. Raises
    KafkaError if the partition is closed meanwhile, DamagedObject, StoreError, StorageFailed.
    """
    offset = partition.log_start_offset
    records_count = 0
    while offset < partition.next_offset:
        if offset >= partition.high_watermark:
            await _wait_durable(partition)
            continue
        slices = await reader.read(partition, offset, READ_BYTES)
        assert slices is not None, "a read that may wait has no answer"
        try:
            end_offset = slices.end_offset
            for batch in _parsed(slices.buffers, offset):
                records_count += len(batch.records) + 1
                if records_count >= RECORDS_PER_TURN:
                    records_count = 0
                    await trio.lowlevel.checkpoint()
                yield batch
        finally:
            slices.release()
        offset = max(offset, end_offset)


async def _wait_durable(partition: Partition) -> None:
    if partition.closed:
        raise KafkaError(partition.closed_error)
    round = partition.latest_round
    assert round is not None
    try:
        await round.wait()
    except trio.TooSlowError:  # the disk has no space: it may take long
        await trio.sleep(1.0)


def _parsed(buffers: Iterable[Buffer], offset: int) -> Iterator[InternalBatch]:
    for buffer in buffers:
        for view in batches(memoryview(buffer)):
            header = parse_header(view)
            if header.last_offset < offset:
                continue
            yield _read(view, header)


def _read(view: memoryview, header: BatchHeader) -> InternalBatch:
    try:
        if header.is_control:
            return InternalBatch(header, marker=parse_marker(view, header))
        return InternalBatch(header, list(iterate_records(view, max_decompressed_bytes=DECOMPRESSED_MAX_BYTES)))
    except KafkaError as exc:
        return InternalBatch(header, damage=exc)


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
        help = "Unreadable records of internal topics that were left out while their partition was loaded."
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
                        logger.error(
                            "%s: skipped %d unreadable records, the first at %s",
                            *(partition, skipped.count, skipped.first),
                        )
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
