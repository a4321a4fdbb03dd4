"""The 61 bytes in front of a v2 record batch: reading them, patching them, and cutting concatenated batches apart.

    base offset 8 | batch length 4 | leader epoch 4 | magic 1 | CRC 4 | attributes 2 | last offset delta 4
    | base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | record count 4 | records

The CRC-32C covers everything from the attributes on: a broker writes base offset and leader epoch without touching it.
The format is KIP-98's; magic 0 and 1 are what came before, and are not read.
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
LENGTH_END: Final = 12
"""Where what the batch length counts begins."""
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
"""Bits of a batch's attributes."""

NO_PRODUCER_ID: Final = -1
MIN_TIMESTAMP_UNKNOWN: Final = -(1 << 63)
"""Any timestamp may be in there."""
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
    """A batch's header as it was when it was parsed. Not frozen: one is made per batch, and that costs half."""

    base_offset: int
    batch_length: int
    """Bytes after the length field itself."""
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
        """The whole batch."""
        return LENGTH_END + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset of whatever follows this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """A number of `kafscale.wire.compression`."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Tell whether every record has the broker's time (`max_timestamp_ms`) rather than its own."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def min_timestamp_ms(self) -> int:
        """The earliest of the records' timestamps, as far as the header of a batch that was stored tells it.

        It is the latest one, too, where all records have the time of the append, or there is one record, and that has a
        time; else MIN_TIMESTAMP_UNKNOWN.
        """
        is_told = self.is_log_append_time or (self.record_count == 1 and self.max_timestamp_ms >= 0)
        return self.max_timestamp_ms if is_told else MIN_TIMESTAMP_UNKNOWN

    @property
    def is_transactional(self) -> bool:
        """Tell whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Tell whether the batch is a transaction's end marker, which no client may write or is shown."""
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which on compaction may drop the tombstones in here (KIP-534); None if it has not seen them
        yet.

        It takes the place of the base timestamp, to which the records' own are relative.
        """
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON else None

    @property
    def has_producer_id(self) -> bool:
        """Tell whether an idempotent producer sent it."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; sequences wrap from 2^31-1 to 0. -1 without a base sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE


def parse_header(view: memoryview) -> BatchHeader:
    """Parse the header at the beginning of `view`, which may go on after the batch.

    Raises:
        CorruptBatch: fewer bytes than a header has, or a magic that never existed.
        InvalidRecord: a message set of magic 0 or 1: Kafka's answer to one in a Produce request of version 3 or later.
    """
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
    """Cut concatenated batches apart.

    Raises:
        CorruptBatch: a batch is cut off or has a length that no batch has; what came before has been yielded.
    """
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
    """Iterate over batches as `batches` does, but leave out one that is cut off, as brokers may send.

    Raises:
        CorruptBatch: a batch has a length that no batch has; what came before has been yielded.
    """
    while len(view) >= HEADER_BYTES:
        end = LENGTH_END + int.from_bytes(view[8:12], "big", signed=True)
        if end < HEADER_BYTES:
            raise CorruptBatch(f"a fetched batch has a length of {end} bytes")
        if end > len(view):
            return
        yield view[:end]
        view = view[end:]


def encode_batch(header: BatchHeader, records: Buffer) -> bytearray:
    """A batch of this header and these records, compressed if its attributes say so; length and CRC are made anew."""
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
    """A batch of these records; the `others` are what a header has from its attributes on, in its order."""
    head = _header.pack(base_offset, HEADER_BYTES - LENGTH_END + len(records), leader_epoch, MAGIC, 0, *others)
    batch = bytearray(head)
    batch += records
    _crc.pack_into(batch, _CRC_AT, crc32c(records, crc32c(head[_ATTRIBUTES_AT:])))
    return batch


def set_base_offset(view: memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in the log, in the buffer itself. The CRC does not cover these fields."""
    _offset.pack_into(view, 0, base_offset)
    _epoch.pack_into(view, LENGTH_END, leader_epoch)


def set_log_append_time(view: memoryview, timestamp_ms: int) -> None:
    """Make every record's timestamp the broker's, in the buffer itself, and compute the CRC anew."""
    (attributes,) = struct.unpack_from(">h", view, _ATTRIBUTES_AT)
    struct.pack_into(">h", view, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    struct.pack_into(">q", view, _MAX_TIMESTAMP_AT, timestamp_ms)
    set_crc(view)


def set_attributes(view: memoryview, attributes: int) -> None:
    """Replace the attributes, in the buffer itself, and compute the CRC anew."""
    struct.pack_into(">h", view, _ATTRIBUTES_AT, attributes)
    set_crc(view)


def set_max_timestamp(view: memoryview, timestamp_ms: int) -> None:
    """Say anew what the greatest of the records' timestamps is, in the buffer itself, and compute the CRC anew."""
    struct.pack_into(">q", view, _MAX_TIMESTAMP_AT, timestamp_ms)
    set_crc(view)


def parse_whole(view: memoryview) -> BatchHeader:
    """Parse the header of a stored batch that fills `view`. Raises CorruptBatch if the CRC is wrong, and as
    `parse_header` does.
    """
    header = parse_header(view)
    if compute_crc(view) != header.crc:
        raise CorruptBatch(f"the CRC of the batch at offset {header.base_offset} is wrong")
    return header


def compute_crc(view: memoryview) -> int:
    """The CRC-32C of a batch that fills `view`."""
    return crc32c(view[_ATTRIBUTES_AT:])


def set_crc(view: memoryview) -> None:
    """Store the CRC of a batch that fills `view`."""
    _crc.pack_into(view, _CRC_AT, compute_crc(view))
