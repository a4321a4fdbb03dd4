"""The batches of a piece of a segment as arrays, an element for each batch, checked and decompressed.

Only the length field leads from one header to the next, so that is walked; all other header fields are read at once.
The format is KIP-98's; see `kafscale.wire.batch_header`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from kafscale.errors import CorruptBatch, KafkaError
from kafscale.spark.workers.slices import Positions
from kafscale.wire import compression
from kafscale.wire.batch_header import CODEC_MASK, HEADER_BYTES, LENGTH_END, LOG_APPEND_TIME, MAGIC

# Decompressed, of the batches that are decoded together: what compresses well must not fill memory.
GROUP_BYTES = 16 << 20
BATCH_MAX_DECOMPRESSED_BYTES = 1 << 30
CRC_FROM = 21  # what the CRC covers begins at the attributes

HEADER_TYPE = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp_ms", ">i8"),
        ("max_timestamp_ms", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
_length = struct.Struct(">i")

OnUnreadable = Callable[[range, CorruptBatch], None]
"""Called with the offsets of a batch whose CRC is right and whose records can't be read: they are as its client sent
them, to a version of the broker that did not look at them. What does not raise leaves out that batch."""


def refuse(offsets: range, reason: CorruptBatch) -> None:
    raise CorruptBatch(f"offset {offsets.start}: {reason}") from reason


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BatchHeaders:
    """Headers of batches that follow one another in `data`; only their magic was checked.

    cut_bytes: the length of a last batch that is not whole; 0 if all are, or if its header is cut.
    """

    data: memoryview
    starts: Positions
    ends: Positions
    rows: NDArray[Any]  # of HEADER_TYPE
    cut_bytes: int

    @classmethod
    def of(cls, data: memoryview) -> BatchHeaders:
        """Find the batches at the beginning of `data`. Raises CorruptBatch."""
        starts = _walk(data)
        if not starts:
            nowhere = np.empty(0, np.int64)
            return cls(data=data, starts=nowhere, ends=nowhere, rows=np.empty(0, HEADER_TYPE), cut_bytes=0)
        # an element for each byte that a header may begin at, of which nothing is read but what is taken
        anywhere = np.ndarray((len(data) - HEADER_BYTES + 1,), HEADER_TYPE, buffer=data, strides=(1,))
        positions = np.array(starts, np.int64)
        rows = anywhere[positions]
        for row in np.flatnonzero(rows["magic"] != MAGIC)[:1]:
            raise CorruptBatch(f"offset {rows['base_offset'][row]}: a batch of magic {rows['magic'][row]}")
        ends = positions + LENGTH_END + rows["length"]
        is_cut = int(ends[-1]) > len(data)
        return cls(
            data=data,
            starts=positions,
            ends=ends,
            rows=rows,
            cut_bytes=int(ends[-1] - positions[-1]) if is_cut else 0,
        )

    @property
    def base_offsets(self) -> NDArray[np.int64]:
        """Return the offset of each batch's first record, or of one before it that compaction has removed."""
        return self.rows["base_offset"].astype(np.int64)

    @property
    def next_offsets(self) -> NDArray[np.int64]:
        return self.rows["base_offset"] + self.rows["last_offset_delta"].astype(np.int64) + 1

    @property
    def attributes(self) -> NDArray[np.int64]:
        return self.rows["attributes"].astype(np.int64)

    @property
    def count(self) -> int:
        """Return the number of batches, including one that is cut."""
        return len(self.rows)

    @property
    def whole_bytes(self) -> int:
        whole = self.whole()
        return int(whole.ends[-1]) if len(whole.ends) else 0

    def offsets(self, number: int) -> range:
        """Return the offsets of one batch, including those of removed records."""
        return range(int(self.base_offsets[number]), int(self.next_offsets[number]))

    def whole(self) -> BatchHeaders:
        """Return the batches without a last one that is cut off."""
        return self.only(slice(0, -1)) if self.cut_bytes else self

    def only(self, kept: Any) -> BatchHeaders:
        return attrs.evolve(self, starts=self.starts[kept], ends=self.ends[kept], rows=self.rows[kept], cut_bytes=0)


