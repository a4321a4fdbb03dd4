"""Groups and committed offsets as records of `__consumer_offsets`, in the versions that Kafka 4.1 writes.

    committed offset    value version 4; 1 where the client chose when it expires, as in Kafka: that version has neither
                        leader epoch nor topic id
    classic group       value version 3
    consumer group      several kinds of records (KIP-848)

A member of a classic group is stored with its metadata for the protocol that the group runs; it sends the metadata for
other protocols again when it rejoins.
"""

from __future__ import annotations

from typing import Any

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.errors import DecodeError
from kafscale.wire.internal_topics import CONSUMER_OFFSETS, decode_key, decode_value, encode_key, encode_value
from kafscale.wire.internal_topics.consumer_offsets import (
    NO_EXPIRY,
    ConsumerOffsetsKey,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kafscale.wire.records import Record

VERSION_WITH_EXPIRY = 1


@attrs.frozen
class CoordinatorRecord:
    """A key with its value, which is a `key.VALUE`; None deletes the value."""

    key: ConsumerOffsetsKey
    value: Any

    def encode(self, timestamp_ms: int = 0) -> Record:
        """Return the record as it is in the log."""
        if self.value is None:
            return Record(encode_key(self.key), None, timestamp_ms)
        expires = isinstance(self.value, OffsetCommitValue) and self.value.expire_timestamp_ms != NO_EXPIRY
        value = encode_value(self.value, VERSION_WITH_EXPIRY if expires else None)
        return Record(encode_key(self.key), value, timestamp_ms)


def read_record(record: Record) -> CoordinatorRecord | None:
    """Return a record of the log; None for a record type that is not known here. Raises DecodeError."""
    if record.key is None:
        raise DecodeError("a record without a key")
    key = decode_key(CONSUMER_OFFSETS, record.key)
    if key is None or record.value is None:
        return None if key is None else CoordinatorRecord(key, None)
    try:
        return CoordinatorRecord(key, decode_value(key.VALUE, record.value))
    except DecodeError as exc:
        raise DecodeError(f"group {key.group_id!r}: {exc}") from exc


def offset_record(group_id: str, at: TopicPartition, offset: OffsetCommitValue | None) -> CoordinatorRecord:
    """Return the record of an offset that a group has committed in a partition; None deletes it."""
    return CoordinatorRecord(OffsetCommitKey(group_id=group_id, topic=at.topic, partition=at.partition), offset)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """Return the record that deletes a classic group."""
    return CoordinatorRecord(GroupMetadataKey(group_id), None)
