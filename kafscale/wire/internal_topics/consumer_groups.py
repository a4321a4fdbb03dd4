"""Groups of KIP-848's protocol in `__consumer_offsets` (record types 3 to 8 and 16).

3  the epoch of the group                      6  the epoch of the target assignment
4  its topics, until Kafka 4.0                 7  what each member is to have
5  each member and what it subscribes to       8  what each member has now
                                              16  the topics that a regular expression stands for
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from kafscale.wire.schema import NEVER, Array, Nullable, wire


@attrs.define(kw_only=True)
class TopicPartitions:
    topic_id: bytes = wire("uuid")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class ConsumerGroupMetadataValue:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, 0
    WRITTEN_VERSION: ClassVar = 0

    epoch: int = wire("int32")
    metadata_hash: int = wire("int64", tag=0, default=0)  # of the topics subscribed to; it takes the place of type 4


@attrs.frozen(kw_only=True)
class ConsumerGroupMetadataKey:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, NEVER
    RECORD_TYPE: ClassVar = 3
    VALUE: ClassVar = ConsumerGroupMetadataValue

    group_id: str = wire("string")


@attrs.define(kw_only=True)
class PartitionMetadata:
    partition: int = wire("int32")
    racks: list[str] = wire(Array("string"), factory=list)


@attrs.define(kw_only=True)
class TopicMetadata:
    topic_id: bytes = wire("uuid")
    topic_name: str = wire("string")
    num_partitions: int = wire("int32")
    partition_metadata: list[PartitionMetadata] = wire(Array(PartitionMetadata), factory=list)


@attrs.define(kw_only=True)
class ConsumerGroupPartitionMetadataValue:
    """Kafka 4.1 only deletes such records, which 4.0 wrote."""

    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, 0
    WRITTEN_VERSION: ClassVar = 0

    topics: list[TopicMetadata] = wire(Array(TopicMetadata), factory=list)


@attrs.frozen(kw_only=True)
class ConsumerGroupPartitionMetadataKey:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, NEVER
    RECORD_TYPE: ClassVar = 4
    VALUE: ClassVar = ConsumerGroupPartitionMetadataValue

    group_id: str = wire("string")


@attrs.define(kw_only=True)
class ClassicProtocol:
    name: str = wire("string")
    metadata: bytes = wire("bytes")


@attrs.define(kw_only=True)
class ClassicMemberMetadata:
    session_timeout_ms: int = wire("int32")
    supported_protocols: list[ClassicProtocol] = wire(Array(ClassicProtocol), factory=list)


@attrs.define(kw_only=True)
class ConsumerGroupMemberMetadataValue:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, 0
    WRITTEN_VERSION: ClassVar = 0

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


@attrs.frozen(kw_only=True)
class ConsumerGroupMemberMetadataKey:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, NEVER
    RECORD_TYPE: ClassVar = 5
    VALUE: ClassVar = ConsumerGroupMemberMetadataValue

    group_id: str = wire("string")
    member_id: str = wire("string")


@attrs.define(kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, 0
    WRITTEN_VERSION: ClassVar = 0

    assignment_epoch: int = wire("int32")


@attrs.frozen(kw_only=True)
class ConsumerGroupTargetAssignmentMetadataKey:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, NEVER
    RECORD_TYPE: ClassVar = 6
    VALUE: ClassVar = ConsumerGroupTargetAssignmentMetadataValue

    group_id: str = wire("string")


@attrs.define(kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, 0
    WRITTEN_VERSION: ClassVar = 0

    topic_partitions: list[TopicPartitions] = wire(Array(TopicPartitions), factory=list)


@attrs.frozen(kw_only=True)
class ConsumerGroupTargetAssignmentMemberKey:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, NEVER
    RECORD_TYPE: ClassVar = 7
    VALUE: ClassVar = ConsumerGroupTargetAssignmentMemberValue

    group_id: str = wire("string")
    member_id: str = wire("string")


@attrs.define(kw_only=True)
class ConsumerGroupCurrentMemberAssignmentValue:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, 0
    WRITTEN_VERSION: ClassVar = 0

    member_epoch: int = wire("int32")
    previous_member_epoch: int = wire("int32")
    state: int = wire("int8")  # 0 stable, 1 has partitions to give up, 2 waits for those of others, 127 unknown
    assigned_partitions: list[TopicPartitions] = wire(Array(TopicPartitions), factory=list)
    partitions_pending_revocation: list[TopicPartitions] = wire(Array(TopicPartitions), factory=list)


@attrs.frozen(kw_only=True)
class ConsumerGroupCurrentMemberAssignmentKey:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, NEVER
    RECORD_TYPE: ClassVar = 8
    VALUE: ClassVar = ConsumerGroupCurrentMemberAssignmentValue

    group_id: str = wire("string")
    member_id: str = wire("string")


@attrs.define(kw_only=True)
class ConsumerGroupRegularExpressionValue:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, 0
    WRITTEN_VERSION: ClassVar = 0

    topics: list[str] = wire(Array("string"), factory=list)
    version: int = wire("int64")  # of the metadata that it was matched with
    timestamp: int = wire("int64")  # in milliseconds


@attrs.frozen(kw_only=True)
class ConsumerGroupRegularExpressionKey:
    MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, NEVER
    RECORD_TYPE: ClassVar = 16
    VALUE: ClassVar = ConsumerGroupRegularExpressionValue

    group_id: str = wire("string")
    regular_expression: str = wire("string")
