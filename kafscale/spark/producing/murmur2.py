"""The partitions of many keys, as Kafka's default partitioner chooses them: `kafscale.wire.client_rules` by columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafscale.spark.workers.slices import lengths_of, starts_of
from kafscale.wire.client_rules import MULTIPLIER, POSITIVE, SEED, murmur2

WORDS_MAX = 64  # of 4 bytes; a longer key is hashed by itself, since others have nothing to do meanwhile

_M = np.uint32(MULTIPLIER)
Hashes = NDArray[np.uint32]


def partitions_of(keys: pa.Array, partition_count: int) -> NDArray[np.int64]:
    """Return the partition of each binary key; any one for null keys."""
    return (hashes_of(keys) & np.uint32(POSITIVE)).astype(np.int64) % partition_count


def hashes_of(keys: pa.Array) -> Hashes:
    lengths = np.maximum(lengths_of(keys), 0)
    starts = starts_of(keys)
    raw = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    if not len(raw):
        raw = np.zeros(1, np.uint8)
    hashes = np.uint32(SEED) ^ lengths.astype(np.uint32)
    words = lengths // 4
    is_long = words > WORDS_MAX
    _hash_words(hashes, raw, starts, np.where(is_long, 0, words))
    _hash_rest(hashes, raw, starts + 4 * words, lengths % 4)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    for row in np.flatnonzero(is_long):
        hashes[row] = murmur2(keys[int(row)].as_py())
    return hashes


def _hash_words(hashes: Hashes, raw: NDArray[np.uint8], starts: NDArray[np.int64], words: NDArray[np.int64]) -> None:
    rows: Any = slice(None)
    for number in range(int(words.max(initial=0))):
        if number >= int(words.min()):
            rows = np.flatnonzero(words > number)
        found = _words_at(raw, starts[rows] + 4 * number)
        found *= _M
        found ^= found >> np.uint32(24)
        found *= _M
        hashes[rows] = hashes[rows] * _M ^ found


def _words_at(raw: NDArray[np.uint8], positions: NDArray[np.int64]) -> Hashes:
    every = np.ndarray((len(raw) - 3,), "<u4", buffer=raw, strides=(1,))
    return every[positions]


def _hash_rest(hashes: Hashes, raw: NDArray[np.uint8], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    rest = np.zeros(len(hashes), np.uint32)
    for number in range(3):
        read = raw.take(starts + number, mode="clip").astype(np.uint32)
        rest |= np.where(counts > number, read << np.uint32(8 * number), np.uint32(0))
    np.copyto(hashes, (hashes ^ rest) * _M, where=counts > 0)
