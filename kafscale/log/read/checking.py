"""Check the CRC-32C of record batches once, when they are first read from the store.

A range is checked before a cache keeps it or the kernel sends it from a file. Damaged ranges are not kept: a fetch gets
the whole batches before the damaged one, or a refusal.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import trio
from crc32c import crc32c

from kafscale.errors import DamagedBatch, KafkaError
from kafscale.log.partition.tail import Slices
from kafscale.wire.batch_header import HEADER_BYTES, LENGTH_END, MAGIC, BatchHeader, batches, parse_header

TURN_BATCHES: Final = 512  # a microsecond each
TURN_BYTES: Final = 8 << 20  # of CRC-32C, which takes 50 us for each MiB

_head = struct.Struct(">8xi4xBI")  # batch length, magic, CRC; what the CRC covers follows


def is_whole(data: memoryview) -> bool:
    """Check batches that fill `data` in one go, for a small segment."""
    position = 0
    while position < len(data) and (reached := whole_until(data, position)) > position:
        position = reached
    return position == len(data)


async def are_whole(data: memoryview) -> bool:
    """Check batches that fill `data`; other tasks run in between."""
    position = 0
    while position < len(data):
        reached = whole_until(data, position)
        if reached == position:
            return False
        position = reached
        if position < len(data):
            await trio.lowlevel.checkpoint()
    return True


def whole_until(data: memoryview, start: int = 0) -> int:
    """Return where the whole batches from `start` on end, checking a bounded number."""
    position, size_bytes = start, len(data)
    turn_end = min(size_bytes, start + TURN_BYTES)
    for _ in range(TURN_BATCHES):
        if position >= turn_end or size_bytes - position < HEADER_BYTES:
            break
        length, magic, crc = _head.unpack_from(data, position)
        end = position + LENGTH_END + length
        if length < HEADER_BYTES - LENGTH_END or end > size_bytes or magic != MAGIC:
            break
        if crc32c(data[position + _head.size : end]) != crc:
            break
        position = end
    return position


def keep_whole(slices: Slices, offset: int, first_offset: int, name: str) -> DamagedBatch | None:
    """Keep the whole batches of a damaged range from the one with `offset` on, up to the next damaged one.

    The range begins at `first_offset`. Returns the damage that the slices end at, if any; raises it if it may hold
    `offset`. The whole batches around a damaged one tell its offsets: its own header may be wrong.
    """
    data = memoryview(slices.buffers[0])
    start: int | None = None
    damaged_from: int | None = None
    position, next_offset = 0, first_offset
    for size_bytes, header in _checked(data):
        if header is None:
            damaged_from = next_offset if damaged_from is None else damaged_from
            if start is not None:
                break
        else:
            if start is None and header.last_offset >= offset:
                if damaged_from is not None and offset < header.base_offset:
                    raise DamagedBatch(name, damaged_from, header.base_offset - 1)
                start = position
            damaged_from = None
            next_offset = header.last_offset + 1
        position += size_bytes
    slices.buffers[0] = data[position if start is None else start : position]
    if damaged_from is None:
        return None
    damage = DamagedBatch(name, damaged_from, max(damaged_from, slices.end_offset - 1))
    if start is None:
        raise damage
    slices.end_offset = next_offset
    return damage


def _checked(data: memoryview) -> Iterator[tuple[int, BatchHeader | None]]:
    """Yield size and header of each batch, None if it is damaged; ends where a length is damaged."""
    try:
        for batch in batches(data):
            header = parse_header(batch) if whole_until(batch) == len(batch) else None
            yield len(batch), header
    except KafkaError:
        yield 0, None
