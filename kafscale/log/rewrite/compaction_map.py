"""The latest offset of each key in a stretch of log, in a fixed number of bytes: what Kafka's SkimpyOffsetMap is.

An open-addressed table of digests, so a key costs 24 bytes however long it is; a dict of digests takes 200. Two keys
are taken for one if their digests of 128 bits agree, which nobody can bring about and which does not happen by chance:
with a billion keys, once in 10^20 rounds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from mmap import mmap

import attrs

from kafscale.buffers import Buffer

SLOT_BYTES = 24
LOAD_FACTOR = 0.75  # Kafka's 0.9 costs it up to ten probes a look-up; here each one is interpreted
EMPTY = -1

_digest_halves = struct.Struct("<QQ").unpack


def capacity_of(size_bytes: int) -> int:
    """Return how many keys a map of this size holds."""
    return int(size_bytes // SLOT_BYTES * LOAD_FACTOR)


@attrs.define(eq=False, repr=False)
class OffsetMap:
    """Holds up to `capacity` keys; nothing is ever removed. Memory is mapped as it is used, and given back at the end.

    An offset is kept plus one, so that the zeros of fresh memory are empty slots.
    """

    capacity: int
    key_count: int = attrs.field(default=0, init=False)
    _slots_count: int = attrs.field(init=False)
    _high_halves: memoryview[int] = attrs.field(init=False)
    _low_halves: memoryview[int] = attrs.field(init=False)
    _ends: memoryview[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        count = self._slots_count = int(self.capacity / LOAD_FACTOR) + 1
        words = memoryview(mmap(-1, SLOT_BYTES * count)).cast("Q")
        self._high_halves, self._low_halves, self._ends = words[:count], words[count : 2 * count], words[2 * count :]

    def put_all(self, keyed_offsets: Iterable[tuple[Buffer, int]]) -> int | None:
        """Remember these offsets, in order; returns the first one that found no room, or None.

        Written out without calls, as `get_all` is: these two are a third of what compaction costs.
        """
        high_halves, low_halves, ends = self._high_halves, self._low_halves, self._ends
        slots_count = self._slots_count
        for key, offset in keyed_offsets:
            high, low = _digest_halves(blake2b(key, digest_size=16).digest())
            slot = high % slots_count
            while ends[slot] and (high_halves[slot] != high or low_halves[slot] != low):
                slot = slot + 1 if slot + 1 < slots_count else 0
            if not ends[slot]:
                if self.key_count == self.capacity:
                    return offset
                self.key_count += 1
                high_halves[slot] = high
                low_halves[slot] = low
            ends[slot] = offset + 1
        return None

    def get_all(self, keys: Iterable[Buffer]) -> Sequence[int]:
        """The latest offset of each of these keys, EMPTY for one that was never put."""
        high_halves, low_halves, ends = self._high_halves, self._low_halves, self._ends
        slots_count = self._slots_count
        found = []
        for key in keys:
            high, low = _digest_halves(blake2b(key, digest_size=16).digest())
            slot = high % slots_count
            while ends[slot] and (high_halves[slot] != high or low_halves[slot] != low):
                slot = slot + 1 if slot + 1 < slots_count else 0
            found.append(ends[slot] - 1)
        return found
