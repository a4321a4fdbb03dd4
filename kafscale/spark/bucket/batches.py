"""The batches of a piece of a segment as arrays, an element per batch, checked and decompressed.

From header to header only the length in front of each tells, so that is walked; all else of the headers is read at
once. With batches of 16 KiB and records of 1 KiB, what is done per batch costs as much as what is done per record.

The format is KIP-98's; see `kafscale.wire.batch_header`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from kafscale.errors import CorruptBatch, KafkaError
from kafscale.spark.varints import Positions
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


@attrs.frozen(kw_only=True, eq=False)
class BatchHeaders:
    """Batches that follow one another in `data`, as their headers have them; nothing but their magic was checked.

    cut_bytes: how long the batch behind them is, of which not all is there; 0 if none begins, or its header is cut.
    """

    data: memoryview
    starts: Positions
    ends: Positions
    rows: NDArray[Any]  # of HEADER_TYPE
    cut_bytes: int

    @classmethod
    def of(cls, data: memoryview) -> BatchHeaders:
        """Those at the beginning of `data`. Raises CorruptBatch."""
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
        """Of the first record of each, or of one before it that compaction has removed."""
        return self.rows["base_offset"].astype(np.int64)

    @property
    def next_offsets(self) -> NDArray[np.int64]:
        """Of what follows each."""
        return self.rows["base_offset"] + self.rows["last_offset_delta"].astype(np.int64) + 1

    @property
    def attributes(self) -> NDArray[np.int64]:
        """Flags and codec of each."""
        return self.rows["attributes"].astype(np.int64)

    @property
    def count(self) -> int:
        """How many there are, one that is cut among them."""
        return len(self.rows)

    @property
    def whole_bytes(self) -> int:
        """Where the last one ends that is there as a whole."""
        whole = self.whole()
        return int(whole.ends[-1]) if len(whole.ends) else 0

    def whole(self) -> BatchHeaders:
        """Without the last one if that is cut."""
        return self.only(slice(0, -1)) if self.cut_bytes else self

    def only(self, kept: Any) -> BatchHeaders:
        """Some of them, by a slice or a mask."""
        return attrs.evolve(self, starts=self.starts[kept], ends=self.ends[kept], rows=self.rows[kept], cut_bytes=0)


def _walk(data: memoryview) -> Sequence[int]:
    """Where headers begin that are there as a whole."""
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


@attrs.frozen(kw_only=True, eq=False)
class Batches:
    """Arrays with one element per batch; positions are of `records`, a buffer that has nothing compressed in it."""

    records: memoryview
    starts: Positions
    ends: Positions
    headers: BatchHeaders

    @property
    def counts(self) -> NDArray[np.int64]:
        """Records of each."""
        return self.headers.rows["record_count"].astype(np.int64)

    @property
    def has_append_time(self) -> NDArray[np.bool_]:
        """Whether all records of a batch have its latest timestamp, which the broker has set."""
        return (self.headers.attributes & LOG_APPEND_TIME).astype(np.bool_)


def check(headers: BatchHeaders) -> Iterator[Batches]:
    """All of them in groups of about GROUP_BYTES, or one larger batch. Raises CorruptBatch."""
    pieces: list[memoryview | bytearray] = []
    first = size_bytes = 0
    codecs = headers.attributes & CODEC_MASK
    for number, piece in enumerate(_checked(headers, codecs)):
        pieces.append(piece)
        size_bytes += len(piece)
        if size_bytes >= GROUP_BYTES:
            yield _group(headers.only(slice(first, number + 1)), pieces)
            first, size_bytes, pieces = number + 1, 0, []
    if pieces:
        yield _group(headers.only(slice(first, None)), pieces)


def _checked(headers: BatchHeaders, codecs: NDArray[np.int64]) -> Iterator[memoryview | bytearray]:
    """The records of each batch."""
    data = headers.data
    columns = (headers.starts + CRC_FROM, headers.ends, headers.rows["crc"], codecs)
    for number, (start, end, crc, codec) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        covered = data[start:end]
        if crc32c(covered) != crc:
            raise CorruptBatch(f"offset {headers.rows['base_offset'][number]}: the CRC-32C of the batch is wrong")
        piece = covered[HEADER_BYTES - CRC_FROM :]
        yield _decompress(codec, piece, headers.rows["base_offset"][number]) if codec else piece


def _group(headers: BatchHeaders, pieces: Sequence[memoryview | bytearray]) -> Batches:
    """As long as none is compressed, they stay where they are."""
    if not np.any(headers.attributes & CODEC_MASK):
        return Batches(records=headers.data, starts=headers.starts + HEADER_BYTES, ends=headers.ends, headers=headers)
    ends = np.cumsum([len(piece) for piece in pieces])
    starts = np.concatenate([[0], ends[:-1]])
    return Batches(records=memoryview(b"".join(pieces)), starts=starts, ends=ends, headers=headers)


def _decompress(codec: int, piece: memoryview, base_offset: int) -> bytearray:
    try:
        return compression.decompress(codec, piece, BATCH_MAX_DECOMPRESSED_BYTES)
    except (CorruptBatch, KafkaError) as exc:
        raise CorruptBatch(f"offset {base_offset}: {exc}") from exc
