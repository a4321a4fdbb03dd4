"""Groups and committed offsets as records of `__consumer_offsets`, in the versions that Kafka 4.1 writes.

    committed offset    value version 4; 1 where the client chose when it expires, as in Kafka: that version has neither
                        leader epoch nor topic id
    classic group       value version 3
    consumer group      several kinds of records (KIP-848)

A record without a value deletes the value of its key. A member of a classic group is stored with its metadata for the
protocol that the group runs; it sends the metadata for other protocols again when it rejoins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.events import GroupProtocol, GroupRecord, MemberRecord, OffsetAndMetadata
from kafscale.cluster.groups.consumer.events import CoordinatorRecord
from kafscale.errors import DecodeError
from kafscale.wire.internal_topics import CONSUMER_OFFSETS, decode_key, decode_value, encode_key, encode_value
from kafscale.wire.internal_topics.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kafscale.wire.records import Record

V = TypeVar("V")

VERSION_WITH_EXPIRY = 1
NO_EXPIRY = -1


@attrs.frozen
class OffsetChange:
    """A committed offset; None: it is deleted."""

    group_id: str
    at: TopicPartition
    offset: OffsetAndMetadata | None


@attrs.frozen
class GroupChange:
    """A classic group with a new generation, or without members; None: the group is deleted."""

    group_id: str
    record: GroupRecord | None


@attrs.frozen
class ConsumerGroupChange:
    """One record of a consumer group."""

    group_id: str
    record: CoordinatorRecord


Change: TypeAlias = OffsetChange | GroupChange | ConsumerGroupChange


def offset_record(
    group_id: str, at: TopicPartition, offset: OffsetAndMetadata | None, *, timestamp_ms: int = 0
) -> Record:
    """Return the record of an offset that a group has committed in a partition; None deletes it."""
    key = encode_key(OffsetCommitKey(group=group_id, topic=at.topic, partition=at.partition))
    return Record(key, None if offset is None else _offset_value(offset), timestamp_ms)


def _offset_value(offset: OffsetAndMetadata) -> bytes:
    expires = offset.expire_timestamp_ms is not None
    value = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=-1 if expires else offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
        expire_timestamp=NO_EXPIRY if offset.expire_timestamp_ms is None else offset.expire_timestamp_ms,
        topic_id=bytes(16) if expires else offset.topic_id,
    )
    return encode_value(value, VERSION_WITH_EXPIRY) if expires else encode_value(value)


def group_record(group_id: str, record: GroupRecord | None, *, timestamp_ms: int = 0) -> Record:
    """Return the record of a classic group; None deletes it."""
    key = encode_key(GroupMetadataKey(group=group_id))
    return Record(key, None if record is None else encode_value(_group_value(record)), timestamp_ms)


def _group_value(record: GroupRecord) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=record.protocol_type or "",
        generation=record.generation_id,
        protocol=record.protocol_name,
        leader=record.leader_id,
        current_state_timestamp=record.state_timestamp_ms,
        members=[_member_value(member, record.protocol_name) for member in record.members],
    )


def _member_value(member: MemberRecord, protocol_name: str | None) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=next((one.metadata for one in member.protocols if one.name == protocol_name), b""),
        assignment=member.assignment,
    )


def consumer_group_records(records: Iterable[CoordinatorRecord], *, timestamp_ms: int = 0) -> list[Record]:
    """Return records of a consumer group as they are written."""
    return [
        Record(encode_key(record.key), None if record.value is None else encode_value(record.value), timestamp_ms)
        for record in records
    ]


def read_record(record: Record) -> Change | None:
    """Return what a record changes; None for a record type that is not known here. Raises DecodeError."""
    if record.key is None:
        raise DecodeError("a record without a key")
    key = decode_key(CONSUMER_OFFSETS, record.key)
    match key:
        case None:
            return None
        case OffsetCommitKey():
            at = TopicPartition(key.topic, key.partition)
            return OffsetChange(key.group, at, _read(key.group, _read_offset, OffsetCommitValue, record.value))
        case GroupMetadataKey():
            return GroupChange(key.group, _read(key.group, _read_group, GroupMetadataValue, record.value))
        case _:
            value = _read(key.group_id, lambda decoded: decoded, key.VALUE, record.value)
            return ConsumerGroupChange(key.group_id, CoordinatorRecord(key, value))


def _read(group_id: str, read: Callable[[Any], V], cls: type, value: bytes | None) -> V | None:
    """Decode a value. Raises DecodeError, naming the group."""
    if value is None:
        return None
    try:
        return read(decode_value(cls, value))
    except DecodeError as exc:
        raise DecodeError(f"group {group_id!r}: {exc}") from exc


def _read_offset(value: OffsetCommitValue) -> OffsetAndMetadata:
    return OffsetAndMetadata(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp_ms=value.commit_timestamp,
        expire_timestamp_ms=None if value.expire_timestamp == NO_EXPIRY else value.expire_timestamp,
        topic_id=value.topic_id,
    )


def _read_group(value: GroupMetadataValue) -> GroupRecord:
    return GroupRecord(
        generation_id=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        leader_id=value.leader,
        state_timestamp_ms=value.current_state_timestamp,
        members=tuple(_read_member(member, value.protocol) for member in value.members),
    )


def _read_member(value: MemberMetadata, protocol_name: str | None) -> MemberRecord:
    # A member of Kafka 0.10.0 and before has no rebalance timeout of its own: it is the session's.
    rebalance_timeout_ms = value.session_timeout if value.rebalance_timeout < 0 else value.rebalance_timeout
    return MemberRecord(
        member_id=value.member_id,
        group_instance_id=value.group_instance_id,
        client_id=value.client_id,
        client_host=value.client_host,
        session_timeout_ms=value.session_timeout,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocols=() if protocol_name is None else (GroupProtocol(protocol_name, value.subscription),),
        assignment=value.assignment,
    )
