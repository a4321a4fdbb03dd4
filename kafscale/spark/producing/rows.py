"""The columns of a sink as records need them: bytes, by topic, and the partitions of keys.

Keys go to partitions as by Kafka's default partitioner (`kafscale.wire.client_rules`), hashed by columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafscale.errors import ConfigError
from kafscale.spark.workers.slices import lengths_of, starts_of
from kafscale.wire.client_rules import MULTIPLIER, POSITIVE, SEED, murmur2

LENGTH_MAX_BYTES = 5  # of a varint
HEADERS = pa.list_(pa.struct([pa.field("key", pa.binary()), pa.field("value", pa.binary())]))


@attrs.frozen(kw_only=True, eq=False)
class Rows:
    """Rows of one topic. `headers` is None where no row has any, and `partitions` where each is null."""

    keys: pa.Array
    values: pa.Array
    headers: pa.Array | None
    partitions: pa.Array | None

    @classmethod
    def of(cls, rows: pa.Table | pa.RecordBatch) -> Rows:
        return cls(
            keys=_bytes(_column(rows, "key"), rows.num_rows),
            values=_bytes(_column(rows, "value"), rows.num_rows),
            headers=_headers(_column(rows, "headers")),
            partitions=_column(rows, "partition"),
        )

    def __len__(self) -> int:
        return len(self.values)

    @property
    def payload_bytes(self) -> NDArray[np.int64]:
        """Return the bytes of keys, values and headers of each row, without their lengths."""
        found = np.maximum(lengths_of(self.keys), 0) + np.maximum(lengths_of(self.values), 0)
        if self.headers is not None:
            found += _header_bytes(self.headers)
        return found


def by_topic(rows: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield rows with their topic: this one, or that of the column. Raises ConfigError."""
    if not rows.num_rows:
        return
    if topic is not None:
        yield topic, rows
        return
    column = rows["topic"]
    if column.null_count:
        raise ConfigError("a row has null as its topic: fill the column, or set the option topic")
    topics = column.unique()
    for name in topics:
        yield name.as_py(), rows if len(topics) == 1 else rows.filter(pc.equal(column, name))


def cut(rows: pa.RecordBatch, size_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut rows into parts up to this size; a larger row is a part of its own."""
    if rows.nbytes <= size_bytes:
        yield rows
        return
    ends = np.cumsum(Rows.of(rows).payload_bytes)
    start = 0
    while start < rows.num_rows:
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + size_bytes, side="right")))
        yield rows.slice(start, end - start)
        start = end


def together(parts: Sequence[pa.RecordBatch]) -> Rows:
    return Rows.of(parts[0] if len(parts) == 1 else pa.Table.from_batches(parts).combine_chunks())


def _column(rows: pa.Table | pa.RecordBatch, name: str) -> pa.Array | None:
    if name not in rows.schema.names:
        return None
    found = rows[name]
    if found.null_count == len(found):
        return None
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _bytes(column: pa.Array | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.binary()) if column is None else column.cast(pa.binary())


def _headers(column: pa.Array | None) -> pa.Array | None:
    if column is None:
        return None
    found = column.cast(HEADERS)
    entries = found.flatten()
    if entries.null_count or entries.field("key").null_count:
        raise ConfigError("a header has null as its key: each one needs a name")
    return found


def _header_bytes(headers: pa.Array) -> NDArray[np.int64]:
    entries = headers.flatten()
    sizes = lengths_of(entries.field("key")) + np.maximum(lengths_of(entries.field("value")), 0)
    ends = np.concatenate([[0], np.cumsum(sizes + 2 * LENGTH_MAX_BYTES)])
    bounds = ends[list_bounds(headers)]
    return np.diff(bounds)


def list_bounds(lists: pa.Array) -> NDArray[np.int64]:
    """Return the bounds of each list among the items of all, as `flatten` has them."""
    return np.concatenate([[0], np.cumsum(np.maximum(lengths_of(lists), 0))])


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
