"""Answer a fetch with an empty batch where no record follows below the high watermark.

A missing or quarantined segment at the end of the log leaves a hole whose offsets are not given out again. An empty
answer would make a consumer ask for the same offset for ever; OFFSET_OUT_OF_RANGE would make it read everything again.
Every client moves its position behind a batch without records, as Kafka keeps one in compacted segments.
"""

from __future__ import annotations

from typing import Final

from kafscale.wire.batch_header import MAGIC, NO_PRODUCER_ID, BatchHeader, encode_batch

OFFSETS_MAX_COUNT: Final = 1 << 31  # of one batch; behind a longer hole the next fetch is given another one
_NONE: Final = -1


def empty_batch(base_offset: int, end_offset: int, leader_epoch: int) -> tuple[bytearray, int]:
    """A batch of the offsets before `end_offset` (exclusive), or as many as one can have; and where it ends."""
    count = min(end_offset - base_offset, OFFSETS_MAX_COUNT)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp_ms=_NONE,
        max_timestamp_ms=_NONE,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=_NONE,
        base_sequence=_NONE,
        record_count=0,
    )
    return encode_batch(header, b""), base_offset + count
