"""Load an internal partition from its beginning to its end, batch by batch, in bounded steps.

The last record of a key counts, and one without a value deletes it. Unreadable records are skipped and counted. A
damaged record makes Kafka give up the whole partition of `__consumer_offsets`, or all later records of
`__transaction_state`. Here only that record is skipped: an earlier or later one of the key still counts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.cluster.coordinator.partitions import PartitionState
from kafscale.errors import DecodeError, KafkaError
from kafscale.log.partition.partition import Partition
from kafscale.log.read.reader import LogReader
from kafscale.wire.batch_header import BatchHeader, batches, parse_header
from kafscale.wire.control_records import EndMarker, parse_marker
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
