"""Records of a batch as places in it: what compaction asks of them, and a batch again with fewer of them. Sans-IO.

A record that stays is copied as it is: its timestamp and its offset are relative to the batch's, which stay. Only where
a batch gets a delete horizon its base timestamp changes, and with it every record (KIP-534).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs

from kafscale.buffers import Buffer
from kafscale.errors import CorruptBatch, DecodeError
from kafscale.wire import compression
from kafscale.wire.primitives import read_uvarint, read_varlong, varint
from kafscale.wire.records import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAX_DECOMPRESSED_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    encode_batch,
    record_heads,
)

NO_TIMESTAMP = -1
RECORDS_MAX_COUNT = 1_000_000  # of a batch, at 150 bytes each: only what was made to unpack to a thousandfold has more


@attrs.frozen(eq=False, repr=False)
class RecordPlaces:
    """The records of one batch, decompressed, in columns: a column costs less than an object for each record.

    Record number i is `data[starts[i] : starts[i + 1]]`. A key is None if the record has none.
    """

    data: Buffer
    starts: Sequence[int]
    offsets: Sequence[int]
    keys: Sequence[bytes | bytearray | None]
    tombstones: Sequence[bool]

    def __len__(self) -> int:
        return len(self.offsets)


def locate_records(batch: memoryview, header: BatchHeader) -> RecordPlaces:
    """Find the records of a batch that fills `batch`. Raises CorruptBatch, also for more than RECORDS_MAX_COUNT."""
    if header.record_count > RECORDS_MAX_COUNT:
        raise CorruptBatch(f"the batch at offset {header.base_offset} has {header.record_count} records")
    data: bytes | bytearray
    if header.codec == compression.NONE or not header.record_count:
        data = bytes(batch[HEADER_BYTES:])  # bytes are indexed and sliced in half the time that a view takes
    else:
        unpacked = compression.decompress(header.codec, batch[HEADER_BYTES:], MAX_DECOMPRESSED_BYTES)
        data = bytes(unpacked) if isinstance(unpacked, memoryview) else unpacked
    try:
        return _locate(data, header)
    except (IndexError, DecodeError) as exc:
        raise CorruptBatch(f"a record of the batch at offset {header.base_offset} is damaged: {exc}") from exc


def _locate(data: bytes | bytearray, header: BatchHeader) -> RecordPlaces:
    base_offset = header.base_offset
    starts, offsets, tombstones = [0], [], []
    keys: list[bytes | bytearray | None] = []
    end = 0
    for _, offset_delta, position, end in record_heads(data, header.record_count):
        key_length, position = (data[position], position + 1) if data[position] < 128 else read_uvarint(data, position)
        if key_length & 1:
            keys.append(None)
        else:
            key_end = position + (key_length >> 1)
            keys.append(data[position:key_end])
            position = key_end
        if position >= end:
            raise DecodeError(f"it ends at byte {end}, and its key at byte {position}")
        offsets.append(base_offset + offset_delta)
        tombstones.append(bool(data[position] & 1))  # a negative length, zigzag
        starts.append(end)
    if end != len(data):
        raise DecodeError(f"{header.record_count} records end at byte {end} of {len(data)}")
    return RecordPlaces(data, starts, offsets, keys, tombstones)


def keep_records(
    header: BatchHeader, places: RecordPlaces, kept: Sequence[int], *, delete_horizon_ms: int | None = None
) -> bytearray:
    """The batch with only the records of these numbers, in order; at least one. It keeps its offsets and its codec.

    `delete_horizon_ms` is set if given, and otherwise stays as it is. Raises CorruptBatch.
    """
    try:
        return _keep(header, places, kept, delete_horizon_ms)
    except (IndexError, DecodeError, struct.error) as exc:  # such as a timestamp of 70 bits
        raise CorruptBatch(f"a record of the batch at offset {header.base_offset} is damaged: {exc}") from exc


def _keep(header: BatchHeader, places: RecordPlaces, kept: Sequence[int], delete_horizon_ms: int | None) -> bytearray:
    base_timestamp_ms, attributes = header.base_timestamp_ms, header.attributes
    data, starts = places.data, places.starts
    timestamps_ms = [base_timestamp_ms + _timestamp_delta(data, starts[index]) for index in kept]
    if delete_horizon_ms is None:
        records = b"".join([data[starts[index] : starts[index + 1]] for index in kept])
    else:
        base_timestamp_ms, attributes = delete_horizon_ms, attributes | DELETE_HORIZON
        records = b"".join(
            _with_timestamp_delta(data, starts[index], timestamp_ms - delete_horizon_ms)
            for index, timestamp_ms in zip(kept, timestamps_ms, strict=True)
        )
    codec = header.codec
    changed = attrs.evolve(
        header,
        attributes=attributes,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms if header.is_log_append_time else max(timestamps_ms),
        record_count=len(kept),
    )
    return encode_batch(changed, records if codec == compression.NONE else compression.compress(codec, records))


def without_records(header: BatchHeader) -> bytearray:
    """The batch with none of its records: what a producer's last sequence number, or the last offset, needs of it."""
    changed = attrs.evolve(
        header,
        attributes=header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL),
        base_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
        record_count=0,
    )
    return encode_batch(changed, b"")


def _timestamp_delta(data: Buffer, start: int) -> int:
    _, position = read_uvarint(data, start)
    return read_varlong(data, position + 1)[0]


def _with_timestamp_delta(data: Buffer, start: int, delta: int) -> bytes:
    length, position = read_uvarint(data, start)
    end = position + (length >> 1)
    _, after_delta = read_varlong(data, position + 1)
    encoded = b"".join((data[position : position + 1], varint(delta), data[after_delta:end]))
    return varint(len(encoded)) + encoded
