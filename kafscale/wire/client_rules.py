"""Rules of Kafka's clients: the partition of a key, and the lag of a reader."""

from __future__ import annotations

from typing import Final

SEED: Final = 0x9747B28C
MULTIPLIER: Final = 0x5BD1E995
POSITIVE: Final = 0x7FFFFFFF

_MASK: Final = 0xFFFFFFFF


def partition_of(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & POSITIVE) % partition_count


def murmur2(data: bytes) -> int:
    """Return MurmurHash2 (Austin Appleby, 32 bits, unsigned) with Kafka's seed."""
    whole = len(data) & ~3
    h = SEED ^ len(data)
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * MULTIPLIER & _MASK
        h = (h * MULTIPLIER & _MASK) ^ ((k ^ k >> 24) * MULTIPLIER & _MASK)
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & _MASK
    h = (h ^ h >> 13) * MULTIPLIER & _MASK
    return h ^ h >> 15


def lag(position: int, *, log_start_offset: int, end_offset: int) -> int:
    """Count the offsets between a reader's position and the log's end; deleted ones do not count."""
    return max(0, end_offset - max(position, log_start_offset))
