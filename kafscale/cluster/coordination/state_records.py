"""The records of `__transaction_state`: between the values that a coordinator has and the bytes that Kafka writes.

Kafka 4.1 writes neither the previous nor the next producer id. They are written here where a producer goes over to a
new id, since a coordinator that has only the log could not recognise it then; all other records are as Kafka's.
"""

from __future__ import annotations

import time
from typing import Any

from kafscale.cluster.transactions.values import Marker, PartitionsOfTopic, StateRecord, TransactionLogValue
from kafscale.wire.control_records import EndMarker
from kafscale.wire.internal_topics import TRANSACTION_STATE, decode_key, decode_value, encode_key, encode_value
from kafscale.wire.internal_topics import transactions as wire
from kafscale.wire.records import Record


def encode_state(state: StateRecord, now_ms: int) -> Record:
    """Return the record of a state, or the one that takes it back."""
    key: Any = wire.TransactionLogKey(transactional_id=state.transactional_id)
    value = None if state.value is None else encode_value(_wire_value(state.value))
    return Record(key=encode_key(key), value=value, timestamp_ms=now_ms)


def _wire_value(value: TransactionLogValue) -> Any:
    partitions = value.transaction_partitions
    return wire.TransactionLogValue(
        producer_id=value.producer_id,
        previous_producer_id=-1 if value.previous_producer_id == value.producer_id else value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        transaction_timeout_ms=value.transaction_timeout_ms,
        transaction_status=value.transaction_status,
        transaction_partitions=None
        if partitions is None
        else [wire.PartitionsSchema(topic=each.topic, partition_ids=list(each.partition_ids)) for each in partitions],
        transaction_last_update_timestamp_ms=value.transaction_last_update_timestamp_ms,
        transaction_start_timestamp_ms=value.transaction_start_timestamp_ms,
        client_transaction_version=value.client_transaction_version,
    )


def decode_state(record: Record) -> StateRecord | None:
    """Return what a record says; None for one of a type that is not known. Raises DecodeError."""
    key = decode_key(TRANSACTION_STATE, record.key or b"")
    if key is None:
        return None
    if record.value is None:
        return StateRecord(key.transactional_id, None)
    value = decode_value(key.VALUE, record.value)
    partitions = value.transaction_partitions
    return StateRecord(
        key.transactional_id,
        TransactionLogValue(
            producer_id=value.producer_id,
            previous_producer_id=value.producer_id if value.previous_producer_id < 0 else value.previous_producer_id,
            next_producer_id=value.next_producer_id,
            producer_epoch=value.producer_epoch,
            transaction_timeout_ms=value.transaction_timeout_ms,
            transaction_status=value.transaction_status,
            transaction_partitions=None
            if partitions is None
            else tuple(PartitionsOfTopic(each.topic, tuple(each.partition_ids)) for each in partitions),
            transaction_last_update_timestamp_ms=value.transaction_last_update_timestamp_ms,
            transaction_start_timestamp_ms=value.transaction_start_timestamp_ms,
            client_transaction_version=value.client_transaction_version,
        ),
    )


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
