"""What a broker checks of a batch before it stores it: everything that a reader relies on.

Kafka's own choice of error is kept. What was damaged on the way (CRC, length, a magic that never existed) is
CORRUPT_MESSAGE, and clients send it again; what was sent like that (counts, the records' structure) is INVALID_RECORD,
and they do not. A record whose offset delta is not its index is UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from typing import Final

from kafscale.buffers import Buffer
from kafscale.errors import CorruptBatch, InvalidRecord, KafkaError
from kafscale.wire import compression, error_codes
from kafscale.wire.batch_header import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    compute_crc,
    parse_header,
)
from kafscale.wire.record_check import RecordCheck, copied_if_small

OLDEST_LEAST_BYTES: Final = 14
"""Of a message of magic 0, behind its length. Kafka refuses what is shorter as damaged, and what is cut off as none."""
_MAGIC_AT: Final = 16


def validate(view: memoryview) -> BatchHeader:
    """Check the one batch that fills `view`: what `validate_header` does, and the records, unless they are compressed.

    Raises as `validate_header` and `RecordCheck.advance` do.
    """
    header = validate_header(view)
    if not header.attributes & CODEC_MASK:
        check_of(view[HEADER_BYTES:], header).finish()
    return header


def validate_compressed(view: memoryview, header: BatchHeader, max_decompressed_bytes: int) -> None:
    """Check the records of a compressed batch whose header `validate` has returned.

    Raises:
        UnreadableBatch: it can't be decompressed.
        WrongOffsetDelta: an offset delta is not the index of its record.
        InvalidRecord: the records are not what the header says.
        KafkaError: MESSAGE_TOO_LARGE if they are more than `max_decompressed_bytes`.
    """
    check_of(compression.decompress(header.codec, view[HEADER_BYTES:], max_decompressed_bytes), header).finish()


def check_of(records: Buffer, header: BatchHeader, *, needs_keys: bool = False) -> RecordCheck:
    """The check of a batch's records, with nothing compressed in them."""
    count = header.record_count
    return RecordCheck(copied_if_small(records, count), 0, count, header.base_timestamp_ms, needs_keys)


def validate_header(view: memoryview) -> BatchHeader:
    """Check of the one batch that fills `view` all but the records: length, magic, CRC, counts, codec.

    Whether the batch's flags are allowed is for the caller to say.

    Raises:
        CorruptBatch: it was damaged.
        InvalidRecord: it is not to be stored.
        KafkaError: UNSUPPORTED_COMPRESSION_TYPE.
    """
    if not view:
        raise InvalidRecord("no record batch")
    header = parse_header(view)
    if header.batch_length != len(view) - LENGTH_END:
        _refuse_length(header, len(view))
    if compute_crc(view) != header.crc:
        raise CorruptBatch(f"the CRC of the record batch is {compute_crc(view):#x}, its header says {header.crc:#x}")
    count = header.record_count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise InvalidRecord(f"a record batch of {count} records whose last offset delta is {header.last_offset_delta}")
    if header.attributes & CODEC_MASK not in compression.NAMES:
        raise KafkaError(
            error_codes.UNSUPPORTED_COMPRESSION_TYPE, f"no compression codec has the number {header.codec}"
        )
    return header


def first_batch(view: memoryview) -> memoryview:
    """Return the one batch that `view` begins with, without bytes behind it that are no whole batch, as Kafka does.

    Raises:
        CorruptBatch: it, or what stands behind it, has a length or a magic that no batch has.
        InvalidRecord: there is no whole batch of magic 2, or another one behind it.
    """
    end = _whole_batch_end(view)
    if not end:
        raise InvalidRecord(f"no whole record batch in {len(view)} bytes")
    if view[_MAGIC_AT] != MAGIC:
        raise InvalidRecord(f"a record batch of magic {view[_MAGIC_AT]}; only magic 2 is accepted")
    if _whole_batch_end(view[end:]):
        raise InvalidRecord("more than one record batch for a partition")
    return view[:end]


def _whole_batch_end(view: memoryview) -> int:
    """Return where the batch at the beginning ends; 0 if it is cut off. Raises CorruptBatch."""
    if len(view) < LENGTH_END:
        return 0
    length = int.from_bytes(view[8:LENGTH_END], signed=True)
    if length < OLDEST_LEAST_BYTES:
        raise CorruptBatch(f"a record batch of length {length}")
    if len(view) <= _MAGIC_AT:
        return 0
    if view[_MAGIC_AT] > MAGIC:
        raise CorruptBatch(f"a record batch of magic {view[_MAGIC_AT]}, which does not exist")
    end = LENGTH_END + length
    return end if end <= len(view) else 0


def _refuse_length(header: BatchHeader, size_bytes: int) -> None:
    if HEADER_BYTES <= header.size_bytes < size_bytes:
        raise InvalidRecord("more than one record batch for a partition")
    raise CorruptBatch(f"a record batch of {size_bytes} bytes whose header says {header.size_bytes}")
