"""Records as objects: out of a batch, and into one. For clients, tools and tests; the produce path needs neither."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from kafscale.errors import CorruptBatch, DecodeError
from kafscale.wire import compression
from kafscale.wire.batch_header import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    parse_header,
    seal_batch,
)
from kafscale.wire.primitives import read_varint, varint
from kafscale.wire.record_heads import record_heads

MAX_DECOMPRESSED_BYTES: Final = 1 << 30
"""What a batch that is already stored may decompress to; producers are held to less by the broker's setting."""


@attrs.define
class Record:
    """One record. Not frozen: a consumer makes one per record, and that costs half.

    `offset` is ignored when a batch is built: records get consecutive offsets there.
    """

    key: bytes | None = None
    value: bytes | None = None
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    offset: int = 0


@attrs.frozen
class ProducerStamp:
    """Tells who sent a batch, and where it is in that producer's sequence (KIP-98)."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = -1


_NO_PRODUCER: Final = ProducerStamp()
_NULL: Final = (varint(-1), b"")
_NO_LEADER_EPOCH: Final = -1


def iterate_records(view: memoryview, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """The records of one batch, decompressed if need be. The CRC is not looked at.

    Raises:
        CorruptBatch: a record is not what its lengths say, or decompression failed.
        KafkaError: MESSAGE_TOO_LARGE if there are more than `max_decompressed_bytes` of them.
    """
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
    """The greatest timestamp in a batch, in milliseconds, and the offset of the first record that has it.

    Raises:
        CorruptBatch: as `iterate_records`, or there is no record.
    """
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
    """Build a v2 batch as a producer sends it: the leader epoch is -1.

    `attributes` takes the bits LOG_APPEND_TIME, TRANSACTIONAL and CONTROL of `batch_header`. With LOG_APPEND_TIME the
    greatest of the records' timestamps is the batch's.

    Raises:
        ValueError: there are no records.
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
    """The record whose key begins at `position`."""
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
