"""Search batches for the first record that is late enough, or for the latest one (ListOffsets), in small steps.

A stored batch may unpack to much more than its size, and a row of the index may hold 150,000 records.
"""

from __future__ import annotations

from typing import Final

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.errors import CorruptBatch, DecodeError, KafkaError
from kafscale.log.read.unpacking import Unpacking, unpack_at_most
from kafscale.metrics import Counter
from kafscale.wire import compression
from kafscale.wire.batch_header import HEADER_BYTES, BatchHeader, batches, compute_crc, parse_header
from kafscale.wire.records import record_heads

STEP_COUNT: Final = 1_000  # records, a microsecond each
AT_ONCE_MAX_BYTES = 64 << 10  # unpacking that takes less than a thread's way there and back


@attrs.frozen
class FoundOffset:
    offset: int
    timestamp_ms: int
    leader_epoch: int


@attrs.frozen
class TimeSearch:
    """Finds the first record from `min_offset` on whose timestamp is not before `timestamp_ms`.

    Without `timestamp_ms`, the first of those with the largest timestamp of their batch.
    """

    min_offset: int
    timestamp_ms: int | None
    unpacking: Unpacking
    unreadable_count: Counter = attrs.field(factory=Counter)  # of batches that were found as a whole

    async def latest_ms(self, data: Buffer) -> int:
        """Return the largest timestamp from `min_offset` on, or -1. Raises CorruptBatch.

        Only a batch that begins before that offset is unpacked; the headers of others tell it.
        """
        latest_ms = -1
        for batch in batches(memoryview(data)):
            header = parse_header(batch)
            if header.base_offset >= self.min_offset:
                latest_ms = max(latest_ms, header.max_timestamp_ms)
            elif header.last_offset >= self.min_offset:
                found = await self._find_in_batch(batch, header)
                latest_ms = max(latest_ms, -1 if found is None else found.timestamp_ms)
        return latest_ms

    async def find(self, data: Buffer) -> FoundOffset | None:
        """Search consecutive batches. Raises CorruptBatch."""
        assert self.timestamp_ms is not None
        for batch in batches(memoryview(data)):
            header = parse_header(batch)
            if header.max_timestamp_ms >= self.timestamp_ms and header.last_offset >= self.min_offset:
                found = await self._find_in_batch(batch, header)
                if found is not None:
                    return found
        return None

    async def _find_in_batch(self, batch: memoryview, header: BatchHeader) -> FoundOffset | None:
        """Search a batch. One with unreadable records, accepted by older versions, is found itself."""
        try:
            if header.codec == compression.NONE or not header.record_count:
                return await self._walk(batch[HEADER_BYTES:], header)
            at_once = unpack_at_most(header, batch, min(AT_ONCE_MAX_BYTES, self.unpacking.max_batch_bytes))
            if at_once is not None:
                return await self._walk(at_once, header)
            async with self.unpacking.unpacked(header, batch, self.unpacking.max_batch_bytes) as records:
                return await self._walk(records, header)
        except (KafkaError, DecodeError, IndexError) as exc:
            if compute_crc(batch) != header.crc:
                raise CorruptBatch(f"the batch at offset {header.base_offset} is damaged: {exc}") from exc
            self.unreadable_count.value += 1
            offset = max(header.base_offset, self.min_offset)
            return FoundOffset(offset, header.max_timestamp_ms, header.leader_epoch)

    async def _walk(self, records: Buffer, header: BatchHeader) -> FoundOffset | None:
        if self.timestamp_ms is None:
            least_ms, enough_ms = 0, header.max_timestamp_ms
        else:
            least_ms = enough_ms = self.timestamp_ms
        found = None
        heads = record_heads(records, header.record_count)
        for number, (timestamp_delta, offset_delta, _, _) in enumerate(heads, start=1):
            if not 0 <= offset_delta <= header.last_offset_delta:
                raise DecodeError(f"a record with the offset delta {offset_delta}")
            timestamp_ms = header.base_timestamp_ms + timestamp_delta
            if header.is_log_append_time:
                timestamp_ms = header.max_timestamp_ms
            if timestamp_ms >= least_ms and header.base_offset + offset_delta >= self.min_offset:
                found = FoundOffset(header.base_offset + offset_delta, timestamp_ms, header.leader_epoch)
                if timestamp_ms >= enough_ms:
                    return found
                least_ms = timestamp_ms + 1
            if not number % STEP_COUNT:
                await trio.lowlevel.checkpoint()
        return found
