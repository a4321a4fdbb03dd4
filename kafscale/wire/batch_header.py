"""Read and patch the 61-byte header of a v2 record batch (KIP-98), and split concatenated batches.

    base offset 8 | batch length 4 | leader epoch 4 | magic 1 | CRC 4 | attributes 2 | last offset delta 4
    | base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | record count 4 | records

The CRC-32C covers all bytes from the attributes on, so a broker may set base offset and leader epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import attrs
from crc32c import crc32c

from kafscale.buffers import Buffer
from kafscale.errors import CorruptBatch, InvalidRecord

HEADER_BYTES: Final = 61
LENGTH_END: Final = 12  # where what the batch length counts begins
MAGIC: Final = 2

# Bits of a batch's attributes.
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

NO_PRODUCER_ID: Final = -1
MIN_TIMESTAMP_UNKNOWN: Final = -(1 << 63)  # any timestamp may be in there
MAX_SEQUENCE: Final = 0x7FFFFFFF

_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35

_header = struct.Struct(">qiibIhiqqqhii")
_offset = struct.Struct(">q")
_length = _epoch = struct.Struct(">i")
_crc = struct.Struct(">I")


@attrs.define
class BatchHeader:
    """A batch's header when it was parsed. Not frozen, which halves its cost."""

    base_offset: int
    batch_length: int  # bytes after the length field itself
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return LENGTH_END + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Tell whether every record has the broker's time, `max_timestamp_ms`."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def min_timestamp_ms(self) -> int:
        """Earliest timestamp of a stored batch's records; MIN_TIMESTAMP_UNKNOWN if the header does not tell it."""
        is_told = self.is_log_append_time or (self.record_count == 1 and self.max_timestamp_ms >= 0)
        return self.max_timestamp_ms if is_told else MIN_TIMESTAMP_UNKNOWN

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Tell whether the batch is a transaction's end marker, which clients neither write nor see."""
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Return the time from which compaction may drop tombstones (KIP-534); None before it has seen them."""
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, which wraps from 2^31-1 to 0; -1 without a base sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE


def parse_header(view: memoryview) -> BatchHeader:
    """Parse the header. Raises CorruptBatch for too few bytes or an unknown magic, InvalidRecord for magic 0 or 1."""
    if len(view) < HEADER_BYTES or view[_MAGIC_AT] != MAGIC:
        _refuse(view)
    return BatchHeader(*_header.unpack_from(view))


def _refuse(view: memoryview) -> None:
    if len(view) > _MAGIC_AT and view[_MAGIC_AT] < MAGIC:
        raise InvalidRecord(f"a record batch of magic {view[_MAGIC_AT]}; only magic 2 is accepted")
    if len(view) > _MAGIC_AT and view[_MAGIC_AT] > MAGIC:
        raise CorruptBatch(f"a record batch of magic {view[_MAGIC_AT]}, which does not exist")
    raise CorruptBatch(f"a record batch of {len(view)} bytes is shorter than its header")


def batches(view: memoryview) -> Iterator[memoryview]:
    """Split batches. Raises CorruptBatch, after the valid ones, for one cut off or of impossible length."""
    position = 0
    while position < len(view):
        if len(view) - position < LENGTH_END:
            raise CorruptBatch(f"a record batch is cut off after {len(view) - position} bytes")
        (batch_length,) = _length.unpack_from(view, position + 8)
        end = position + LENGTH_END + batch_length
        if batch_length < HEADER_BYTES - LENGTH_END or end > len(view):
            raise CorruptBatch(f"a record batch of length {batch_length} in {len(view) - position} bytes")
        yield view[position:end]
        position = end


def whole_batches(view: memoryview) -> Iterator[memoryview]:
    """Split batches like `batches`, but ignore a last one that is cut off, as brokers may send it."""
    while len(view) >= HEADER_BYTES:
        end = LENGTH_END + int.from_bytes(view[8:12], "big", signed=True)
        if end < HEADER_BYTES:
            raise CorruptBatch(f"a fetched batch has a length of {end} bytes")
        if end > len(view):
            return
        yield view[:end]
        view = view[end:]


def encode_batch(header: BatchHeader, records: Buffer) -> bytearray:
    """Return a batch of this header and these records, which are compressed already, with a new length and CRC."""
    return seal_batch(
        records,
        header.base_offset,
        header.leader_epoch,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )


def seal_batch(records: Buffer, base_offset: int, leader_epoch: int, *others: int) -> bytearray:
    """Return a batch of these records; `others` are the header's fields from its attributes on, in order."""
    head = _header.pack(base_offset, HEADER_BYTES - LENGTH_END + len(records), leader_epoch, MAGIC, 0, *others)
    batch = bytearray(head)
    batch += records
    _crc.pack_into(batch, _CRC_AT, crc32c(records, crc32c(head[_ATTRIBUTES_AT:])))
    return batch


def set_base_offset(view: memoryview, base_offset: int, leader_epoch: int) -> None:
    """Set a batch's offset and epoch in its buffer; the CRC does not cover them."""
    _offset.pack_into(view, 0, base_offset)
    _epoch.pack_into(view, LENGTH_END, leader_epoch)


def set_log_append_time(view: memoryview, timestamp_ms: int) -> None:
    """Set every record's timestamp to the broker's in the buffer, and the CRC."""
    (attributes,) = struct.unpack_from(">h", view, _ATTRIBUTES_AT)
    struct.pack_into(">h", view, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    struct.pack_into(">q", view, _MAX_TIMESTAMP_AT, timestamp_ms)
    set_crc(view)


def set_attributes(view: memoryview, attributes: int) -> None:
    """Replace the attributes in the buffer, and the CRC."""
    struct.pack_into(">h", view, _ATTRIBUTES_AT, attributes)
    set_crc(view)


def set_max_timestamp(view: memoryview, timestamp_ms: int) -> None:
    """Replace the greatest timestamp in the buffer, and the CRC."""
    struct.pack_into(">q", view, _MAX_TIMESTAMP_AT, timestamp_ms)
    set_crc(view)


def parse_whole(view: memoryview) -> BatchHeader:
    """Parse the header of a stored batch. Raises as `parse_header`, and CorruptBatch for a wrong CRC."""
    header = parse_header(view)
    if compute_crc(view) != header.crc:
        raise CorruptBatch(f"the CRC of the batch at offset {header.base_offset} is wrong")
    return header


def compute_crc(view: memoryview) -> int:
    return crc32c(view[_ATTRIBUTES_AT:])


def set_crc(view: memoryview) -> None:
    _crc.pack_into(view, _CRC_AT, compute_crc(view))
