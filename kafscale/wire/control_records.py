"""The marker that ends a transaction: a control batch of one record, which no client writes or is shown (KIP-98).

key     i16 version = 0 | i16 type: 0 abort, 1 commit
value   i16 version = 0 | i32 coordinator epoch
"""

from __future__ import annotations

import struct
from typing import Final

import attrs

from kafscale.errors import CorruptBatch
from kafscale.wire.batch_header import CONTROL, HEADER_BYTES, TRANSACTIONAL, BatchHeader, set_crc
from kafscale.wire.records import Record, build_batch, iterate_records

ABORT: Final = 0
COMMIT: Final = 1
MARKER_MAX_BYTES: Final = 1 << 10  # what the records of a marker may take unpacked: they have some 20 bytes
MARKER_BATCH_MAX_BYTES: Final = HEADER_BYTES + 64
"""A longer batch is not a marker, which has 17 bytes behind its header."""

_NO_SEQUENCE: Final = -1
_key = struct.Struct(">hh")
_value = struct.Struct(">hi")


@attrs.frozen(kw_only=True)
class EndMarker:
    """The end of a producer's transaction in one partition.

    `transaction_version` is not in the log: from 2 on the marker's epoch is above that of the records (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = attrs.field(default=0, eq=False)

    @property
    def is_above(self) -> bool:
        return self.transaction_version >= 2


def encode_marker(marker: EndMarker, timestamp_ms: int) -> bytearray:
    batch = bytearray(_COMMIT_BATCH if marker.is_commit else _ABORT_BATCH)
    _varying.pack_into(
        batch, _VARYING_AT, timestamp_ms, timestamp_ms, marker.producer_id, marker.producer_epoch, _NO_SEQUENCE
    )
    _coordinator_epoch.pack_into(batch, len(batch) - _COORDINATOR_EPOCH_FROM_END, marker.coordinator_epoch)
    with memoryview(batch) as view:
        set_crc(view)
    return batch


def _pattern(kind: int) -> bytes:
    record = Record(key=_key.pack(0, kind), value=_value.pack(0, 0))
    return bytes(build_batch([record], attributes=TRANSACTIONAL | CONTROL))


# Markers are alike but for few bytes: to build one from its record takes 7 us, to fill it in 1.5.
_COMMIT_BATCH: Final = _pattern(COMMIT)
_ABORT_BATCH: Final = _pattern(ABORT)
_VARYING_AT: Final = 27
_varying = struct.Struct(">qqqhi")  # base and max timestamp, producer id, epoch, sequence
_coordinator_epoch = struct.Struct(">i")
_COORDINATOR_EPOCH_FROM_END: Final = 5  # behind it is the number of headers, a varint
_KINDS: Final = {
    batch[HEADER_BYTES:-_COORDINATOR_EPOCH_FROM_END]: kind
    for kind, batch in ((COMMIT, _COMMIT_BATCH), (ABORT, _ABORT_BATCH))
}


def parse_marker(batch: memoryview, header: BatchHeader) -> EndMarker | None:
    """Return the marker; None for another control record or an empty batch. Raises CorruptBatch, KafkaError."""
    marker = _parse_usual(batch, header)
    if marker is not None:
        return marker
    for record in iterate_records(batch, max_decompressed_bytes=MARKER_MAX_BYTES):
        key, value = record.key or b"", record.value or b""
        if len(key) < _key.size:
            break
        kind = _key.unpack_from(key)[1]
        if kind not in (ABORT, COMMIT):
            return None
        if len(value) < _value.size:
            break
        return EndMarker(
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            coordinator_epoch=_value.unpack_from(value)[1],
            is_commit=kind == COMMIT,
        )
    else:
        return None
    raise CorruptBatch(f"the control record at offset {header.base_offset} has too few bytes")


def _parse_usual(batch: memoryview, header: BatchHeader) -> EndMarker | None:
    """Parse a batch of `encode_marker`'s form, in a quarter of the time that its record takes."""
    records = bytes(batch[HEADER_BYTES : header.size_bytes])
    kind = _KINDS.get(records[:-_COORDINATOR_EPOCH_FROM_END])
    if kind is None or records[-1] or header.codec or header.record_count != 1:
        return None
    (coordinator_epoch,) = _coordinator_epoch.unpack_from(records, len(records) - _COORDINATOR_EPOCH_FROM_END)
    return EndMarker(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        coordinator_epoch=coordinator_epoch,
        is_commit=kind == COMMIT,
    )
