"""Records of `__consumer_offsets`: the classes of keys by record type are `CONSUMER_OFFSETS`.

1  an offset that a group has committed           6  the epoch of the target assignment
2  a classic group: a generation with members     7  the target assignment of each member
3  the epoch of a consumer group (KIP-848)        8  the current assignment of each member
4  its topics, until Kafka 4.0                   16  the topics that a regular expression has found
5  each member and its subscription

Kafka has more: type 0 is of Kafka 0.8, and 9 to 15 and 17 on are of share and Streams groups. State machines use these
classes as values: nothing changes one after it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias, get_args

import attrs

from kafscale.wire.internal_topics.coding import Key, Value
from kafscale.wire.schema import Array, Nullable, wire

NO_EXPIRY = -1  # the offset is kept for the broker's retention
NO_TOPIC_ID = bytes(16)  # of an offset whose topic id is not known


@attrs.define(kw_only=True)
class OffsetCommitValue(Value, versions=(0, 4), flexible=4, written=4):
    """Kafka writes version 4, and 1 where the client chose when the offset expires, which says no leader epoch."""

    offset: int = wire("int64")
    leader_epoch: int = wire("int32", since=3, default=-1)
    metadata: str = wire("string", default="")
    commit_timestamp_ms: int = wire("int64")
    expire_timestamp_ms: int = wire("int64", since=1, until=1, default=NO_EXPIRY)
    topic_id: bytes = wire("uuid", since=4, tag=0, default=NO_TOPIC_ID)


@attrs.frozen
class OffsetCommitKey(Key, record_type=1, value=OffsetCommitValue):
    group_id: str = wire("string")
    topic: str = wire("string")
    partition: int = wire("int32")


@attrs.define(kw_only=True)
class MemberMetadata:
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", since=3, default=None)
    client_id: str = wire("string")
    client_host: str = wire("string")
    rebalance_timeout_ms: int = wire("int32", since=1, default=-1)  # -1: that of the session
    session_timeout_ms: int = wire("int32")
    subscription: bytes = wire("bytes")  # for consumers a ConsumerProtocolSubscription behind its version
    assignment: bytes = wire("bytes")


@attrs.define(kw_only=True)
class GroupMetadataValue(Value, versions=(0, 4), flexible=4, written=3):
    """Kafka 4.1 writes version 3, although it reads 4, so that older brokers can still read it (KIP-915)."""

    protocol_type: str = wire("string")
    generation_id: int = wire("int32")
    protocol_name: str | None = wire("string")
    leader_id: str | None = wire("string")
    state_timestamp_ms: int = wire("int64", since=2, default=-1)  # since when the group is stable or empty
    members: list[MemberMetadata] = wire(Array(MemberMetadata), factory=list)


@attrs.frozen
class GroupMetadataKey(Key, record_type=2, value=GroupMetadataValue):
    group_id: str = wire("string")


@attrs.define
class TopicPartitions:
    topic_id: bytes = wire("uuid")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class ConsumerGroupMetadataValue(Value):
    """The epoch rises with every change that needs another assignment."""

    epoch: int = wire("int32")
    metadata_hash: int = wire("int64", tag=0, default=0)  # of the subscribed topics; it takes the place of type 4


@attrs.frozen
class ConsumerGroupMetadataKey(Key, record_type=3, value=ConsumerGroupMetadataValue):
    # the group exists for as long as this key has a value
    group_id: str = wire("string")


@attrs.define(kw_only=True)
class PartitionMetadata:
    partition: int = wire("int32")
    racks: list[str] = wire(Array("string"), factory=list)


@attrs.define(kw_only=True)
class SubscribedTopicMetadata:
    topic_id: bytes = wire("uuid")
    topic_name: str = wire("string")
    num_partitions: int = wire("int32")
    partition_metadata: list[PartitionMetadata] = wire(Array(PartitionMetadata), factory=list)


@attrs.define(kw_only=True)
class ConsumerGroupPartitionMetadataValue(Value):
    """The subscribed topics as Kafka 4.0 kept them: read and deleted, never written."""

    topics: list[SubscribedTopicMetadata] = wire(Array(SubscribedTopicMetadata), factory=list)


@attrs.frozen
class ConsumerGroupPartitionMetadataKey(Key, record_type=4, value=ConsumerGroupPartitionMetadataValue):
    group_id: str = wire("string")


@attrs.define
class ClassicProtocol:
    name: str = wire("string")
    metadata: bytes = wire("bytes")


@attrs.define(kw_only=True)
class ClassicMemberMetadata:
    session_timeout_ms: int = wire("int32")
    supported_protocols: list[ClassicProtocol] = wire(Array(ClassicProtocol), factory=list)


@attrs.define(kw_only=True)
class ConsumerGroupMemberMetadataValue(Value):
    instance_id: str | None = wire("string", default=None)
    rack_id: str | None = wire("string", default=None)
    client_id: str = wire("string")
    client_host: str = wire("string")
    subscribed_topic_names: list[str] = wire(Array("string"), factory=list)
    subscribed_topic_regex: str | None = wire("string", default=None)  # Kafka writes "" for none
    rebalance_timeout_ms: int = wire("int32", default=-1)
    server_assignor: str | None = wire("string", default=None)
    # of a member that still speaks the classic protocol; Kafka takes a record without the tag for one of such a member
    classic_member_metadata: ClassicMemberMetadata | None = wire(
        Nullable(ClassicMemberMetadata), tag=0, always=True, default=None
    )


@attrs.frozen
class ConsumerGroupMemberMetadataKey(Key, record_type=5, value=ConsumerGroupMemberMetadataValue):
    # the member exists for as long as this key has a value
    group_id: str = wire("string")
    member_id: str = wire("string")


@attrs.define(kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue(Value):
    """The group epoch of the target assignment; written after all of its members."""

    assignment_epoch: int = wire("int32")


@attrs.frozen
class ConsumerGroupTargetAssignmentMetadataKey(Key, record_type=6, value=ConsumerGroupTargetAssignmentMetadataValue):
    group_id: str = wire("string")


@attrs.define(kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue(Value):
    topic_partitions: list[TopicPartitions] = wire(Array(TopicPartitions), factory=list)


@attrs.frozen
class ConsumerGroupTargetAssignmentMemberKey(Key, record_type=7, value=ConsumerGroupTargetAssignmentMemberValue):
    group_id: str = wire("string")
    member_id: str = wire("string")


@attrs.define(kw_only=True)
class ConsumerGroupCurrentMemberAssignmentValue(Value):
    member_epoch: int = wire("int32")
    previous_member_epoch: int = wire("int32")
    state: int = wire("int8")  # a `MemberState`
    assigned_partitions: list[TopicPartitions] = wire(Array(TopicPartitions), factory=list)
    partitions_pending_revocation: list[TopicPartitions] = wire(Array(TopicPartitions), factory=list)


@attrs.frozen
class ConsumerGroupCurrentMemberAssignmentKey(Key, record_type=8, value=ConsumerGroupCurrentMemberAssignmentValue):
    group_id: str = wire("string")
    member_id: str = wire("string")


@attrs.define(kw_only=True)
class ConsumerGroupRegularExpressionValue(Value):
    topics: list[str] = wire(Array("string"), factory=list)
    version: int = wire("int64")  # of the metadata in which topics were searched
    timestamp_ms: int = wire("int64")


@attrs.frozen
class ConsumerGroupRegularExpressionKey(Key, record_type=16, value=ConsumerGroupRegularExpressionValue):
    group_id: str = wire("string")
    regular_expression: str = wire("string")


ConsumerGroupKey: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
ConsumerOffsetsKey: TypeAlias = OffsetCommitKey | GroupMetadataKey | ConsumerGroupKey

CONSUMER_OFFSETS: Final[Mapping[int, type]] = MappingProxyType(
    {key.RECORD_TYPE: key for key in get_args(ConsumerOffsetsKey)}
)
