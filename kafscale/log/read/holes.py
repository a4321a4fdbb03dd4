"""Answer a fetch with an empty batch where no record follows below the high watermark.

A segment at the end of the log that has gone, or is quarantined, leaves such a hole: its offsets may have been
acknowledged, so they are not given out again, and the log goes on behind them. In the middle of the log a consumer
gets the next record. At the end an empty answer would make it ask for the same offset for ever, below an end that it
never reaches. Kafka avoids that by keeping the last batch of each compacted segment, empty if need be. So the answer is
such a batch: every client moves its position behind a batch without records.

OFFSET_OUT_OF_RANGE would not help: with `auto.offset.reset=earliest` the consumer would read everything again, up to
the same gap.
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
