"""What a consumer group writes to `__consumer_offsets`, as values with exactly the fields of Kafka's 4.1 schemas.

A record is a key with a value, or with None, which takes back what was written under that key. How they are encoded is
not known here: the schema of each class is Kafka's of the same name.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from kafscale.cluster.groups.assignors.partitions import Partitions


@attrs.frozen
class TopicPartitions:
    """Some partitions of one topic. The topic id is 16 bytes."""

    topic_id: bytes
    partitions: tuple[int, ...]


@attrs.frozen
class ConsumerGroupMetadataKey:
    """A group exists for as long as there is a value under this key."""

    group_id: str


@attrs.frozen(kw_only=True)
class ConsumerGroupMetadataValue:
    """The epoch rises with every change that calls for another assignment; the hash is over the subscribed topics."""

    epoch: int
    metadata_hash: int = 0


@attrs.frozen
class ConsumerGroupPartitionMetadataKey:
    """Kafka 4.0 kept the subscribed topics under this key; 4.1 keeps a hash in their place and deletes it."""

    group_id: str


@attrs.frozen(kw_only=True)
class PartitionMetadata:
    """The racks of one partition."""

    partition: int
    racks: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class TopicMetadata:
    """A subscribed topic as Kafka 4.0 kept it."""

    topic_id: bytes
    topic_name: str
    num_partitions: int
    partition_metadata: tuple[PartitionMetadata, ...] = ()


@attrs.frozen(kw_only=True)
class ConsumerGroupPartitionMetadataValue:
    """The subscribed topics as Kafka 4.0 kept them; read and deleted, never written."""

    topics: tuple[TopicMetadata, ...] = ()


@attrs.frozen
class ConsumerGroupMemberMetadataKey:
    """A member exists for as long as there is a value under this key."""

    group_id: str
    member_id: str


@attrs.frozen(kw_only=True)
class ClassicProtocol:
    """One protocol that a member of the classic protocol knows, with what it says about itself for it."""

    name: str
    metadata: bytes


@attrs.frozen(kw_only=True)
class ClassicMemberMetadata:
    """What only a member of the classic protocol has."""

    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]


@attrs.frozen(kw_only=True)
class ConsumerGroupMemberMetadataValue:
    """What a member says about itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic_member_metadata: ClassicMemberMetadata | None = None


@attrs.frozen
class ConsumerGroupTargetAssignmentMetadataKey:
    """The key of the epoch of a group's target assignment."""

    group_id: str


@attrs.frozen(kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    """The group epoch that the target assignment was made for; written after all its members."""

    assignment_epoch: int


@attrs.frozen
class ConsumerGroupTargetAssignmentMemberKey:
    """The key of what one member is to have."""

    group_id: str
    member_id: str


@attrs.frozen(kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue:
    """What one member is to have."""

    topic_partitions: tuple[TopicPartitions, ...] = ()


@attrs.frozen
class ConsumerGroupCurrentMemberAssignmentKey:
    """The key of what one member has."""

    group_id: str
    member_id: str


@attrs.frozen(kw_only=True)
class ConsumerGroupCurrentMemberAssignmentValue:
    """What one member has, what it must give up before it gets more, and how far it is; `state` is a `MemberState`."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[TopicPartitions, ...] = ()
    partitions_pending_revocation: tuple[TopicPartitions, ...] = ()


@attrs.frozen
class ConsumerGroupRegularExpressionKey:
    """The key of the topics that a regular expression has found."""

    group_id: str
    regular_expression: str


@attrs.frozen(kw_only=True)
class ConsumerGroupRegularExpressionValue:
    """The topics that a regular expression has found, at which version of the metadata, and when (wall clock)."""

    topics: tuple[str, ...]
    version: int
    timestamp: int


CoordinatorKey: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
CoordinatorValue: TypeAlias = (
    ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)


@attrs.frozen
class CoordinatorRecord:
    """A key with its value; None takes the value back."""

    key: CoordinatorKey
    value: CoordinatorValue | None


def as_topic_partitions(partitions: Partitions) -> tuple[TopicPartitions, ...]:
    """Return the partitions in the form that records have, always in the same order for the same partitions."""
    return tuple(TopicPartitions(topic_id, tuple(sorted(partitions[topic_id]))) for topic_id in sorted(partitions))


def from_topic_partitions(topic_partitions: tuple[TopicPartitions, ...]) -> Partitions:
    """Return the partitions that a record has."""
    return {each.topic_id: frozenset(each.partitions) for each in topic_partitions if each.partitions}