def _walk(data: memoryview) -> Sequence[int]:
    starts: list[int] = []
    position, last_position = 0, len(data) - HEADER_BYTES
    unpack = _length.unpack_from
    while position <= last_position:
        starts.append(position)
        (length,) = unpack(data, position + 8)
        if length < HEADER_BYTES - LENGTH_END:
            raise CorruptBatch(f"a batch of length {length} at byte {position}")
        position += LENGTH_END + length
    return starts


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Batches:
    """Batches as arrays with one element each; positions are in `records`, which has nothing compressed in it."""

    records: memoryview
    starts: Positions
    ends: Positions
    headers: BatchHeaders

    def only(self, kept: slice) -> Batches:
        return attrs.evolve(self, starts=self.starts[kept], ends=self.ends[kept], headers=self.headers.only(kept))

    @property
    def counts(self) -> NDArray[np.int64]:
        return self.headers.rows["record_count"].astype(np.int64)

    @property
    def has_append_time(self) -> NDArray[np.bool_]:
        """Tell of each batch whether all its records have its latest timestamp, which the broker has set."""
        return (self.headers.attributes & LOG_APPEND_TIME).astype(np.bool_)


def check_crcs(headers: BatchHeaders) -> None:
    """Check the CRC of each batch. Raises CorruptBatch."""
    columns = (headers.starts + CRC_FROM, headers.ends, headers.rows["crc"])
    for number, (start, end, crc) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        _check_crc(headers, number, headers.data[start:end], crc)


def check(headers: BatchHeaders, on_unreadable: OnUnreadable) -> Iterator[Batches]:
    """Yield all batches in groups of about GROUP_BYTES, or one larger batch. Raises CorruptBatch."""
    pieces: list[memoryview | bytearray] = []
    numbers: list[int] = []
    size_bytes = 0
    for number, piece in _checked(headers, on_unreadable):
        pieces.append(piece)
        numbers.append(number)
        size_bytes += len(piece)
        if size_bytes >= GROUP_BYTES:
            yield _group(headers.only(numbers), pieces)
            numbers, size_bytes, pieces = [], 0, []
    if pieces:
        yield _group(headers.only(numbers), pieces)


def _checked(headers: BatchHeaders, on_unreadable: OnUnreadable) -> Iterator[tuple[int, memoryview | bytearray]]:
    data = headers.data
    columns = (headers.starts + CRC_FROM, headers.ends, headers.rows["crc"], headers.attributes & CODEC_MASK)
    for number, (start, end, crc, codec) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        covered = data[start:end]
        _check_crc(headers, number, covered, crc)
        piece = covered[HEADER_BYTES - CRC_FROM :]
        try:
            records = compression.decompress(codec, piece, BATCH_MAX_DECOMPRESSED_BYTES) if codec else piece
        except KafkaError as exc:
            on_unreadable(headers.offsets(number), CorruptBatch(str(exc)))
        else:
            yield number, records


def _check_crc(headers: BatchHeaders, number: int, covered: memoryview, crc: int) -> None:
    if crc32c(covered) != crc:
        raise CorruptBatch(f"offset {headers.rows['base_offset'][number]}: the CRC-32C of the batch is wrong")


def _group(headers: BatchHeaders, pieces: Sequence[memoryview | bytearray]) -> Batches:
    if not np.any(headers.attributes & CODEC_MASK):
        return Batches(records=headers.data, starts=headers.starts + HEADER_BYTES, ends=headers.ends, headers=headers)
    ends = np.cumsum([len(piece) for piece in pieces])
    starts = np.concatenate([[0], ends[:-1]])
    return Batches(records=memoryview(b"".join(pieces)), starts=starts, ends=ends, headers=headers)
