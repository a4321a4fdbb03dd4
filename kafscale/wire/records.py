"""Validate, read and build the records of v2 batches.

`view` is a memoryview of one whole batch. Errors are those of Kafka for a partition: a damaged batch (CRC, length,
unknown magic) is CORRUPT_MESSAGE, which clients retry; a batch that was sent wrongly (counts, structure) is
INVALID_RECORD, which they don't; a record whose offset delta is not its index is UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from kafscale.buffers import Buffer
from kafscale.errors import CorruptBatch, DecodeError, InvalidRecord, KafkaError
from kafscale.wire import compression, error_codes
from kafscale.wire.batch_header import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    NO_PRODUCER_ID,
    BatchHeader,
    compute_crc,
    parse_header,
    seal_batch,
)
from kafscale.wire.primitives import read_uvarint, read_varint, read_varlong, varint
from kafscale.wire.record_check import RecordCheck, copied_if_small

MAX_DECOMPRESSED_BYTES: Final = 1 << 30
"""What a batch that is already stored may decompress to; producers are held to less by the broker's setting."""


@attrs.define
class Record:
    """A record. Not frozen, which halves its cost. `offset` is ignored when a batch is built."""

    key: bytes | None = None
    value: bytes | None = None
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    offset: int = 0


@attrs.frozen
class ProducerStamp:
    """The producer of a batch, and the batch's place in the producer's sequence (KIP-98)."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = -1


_NO_PRODUCER: Final = ProducerStamp()
_NULL: Final = (varint(-1), b"")
_NO_LEADER_EPOCH: Final = -1


def iterate_records(view: memoryview, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """Iterate over records, without checking the CRC. Raises CorruptBatch, and KafkaError above the bound."""
    header = parse_header(view)
    body = view[HEADER_BYTES : header.size_bytes]
    if header.codec == compression.NONE:
        records = bytes(body)
    else:
        records = bytes(compression.decompress(header.codec, body, max_decompressed_bytes))
    try:
        for timestamp_delta, offset_delta, position, end in record_heads(records, header.record_count):
            if header.attributes & LOG_APPEND_TIME:
                timestamp_ms = header.max_timestamp_ms
            else:
                timestamp_ms = header.base_timestamp_ms + timestamp_delta
            yield _parse_record(records, position, end, timestamp_ms, header.base_offset + offset_delta)
    except (IndexError, DecodeError) as error:
        raise CorruptBatch(f"a record of the batch at offset {header.base_offset} is damaged: {error}") from error


def max_timestamp(view: memoryview) -> tuple[int, int]:
    """Return the greatest timestamp, in milliseconds, and the first offset that has it. Raises as `iterate_records`."""
    latest = max(iterate_records(view), key=lambda record: record.timestamp_ms, default=None)
    if latest is None:
        raise CorruptBatch("a record batch without records has no timestamp")
    return latest.timestamp_ms, latest.offset


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: int = compression.NONE,
    attributes: int = 0,
    producer: ProducerStamp = _NO_PRODUCER,
) -> bytearray:
    """Build a v2 batch as a producer sends it.

    `attributes` may have LOG_APPEND_TIME, TRANSACTIONAL and CONTROL. With LOG_APPEND_TIME the greatest of the
    timestamps is the batch's. Raises ValueError without records.
    """
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp_ms = max_timestamp_ms = records[0].timestamp_ms
    parts: list[bytes] = []
    for index, record in enumerate(records):
        timestamp_ms = record.timestamp_ms
        encoded = _encode_record(record, index, timestamp_ms - base_timestamp_ms)
        parts += varint(len(encoded)), encoded
        if timestamp_ms > max_timestamp_ms:
            max_timestamp_ms = timestamp_ms
    body = b"".join(parts)
    packed = body if codec == compression.NONE else compression.compress(codec, body)
    return seal_batch(
        packed,
        base_offset,
        _NO_LEADER_EPOCH,
        attributes | codec,
        len(records) - 1,
        base_timestamp_ms,
        max_timestamp_ms,
        producer.producer_id,
        producer.producer_epoch,
        producer.base_sequence,
        len(records),
    )


def _parse_record(records: bytes, position: int, end: int, timestamp_ms: int, offset: int) -> Record:
    key, position = _parse_bytes(records, position)
    value, position = _parse_bytes(records, position)
    header_count, position = read_varint(records, position)
    headers = []
    for _ in range(header_count):
        name, position = _parse_bytes(records, position)
        content, position = _parse_bytes(records, position)
        if name is None:
            raise DecodeError("a header without a key")
        headers.append((name.decode("utf-8", "replace"), content))  # Java's readers replace what is not UTF-8, too
    if position != end or header_count < 0:
        raise DecodeError(f"it ends at byte {position}, its length says {end}")
    return Record(key, value, timestamp_ms, tuple(headers), offset)


def _parse_bytes(records: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(records, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(records):
        raise DecodeError(f"{length} bytes are more than the batch has")
    return records[position:end], end


def _encode_record(record: Record, offset_delta: int, timestamp_delta: int) -> bytes:
    parts = [b"\0", varint(timestamp_delta), varint(offset_delta), *_sized(record.key), *_sized(record.value)]
    headers = record.headers
    parts.append(varint(len(headers)))
    for name, content in headers:
        parts += _sized(name.encode())
        parts += _sized(content)
    return b"".join(parts)


def _sized(data: bytes | None) -> tuple[bytes, bytes]:
    return _NULL if data is None else (varint(len(data)), data)


OLDEST_LEAST_BYTES: Final = 14
"""Of a message of magic 0, behind its length. Kafka refuses what is shorter as damaged, and what is cut off as none."""
_MAGIC_AT: Final = 16


def validate(view: memoryview) -> BatchHeader:
    """Check a batch, and its records unless they are compressed. Raises as the two checks."""
    header = validate_header(view)
    if not header.attributes & CODEC_MASK:
        check_of(view[HEADER_BYTES:], header).finish()
    return header


def validate_compressed(view: memoryview, header: BatchHeader, max_decompressed_bytes: int) -> None:
    """Check the records of a compressed batch. Raises UnreadableBatch, WrongOffsetDelta, InvalidRecord, KafkaError."""
    check_of(compression.decompress(header.codec, view[HEADER_BYTES:], max_decompressed_bytes), header).finish()


def check_of(records: Buffer, header: BatchHeader, *, needs_keys: bool = False) -> RecordCheck:
    count = header.record_count
    return RecordCheck(copied_if_small(records, count), 0, count, header.base_timestamp_ms, needs_keys)


def validate_header(view: memoryview) -> BatchHeader:
    """Check header and CRC, except flags. Raises CorruptBatch, InvalidRecord, KafkaError for an unknown codec."""
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
    """Return the first batch, as Kafka does. Raises CorruptBatch, and InvalidRecord unless it is a whole one of magic
    2.
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
    """Return the end of the first batch; 0 if it is cut off. Raises CorruptBatch."""
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


