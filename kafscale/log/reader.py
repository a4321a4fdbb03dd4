"""Reading a partition: the memory tail, else a segment by its footer and one ranged GET.

What is returned are whole record batches, as Kafka does: the first one may begin before the offset that was asked for,
and is returned even if it is larger than `max_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kafscale.errors import DamagedObject, NotFound
from kafscale.log.footers import Footers
from kafscale.log.manifest import MAX_TIMESTAMP_UNKNOWN, Segment
from kafscale.log.partition import Partition
from kafscale.log.segment import Footer
from kafscale.log.tail import Slices, TailBatch, coalesce
from kafscale.log.wal import Wal
from kafscale.store.base import Buffer, ObjectStore
from kafscale.wire.records import batches, iterate_records, parse_header

SEGMENT_GONE_RETRY_COUNT = 3  # a segment that is retired between look-up and GET is looked up again this often


@attrs.frozen
class FoundOffset:
    """The answer to a look-up by time: the first record that is late enough."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@attrs.define(eq=False)
class LogReader:
    """Reads batches of any partition. `wal` is None under `segment` durability, and then no batch is ever spilled."""

    store: ObjectStore
    footers: Footers
    wal: Wal | None

    def read_nowait(self, partition: Partition, offset: int, max_bytes: int) -> Slices | None:
        """Batches from the memory tail, without a copy; None if they are elsewhere. The caller owes `release()`."""
        selected = partition.select_tail(offset, max_bytes)
        if not selected or any(batch.lease is None for batch in selected):
            return None
        return coalesce(selected)

    async def read(self, partition: Partition, offset: int, max_bytes: int) -> Slices:
        """Batches from wherever they are; empty only at the high watermark. The caller owes `release()`.

        Raises NotFound if the segment has gone from the bucket, DamagedObject, StoreError.
        """
        for attempt in range(SEGMENT_GONE_RETRY_COUNT):
            selected = partition.select_tail(offset, max_bytes)
            if selected:
                return await self.read_batches(selected)
            segment = partition.manifest.find(offset)
            if segment is None or segment.base_offset >= partition.high_watermark:
                return Slices()
            try:
                return Slices([await self._read_segment(segment, max(offset, segment.base_offset), max_bytes)])
            except NotFound:
                self.footers.forget(segment)
                if attempt == SEGMENT_GONE_RETRY_COUNT - 1:
                    raise
        raise AssertionError("unreachable")

    async def read_batches(self, selected: Sequence[TailBatch]) -> Slices:
        """Batches of the tail, some of which have given up their chunks; those are read from the WAL."""
        slices = Slices()
        position = 0
        while position < len(selected):
            end = position
            while end < len(selected) and selected[end].lease is not None:
                end += 1
            if end > position:
                part = coalesce(selected[position:end])
                slices.buffers += part.buffers
                slices.leases += part.leases
            elif (batch := selected[position]).lease is None:
                end = position + 1
                try:
                    slices.buffers.append(await self._read_back(batch))
                except BaseException:
                    slices.release()
                    raise
            position = end
        return slices

    async def _read_back(self, batch: TailBatch) -> Buffer:
        assert self.wal is not None
        assert batch.file is not None
        return await self.wal.read(batch.file, batch.position, batch.size_bytes)

    async def _read_segment(self, segment: Segment, offset: int, max_bytes: int) -> memoryview:
        footer = await self.footers.get(segment)
        row = footer.row_of(offset)
        end_row = footer.rows_within(row, max_bytes)
        data = await self._get_rows(segment, footer, row, end_row)
        return _from_offset(data, offset, segment.kfs_key)

    async def _get_rows(self, segment: Segment, footer: Footer, row: int, end_row: int) -> memoryview:
        """One ranged GET of exactly these rows."""
        start, end = footer.row_start(row), footer.row_start(end_row)
        part = await self.store.get_range(segment.kfs_key, start, end - start)
        if len(part.data) != end - start:
            raise DamagedObject(f"{segment.kfs_key}: cut off, {len(part.data)} of {end - start} bytes at {start}")
        return memoryview(part.data)

    # ---- look-up by time --------------------------------------------------------------------------------------

    async def find_timestamp(self, partition: Partition, timestamp_ms: int) -> FoundOffset | None:
        """The first record whose timestamp is not before `timestamp_ms`, in order of offset (ListOffsets)."""
        offset = partition.log_start_offset
        while (segment := partition.manifest.find(offset)) is not None:
            if segment.max_timestamp_ms >= timestamp_ms:
                found = await self._find_in_segment(segment, offset, timestamp_ms)
                if found is not None:
                    return found
            offset = segment.last_offset + 1
        for batch in partition.select_tail(max(offset, partition.flushed_offset), 1 << 62):
            if batch.max_timestamp_ms >= timestamp_ms:
                found = await self._find_in_tail_batch(batch, offset, timestamp_ms)
                if found is not None:
                    return found
        return None

    async def _find_in_segment(self, segment: Segment, min_offset: int, timestamp_ms: int) -> FoundOffset | None:
        footer = await self.footers.get(segment)
        for row, latest_ms in enumerate(footer.index.max_timestamps_ms):
            if latest_ms >= timestamp_ms:
                data = await self._get_rows(segment, footer, row, row + 1)
                found = _find_in_batches(data, min_offset, timestamp_ms)
                if found is not None:
                    return found
        return None

    async def _find_in_tail_batch(self, batch: TailBatch, min_offset: int, timestamp_ms: int) -> FoundOffset | None:
        slices = await self.read_batches([batch])
        try:
            return _find_in_batches(slices.buffers[0], min_offset, timestamp_ms)
        finally:
            slices.release()

    async def find_max_timestamp(self, partition: Partition) -> FoundOffset | None:
        """The first of the records with the largest timestamp (ListOffsets -3, KIP-734); None if there is none."""
        latest_ms = -1
        for segment in list(partition.manifest.segments):
            if segment.last_offset >= partition.log_start_offset:
                latest_ms = max(latest_ms, await self._max_timestamp_ms(segment))
        for batch in partition.select_tail(partition.flushed_offset, 1 << 62):
            latest_ms = max(latest_ms, batch.max_timestamp_ms)
        return None if latest_ms < 0 else await self.find_timestamp(partition, latest_ms)

    async def _max_timestamp_ms(self, segment: Segment) -> int:
        if segment.max_timestamp_ms != MAX_TIMESTAMP_UNKNOWN:
            return segment.max_timestamp_ms
        return (await self.footers.get(segment)).identity.max_timestamp_ms


def _from_offset(data: memoryview, offset: int, name: str) -> memoryview:
    """Leave out the batches that end before `offset`."""
    position = 0
    for batch in batches(data):
        header = parse_header(batch)
        if header.base_offset + header.last_offset_delta >= offset:
            return data[position:]
        position += len(batch)
    raise DamagedObject(f"{name}: offset {offset} is not where the index says")


def _find_in_batches(data: Buffer, min_offset: int, timestamp_ms: int) -> FoundOffset | None:
    for batch in batches(memoryview(data)):
        header = parse_header(batch)
        if header.max_timestamp_ms < timestamp_ms:
            continue
        for record in iterate_records(batch):
            if record.timestamp_ms >= timestamp_ms and record.offset >= min_offset:
                return FoundOffset(record.offset, record.timestamp_ms, header.leader_epoch)
    return None
