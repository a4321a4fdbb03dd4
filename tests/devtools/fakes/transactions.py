"""Transactional batches and markers, appended to a partition as a transaction coordinator does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from kafscale.api.produce.batches import Batch, append_batch
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.tail import Slices
from kafscale.log.read.file_ranges import FileSlice
from kafscale.store.file.open_files import FileRange, Sendable
from kafscale.wire.batch_header import TRANSACTIONAL, BatchHeader, batches, parse_header
from kafscale.wire.control_records import EndMarker, encode_marker, parse_marker
from kafscale.wire.records import ProducerStamp, Record, iterate_records
from tests.devtools.fakes.memory_log import MemoryLog, batch_of

NOW_MS = 1 << 45  # so late that producers are not forgotten for their age


def transactional(*values: bytes, producer_id: int = 7, epoch: int = 0, sequence: int = 0) -> memoryview:
    return batch_of(*values, producer=ProducerStamp(producer_id, epoch, sequence), attributes=TRANSACTIONAL)


def enrolled_nowait(partition: Partition, data: memoryview, *, is_enrolled: bool = True, now_ms: int = NOW_MS) -> Batch:
    """Append a batch as Produce does once the coordinator has enrolled the partition."""
    header = parse_header(data)
    batch = Batch(partition, header, data, None, 0, is_checked=True)
    batch.max_timestamp_ms = header.max_timestamp_ms
    batch.min_timestamp_ms = min(record.timestamp_ms for record in iterate_records(data))
    assert append_batch(batch, now_ms, is_enrolled=is_enrolled), "the pool is exhausted"
    return batch


async def send(partition: Partition, *values: bytes, producer_id: int = 7, epoch: int = 0, sequence: int = 0) -> int:
    """Append one batch of a transaction, wait until it is durable, and return its first offset."""
    data = transactional(*values, producer_id=producer_id, epoch=epoch, sequence=sequence)
    batch = enrolled_nowait(partition, data)
    if batch.round is not None:
        await batch.round.wait()
    return batch.base_offset


async def end(partition: Partition, marker: EndMarker, *, is_awaited: bool = True) -> None:
    """Append the marker of a transaction unless the partition has it, and wait until it is durable."""
    if partition.wants_marker(marker):
        placed = partition.place_nowait(memoryview(encode_marker(marker, NOW_MS)))
        assert placed is not None, "the pool is exhausted"
        partition.append(parse_header(placed.data), placed, NOW_MS)
    if is_awaited and partition.high_watermark < partition.next_offset:
        assert partition.latest_round is not None
        await partition.latest_round.wait()


def marker_of(is_commit: bool, *, producer_id: int = 7, epoch: int = 0, coordinator_epoch: int = 1) -> EndMarker:
    return EndMarker(
        producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=coordinator_epoch, is_commit=is_commit
    )


async def commit(partition: Partition, *, is_awaited: bool = True, **marker: int) -> None:
    await end(partition, marker_of(True, **marker), is_awaited=is_awaited)


async def abort(partition: Partition, *, is_awaited: bool = True, **marker: int) -> None:
    await end(partition, marker_of(False, **marker), is_awaited=is_awaited)


def counted_batches(
    data: Iterable[memoryview], aborted: Iterable[tuple[int, int]]
) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Return the data batches that a `read_committed` consumer uses, by the algorithm of Java's client.

    `aborted` are the (first offset, producer id) pairs of the answer.
    """
    pending = deque(sorted(aborted))
    dropped: set[int] = set()
    for batch in data:
        header = parse_header(batch)
        while pending and pending[0][0] <= header.last_offset:
            dropped.add(pending.popleft()[1])
        if header.is_control:
            marker = parse_marker(batch, header)
            if marker is not None and not marker.is_commit:
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            yield batch, header


def consumed_records(slices: Slices | FileSlice, offset: int, *, committed: bool) -> list[Record]:
    aborted = [(aborted.first_offset, aborted.producer_id) for aborted in (slices.aborted if committed else ())]
    data = (batch for buffer in slices.buffers for batch in batches(_view(buffer)))
    return [
        record
        for batch, _ in counted_batches(data, aborted)
        for record in iterate_records(batch)
        if record.offset >= offset
    ]


def _view(buffer: Sendable) -> memoryview:
    return memoryview(buffer.read(0, len(buffer)) if isinstance(buffer, FileRange) else buffer)


async def fetch_all(
    log: MemoryLog, partition: Partition, *, committed: bool = True, max_bytes: int = 1 << 40
) -> list[Record]:
    """Return every record of a partition, or every committed one, by as many reads as `max_bytes` makes necessary."""
    reader, offset, records = log.log.reader, partition.log_start_offset, list[Record]()
    while offset < (end := partition.last_stable_offset if committed else partition.high_watermark):
        slices = reader.read_nowait(partition, offset, max_bytes, committed=committed) or await reader.read(
            partition, offset, max_bytes, committed=committed
        )
        assert slices is not None
        assert offset < slices.end_offset <= end
        records += consumed_records(slices, offset, committed=committed)
        offset = slices.end_offset
        slices.release()
    return records


async def read_committed(log: MemoryLog, partition: Partition, *, max_bytes: int = 1 << 40) -> list[bytes | None]:
    return [record.value for record in await fetch_all(log, partition, max_bytes=max_bytes)]
