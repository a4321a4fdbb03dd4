"""Transactional batches and markers into a partition, as the coordinator of transactions has them appended."""

from __future__ import annotations

from kafscale.api.produce.batches import Batch, append_batch
from kafscale.log.partition.marking import Marked, append_marker
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.tail import Slices
from kafscale.wire.control_records import EndMarker, parse_marker
from kafscale.wire.records import TRANSACTIONAL, ProducerStamp, batches, iterate_records, parse_header
from tests.devtools.memory_log import MemoryLog, batch_of

NOW_MS = 1 << 45  # so late that producers are not forgotten for their age


def transactional(*values: bytes, producer_id: int = 7, epoch: int = 0, sequence: int = 0) -> memoryview:
    """A batch of a transaction, as a producer sends it."""
    return batch_of(*values, producer=ProducerStamp(producer_id, epoch, sequence), attributes=TRANSACTIONAL)


def enrolled_nowait(partition: Partition, data: memoryview, *, is_enrolled: bool = True, now_ms: int = NOW_MS) -> Batch:
    """Append a batch as Produce does once the coordinator has enrolled its partition."""
    header = parse_header(data)
    batch = Batch(partition, header, data, None, 0, is_checked=True)
    batch.max_timestamp_ms = header.max_timestamp_ms
    assert append_batch(batch, now_ms, is_enrolled=is_enrolled), "the pool is exhausted"
    return batch


async def send(partition: Partition, *values: bytes, producer_id: int = 7, epoch: int = 0, sequence: int = 0) -> int:
    """One batch of a transaction, durable; returns its first offset."""
    data = transactional(*values, producer_id=producer_id, epoch=epoch, sequence=sequence)
    batch = enrolled_nowait(partition, data)
    if batch.round is not None:
        await batch.round.wait()
    return batch.base_offset


async def end(partition: Partition, marker: EndMarker, *, is_awaited: bool = True) -> Marked:
    """Write the marker of a transaction."""
    marked = await append_marker(partition, marker, NOW_MS)
    if marked.round is not None and is_awaited:
        await marked.round.wait()
    return marked


def marker_of(is_commit: bool, *, producer_id: int = 7, epoch: int = 0, coordinator_epoch: int = 1) -> EndMarker:
    """What a coordinator has decided."""
    return EndMarker(
        producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=coordinator_epoch, is_commit=is_commit
    )


async def commit(partition: Partition, *, is_awaited: bool = True, **marker: int) -> Marked:
    """End a transaction well."""
    return await end(partition, marker_of(True, **marker), is_awaited=is_awaited)


async def abort(partition: Partition, *, is_awaited: bool = True, **marker: int) -> Marked:
    """End a transaction, and have its records not count."""
    return await end(partition, marker_of(False, **marker), is_awaited=is_awaited)


def committed_values(slices: Slices, offset: int) -> list[bytes | None]:
    """What a consumer of `read_committed` makes of an answer: the algorithm of Java's."""
    pending = sorted(slices.aborted, key=lambda each: each.first_offset)
    dropped: set[int] = set()
    values: list[bytes | None] = []
    for batch in (batch for buffer in slices.buffers for batch in batches(memoryview(buffer))):
        header = parse_header(batch)
        while pending and pending[0].first_offset <= header.last_offset:
            dropped.add(pending.pop(0).producer_id)
        if header.is_control:
            marker = parse_marker(batch, header)
            if marker is not None and not marker.is_commit:
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            values += [record.value for record in iterate_records(batch) if record.offset >= offset]
    return values


async def read_committed(log: MemoryLog, partition: Partition, *, max_bytes: int = 1 << 40) -> list[bytes | None]:
    """Every committed value of a partition, by as many reads as `max_bytes` makes necessary."""
    offset, values = partition.log_start_offset, list[bytes | None]()
    while offset < partition.last_stable_offset:
        reader = log.log.reader
        slices = reader.read_nowait(partition, offset, max_bytes, committed=True) or await reader.read(
            partition, offset, max_bytes, committed=True
        )
        assert isinstance(slices, Slices)
        assert offset < slices.end_offset <= partition.last_stable_offset
        values += committed_values(slices, offset)
        offset = slices.end_offset
        slices.release()
    return values
