"""Which partition of an internal topic has a group or a transactional id: by Java's `String.hashCode`, as in Kafka.

The broker that leads the partition is the coordinator. Tools and other brokers compute the same number.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

REMEMBERED_COUNT: Final = 4096  # keys, as each request of a group or a transaction asks; 2 us for 8 characters
REMEMBERED_MAX_LENGTH: Final = 256  # of a key: what clients send may be much longer, and takes memory


def coordinator_partition(key: str, partition_count: int) -> int:
    """Return the partition of `__consumer_offsets` or `__transaction_state` that a group or transactional id is in."""
    if len(key) > REMEMBERED_MAX_LENGTH:
        return _partition_of(key, partition_count)
    return _remembered(key, partition_count)


def _partition_of(key: str, partition_count: int) -> int:
    number = java_hash(key)
    # Kafka's `Utils.abs`: the one number whose negation does not fit is taken for 0.
    return (0 if number == -(1 << 31) else abs(number)) % partition_count


_remembered = lru_cache(REMEMBERED_COUNT)(_partition_of)


def java_hash(text: str) -> int:
    """Return what `hashCode` of a Java string returns: over its UTF-16 units, as a signed 32-bit number."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    number = 0
    for at in range(0, len(encoded), 2):
        number = (31 * number + (encoded[at] << 8) + encoded[at + 1]) & 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number
