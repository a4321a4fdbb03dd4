"""The records of `__transaction_state`: between the values that a coordinator has and the bytes that Kafka writes.

Kafka 4.1 writes neither the previous nor the next producer id. They are written here where a producer goes over to a
new id, since a coordinator that has only the log could not recognise it then; all other records are as Kafka's.
"""

from __future__ import annotations

import struct
import time

from kafscale.cluster.transactions.values import NO_PRODUCER_ID, Marker, StateRecord
from kafscale.wire.control_records import EndMarker
from kafscale.wire.internal_topics import TRANSACTION_STATE, decode_key, decode_value
from kafscale.wire.internal_topics.transaction_state import TransactionLogKey, TransactionLogValue
from kafscale.wire.primitives import uvarint
from kafscale.wire.records import Record

_key_head = struct.Struct(">hh")  # record type, length of the transactional id
_head = struct.Struct(">hqhib")  # version, producer id and epoch, timeout, status
_partition = struct.Struct(">i")
_times = struct.Struct(">qq")
_id = struct.Struct(">q")
_version = struct.Struct(">h")
_NO_TAGS = b"\0"
_PREVIOUS_TAG, _NEXT_TAG, _CLIENT_VERSION_TAG = b"\0\x08", b"\1\x08", b"\2\x02"  # number and length of each


def encode_state(state: StateRecord, now_ms: int) -> Record:
    """Return the record of a state, or the one that takes it back."""
    name = state.transactional_id.encode()
    key = _key_head.pack(TransactionLogKey.RECORD_TYPE, len(name)) + name
    return Record(key, None if state.value is None else _encode_value(state.value), now_ms)


def _encode_value(value: TransactionLogValue) -> bytes:
    """Return what `encode_value` would make of it, in a third of the time: each transaction writes three of these."""
    parts = [
        _head.pack(
            TransactionLogValue.WRITTEN_VERSION,
            value.producer_id,
            value.producer_epoch,
            value.transaction_timeout_ms,
            value.transaction_status,
        )
    ]
    topics = value.transaction_partitions
    parts.append(uvarint(0 if topics is None else len(topics) + 1))
    for topic in topics or ():
        name, indexes = topic.topic.encode(), topic.partition_ids
        parts += uvarint(len(name) + 1), name, uvarint(len(indexes) + 1)
        parts += map(_partition.pack, indexes)
        parts.append(_NO_TAGS)
    parts.append(_times.pack(value.transaction_last_update_timestamp_ms, value.transaction_start_timestamp_ms))
    tags = []
    if value.previous_producer_id not in (value.producer_id, NO_PRODUCER_ID):
        tags.append(_PREVIOUS_TAG + _id.pack(value.previous_producer_id))
    if value.next_producer_id != NO_PRODUCER_ID:
        tags.append(_NEXT_TAG + _id.pack(value.next_producer_id))
    if value.client_transaction_version:
        tags.append(_CLIENT_VERSION_TAG + _version.pack(value.client_transaction_version))
    return b"".join((*parts, uvarint(len(tags)), *tags))


def decode_state(record: Record) -> StateRecord | None:
    """Return the state of a record; None for a record type that is not known here. Raises DecodeError."""
    key = decode_key(TRANSACTION_STATE, record.key or b"")
    if key is None:
        return None
    if record.value is None:
        return StateRecord(key.transactional_id, None)
    value = decode_value(TransactionLogValue, record.value)
    if value.previous_producer_id < 0:
        value.previous_producer_id = value.producer_id
    return StateRecord(key.transactional_id, value)


def end_marker(marker: Marker) -> EndMarker:
    """Return what is written into the partition."""
    return EndMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        is_commit=marker.committed,
        transaction_version=marker.transaction_version,
    )


def now_ms() -> int:
    """Return the time, in milliseconds."""
    return time.time_ns() // 1_000_000
