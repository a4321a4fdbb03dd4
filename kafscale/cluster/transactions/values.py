"""Values of transaction coordinators: limits, states, markers, and the records of `__transaction_state`.

Kafka 4.1 writes neither the previous nor the next producer id into a record. Here both are written when a producer goes
over to a new id, because a coordinator that has only the log could not recognise it otherwise. All other records are as
Kafka's. The last epoch (KIP-360) is in no record, as in Kafka.
"""

from __future__ import annotations

import enum
import struct
import time

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.wire.control_records import EndMarker
from kafscale.wire.internal_topics import TRANSACTION_STATE, decode_key, decode_value
from kafscale.wire.internal_topics.transaction_state import PartitionsSchema, TransactionLogKey, TransactionLogValue
from kafscale.wire.primitives import uvarint
from kafscale.wire.records import Record


class TransactionState(enum.IntEnum):
    """State of a transactional id, with the number that records have."""

    EMPTY = 0  # no transaction since the producer got its id
    ONGOING = 1
    PREPARE_COMMIT = 2  # decided, but markers are missing
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4  # every marker is written
    COMPLETE_ABORT = 5
    DEAD = 6  # the id has expired; a tombstone is written instead
    PREPARE_EPOCH_FENCE = 7  # fencing, before PREPARE_ABORT; never written, as in Kafka

    __hash__ = int.__hash__  # an enumeration's own hash is slow Python code

    @property
    def kafka_name(self) -> str:
        """The name that DescribeTransactions and ListTransactions use."""
        return _NAMES[self]

    @property
    def is_prepared(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def may_expire(self) -> bool:
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    def may_follow(self, former: TransactionState) -> bool:
        return former in _FORMER[self]


_NAMES = {state: state.name.title().replace("_", "") for state in TransactionState}
STATES_BY_NAME = {name: state for state, name in _NAMES.items()}

_S = TransactionState
_BETWEEN_TRANSACTIONS = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
_FORMER: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: _BETWEEN_TRANSACTIONS,
    _S.ONGOING: _BETWEEN_TRANSACTIONS | {_S.ONGOING},
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    # Version 2 also aborts where nothing was enrolled: the client can't know whether its first batch arrived.
    _S.PREPARE_ABORT: _BETWEEN_TRANSACTIONS | {_S.ONGOING, _S.PREPARE_EPOCH_FENCE},
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: _BETWEEN_TRANSACTIONS,
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}


NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP_MS = -1
PRODUCER_EPOCH_MAX = 32767  # an int16


@attrs.frozen
class StateRecord:
    """A record of `__transaction_state`; without a value it is a tombstone."""

    transactional_id: str
    value: TransactionLogValue | None


@attrs.frozen(kw_only=True)
class Marker:
    """A control record that ends a producer's transaction in one partition."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int  # from 2 on the marker's epoch is above that of the records


def partitions_by_topic(partitions: frozenset[TopicPartition]) -> list[PartitionsSchema]:
    """Return partitions in the form of records, in order: equal states are equal bytes."""
    if len(partitions) == 1:  # as in most transactions
        (only,) = partitions
        return [PartitionsSchema(only.topic, [only.partition])]
    indexes: dict[str, list[int]] = {}
    for at in sorted(partitions):
        indexes.setdefault(at.topic, []).append(at.partition)
    return [PartitionsSchema(topic, of_topic) for topic, of_topic in indexes.items()]


# Characters of a transactional id, as of a group's: both are kept in memory. Kafka allows a string of 32 KiB.
TRANSACTIONAL_ID_MAX_COUNT = 1024
# Decisions of one call of `due`; other tasks run between two calls.
DUE_MAX_COUNT = 500


_key_head = struct.Struct(">hh")  # record type, length of the transactional id
_head = struct.Struct(">hqhib")  # version, producer id and epoch, timeout, status
_partition = struct.Struct(">i")
_times = struct.Struct(">qq")
_id = struct.Struct(">q")
_version = struct.Struct(">h")
_NO_TAGS = b"\0"
_PREVIOUS_TAG, _NEXT_TAG, _CLIENT_VERSION_TAG = b"\0\x08", b"\1\x08", b"\2\x02"  # number and length of each


def encode_state(state: StateRecord, now_ms: int) -> Record:
    name = state.transactional_id.encode()
    key = _key_head.pack(TransactionLogKey.RECORD_TYPE, len(name)) + name
    return Record(key, None if state.value is None else _encode_value(state.value), now_ms)


def _encode_value(value: TransactionLogValue) -> bytes:
    """Return the bytes of `encode_value`, in a third of the time: each transaction writes three values."""
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
    """Return the state in a record, or None for an unknown record type. Raises DecodeError."""
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
    return EndMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        is_commit=marker.committed,
        transaction_version=marker.transaction_version,
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000