def record_heads(records: Buffer, count: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield timestamp delta, offset delta, position of the key and end of `count` uncompressed records.

    The caller checks that a record ends behind its key and within the buffer. Numbers of one or two bytes are read
    without calls: 0.35 to 0.7 us a record, with calls 0.6 to 0.85. Raises IndexError where the buffer ends early, and
    DecodeError.
    """
    end = 0
    for _ in range(count):
        length, position = records[end], end + 1
        if length >= 128:
            more = records[position]
            if more < 128:
                length += (more << 7) - 128
                position += 1
            else:
                length, position = read_uvarint(records, end)
        if length & 1:
            raise DecodeError(f"the record at byte {end} has a negative length")
        end = position + (length >> 1)
        timestamp_delta = records[position + 1]  # behind the attributes, of which none is in use
        if timestamp_delta < 128:
            timestamp_delta = (timestamp_delta >> 1) ^ -(timestamp_delta & 1)
            position += 2
        else:
            timestamp_delta, position = read_varlong(records, position + 1)
        offset_delta = records[position]
        position += 1
        if offset_delta >= 128:
            more = records[position]
            if more < 128:
                offset_delta += (more << 7) - 128
                position += 1
            else:
                offset_delta, position = read_uvarint(records, position - 1)
        yield timestamp_delta, (offset_delta >> 1) ^ -(offset_delta & 1), position, end


STEP_COUNT: Final = 512  # records of a step: a microsecond or two each


@attrs.define(eq=False, repr=False)
class Renumbering:
    """Copies uncompressed records to `written`, with their indices as offset deltas, in steps.

    Some clients send other deltas. Kafka stores these unless they are compressed, and its consumers then see several
    records of one offset. The check of records finds other faults.
    """

    records: Buffer
    count: int
    written: bytearray = attrs.field(factory=bytearray, init=False)
    _index: int = attrs.field(default=0, init=False)
    _position: int = attrs.field(default=0, init=False)

    def advance(self, count: int = STEP_COUNT) -> bool:
        """Write `count` more records; return True at the end. Raises InvalidRecord for a wrong length."""
        try:
            for index in range(self._index, min(self._index + count, self.count)):
                self._position = self._write(index, self._position)
        except (IndexError, DecodeError) as error:
            raise InvalidRecord(f"record {index} is not what its lengths say: {error}") from error
        self._index = min(self._index + count, self.count)
        if self._index < self.count:
            return False
        self.written += self.records[self._position :]
        return True

    def _write(self, index: int, start: int) -> int:
        length, body = read_uvarint(self.records, start)
        end = body + (length >> 1)
        delta = body + 1
        while self.records[delta] >= 128:  # behind the timestamp's
            delta += 1
        _, rest = read_uvarint(self.records, delta + 1)
        if length & 1 or not rest <= end <= len(self.records):
            raise DecodeError(f"a length of {(length >> 1) ^ -(length & 1)}")
        head = bytes(self.records[body : delta + 1]) + varint(index)
        self.written += varint(len(head) + end - rest)
        self.written += head
        self.written += self.records[rest:end]
        return end
