"""Which partition of an internal topic has a group or a transactional id: by Java's `String.hashCode`, as in Kafka.

The broker that leads the partition is the coordinator. Tools and other brokers compute the same number.
"""

from __future__ import annotations


def coordinator_partition(key: str, partition_count: int) -> int:
    """Return the partition of `__consumer_offsets` or `__transaction_state` that a group or transactional id is in."""
    number = java_hash(key)
    # Kafka's `Utils.abs`: the one number whose negation does not fit is taken for 0.
    return (0 if number == -(1 << 31) else abs(number)) % partition_count


def java_hash(text: str) -> int:
    """Return what `hashCode` of a Java string returns: over its UTF-16 units, as a signed 32-bit number."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    number = 0
    for at in range(0, len(encoded), 2):
        number = (31 * number + (encoded[at] << 8) + encoded[at + 1]) & 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number
