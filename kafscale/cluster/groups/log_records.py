"""Groups and committed offsets as records of `__consumer_offsets`, in the versions that Kafka 4.1 writes.

    offset of a group in a partition    value version 4; 1 where the client chose when it expires, as Kafka does: that
                                        version has no leader epoch and no topic id
    classic group                       value version 3
    consumer group                      several kinds of records, in `log_forms`

A record without a value takes back what it is about. Of what a member says about itself a record has only what belongs
to the protocol that the group runs; a member that comes back says the rest again when it joins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

import attrs

from kafscale.cluster.groups.common.events import GroupProtocol
from kafscale.cluster.groups.common.records import GroupRecord, MemberRecord, OffsetAndMetadata, TopicPartition
from kafscale.cluster.groups.consumer.records import CoordinatorRecord
from kafscale.cluster.groups.log_forms import is_consumer_group_key, read_log_record
from kafscale.errors import DecodeError
from kafscale.wire.internal_topics import CONSUMER_OFFSETS, decode_key, decode_value, encode_key, encode_value
from kafscale.wire.internal_topics.groups import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kafscale.wire.internal_topics.offsets import OffsetCommitKey, OffsetCommitValue
from kafscale.wire.records import Record

A = TypeVar("A")
V = TypeVar("V")

VERSION_WITH_EXPIRY = 1
NO_EXPIRY = -1


@attrs.frozen
class OffsetChange:
    """A group has committed an offset, or has none there any more."""

    group_id: str
    at: TopicPartition
    offset: OffsetAndMetadata | None


@attrs.frozen
class GroupChange:
    """A classic group has a new generation or has become empty, or there is no such group any more."""

    group_id: str
    record: GroupRecord | None


@attrs.frozen
class ConsumerGroupChange:
    """A consumer group has changed."""

    group_id: str
    record: CoordinatorRecord


@attrs.frozen
class OtherKey:
    """A record of another kind; `key` is None for one that Kafka 4.1 does not know, or only for share groups."""

    key: object | None


Change: TypeAlias = OffsetChange | GroupChange | ConsumerGroupChange | OtherKey


def offset_record(
    group_id: str, at: TopicPartition, offset: OffsetAndMetadata | None, *, timestamp_ms: int = 0
) -> Record:
    """Return the record that says which offset a group has committed in a partition; None takes it back."""
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
    """Return the record of a classic group; None takes it back."""
    key = encode_key(GroupMetadataKey(group=group_id))
    return Record(key, None if record is None else encode_value(_group_value(record)), timestamp_ms)


def _group_value(record: GroupRecord) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=record.protocol_type or "",
        generation=record.generation_id,
        protocol=record.protocol_name,
        leader=record.leader_id,
        current_state_timestamp=record.state_timestamp_ms,
        members=[_member_value(each, record.protocol_name) for each in record.members],
    )


def _member_value(member: MemberRecord, protocol_name: str | None) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=next((each.metadata for each in member.protocols if each.name == protocol_name), b""),
        assignment=member.assignment,
    )


def read_record(record: Record) -> Change:
    """Return what a record says. Raises DecodeError."""
    if record.key is None:
        raise DecodeError("a record without a key")
    key = decode_key(CONSUMER_OFFSETS, record.key)
    match key:
        case OffsetCommitKey():
            at = TopicPartition(key.topic, key.partition)
            return OffsetChange(key.group, at, _read(_read_offset, record.value, key.group))
        case GroupMetadataKey():
            return GroupChange(key.group, _read(_read_group, record.value, key.group))
        case _ if is_consumer_group_key(key):
            read = partial(read_log_record, key)
            return ConsumerGroupChange(key.group_id, _of_group(key.group_id, read, record.value))
        case _:
            return OtherKey(key)


def _read(read: Callable[[bytes], V], value: bytes | None, group_id: str) -> V | None:
    return None if value is None else _of_group(group_id, read, value)


def _of_group(group_id: str, read: Callable[[A], V], value: A) -> V:
    """Read a value. Raises DecodeError, naming the group."""
    try:
        return read(value)
    except DecodeError as exc:
        raise DecodeError(f"group {group_id!r}: {exc}") from exc


def _read_offset(data: bytes) -> OffsetAndMetadata:
    value = decode_value(OffsetCommitValue, data)
    return OffsetAndMetadata(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp_ms=value.commit_timestamp,
        expire_timestamp_ms=None if value.expire_timestamp == NO_EXPIRY else value.expire_timestamp,
        topic_id=value.topic_id,
    )


def _read_group(data: bytes) -> GroupRecord:
    value = decode_value(GroupMetadataValue, data)
    return GroupRecord(
        generation_id=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        leader_id=value.leader,
        state_timestamp_ms=value.current_state_timestamp,
        members=tuple(_read_member(each, value.protocol) for each in value.members),
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
