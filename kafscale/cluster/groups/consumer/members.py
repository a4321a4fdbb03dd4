"""A member of a consumer group as in its records, and estimates of its bytes of memory (`GroupStateBytes`)."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import attrs

from kafscale.cluster.groups.common.assignors import NO_PARTITIONS, Partitions, count
from kafscale.cluster.groups.common.context import MEMBER_BYTES, protocols_bytes
from kafscale.cluster.groups.common.log_records import CoordinatorRecord
from kafscale.wire.internal_topics.consumer_offsets import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    TopicPartitions,
)

TOPIC_NAME_BYTES = 64
TOPIC_BYTES = 256  # a topic in an assignment, with its set of partitions
PARTITION_BYTES = 64  # in that set, and in the index of owners
REGEX_BYTES = 256


def metadata_bytes(member: Member) -> int:
    texts = (member.instance_id, member.rack_id, member.client_id, member.client_host, member.server_assignor)
    size_bytes = sum(len(text) for text in texts if text is not None) + len(member.member_id)
    names = member.subscription.topic_names
    size_bytes += len(member.subscription.topic_regex) + len(names) * TOPIC_NAME_BYTES + sum(map(len, names))
    if member.classic is not None:
        size_bytes += protocols_bytes(member.classic.supported_protocols)
    return size_bytes


def partitions_bytes(partitions: Partitions) -> int:
    return len(partitions) * TOPIC_BYTES + count(partitions) * PARTITION_BYTES


def member_bytes(member: Member) -> int:
    return (
        MEMBER_BYTES
        + metadata_bytes(member)
        + partitions_bytes(member.assigned)
        + partitions_bytes(member.pending_revocation)
    )


def regex_bytes(regex: str, topics: frozenset[str]) -> int:
    return REGEX_BYTES + len(regex) + len(topics) * TOPIC_NAME_BYTES + sum(map(len, topics))


def as_topic_partitions(partitions: Partitions) -> list[TopicPartitions]:
    """Return partitions as in records, in a fixed order."""
    return [TopicPartitions(topic_id, sorted(partitions[topic_id])) for topic_id in sorted(partitions)]


def from_topic_partitions(topic_partitions: Iterable[TopicPartitions]) -> Partitions:
    return {topic.topic_id: frozenset(topic.partitions) for topic in topic_partitions if topic.partitions}


JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2  # a static member that means to come back


class MemberState(enum.IntEnum):
    """Progress of a member towards its target assignment; the numbers are those of Kafka's records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # it has to give up partitions before it gets to the next epoch
    UNRELEASED_PARTITIONS = 2  # partitions that it is to have are still with others
    UNKNOWN = 127  # a later version wrote the record

    @classmethod
    def of(cls, value: int) -> MemberState:
        return cls(value) if value in (0, 1, 2) else cls.UNKNOWN


@attrs.frozen
class TopicSubscription:
    """The topics of a member: by name, by a regular expression ("" is none), or both."""

    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""

    @classmethod
    def of(cls, value: ConsumerGroupMemberMetadataValue) -> TopicSubscription:
        return cls(frozenset(value.subscribed_topic_names), value.subscribed_topic_regex or "")


NO_SUBSCRIPTION = TopicSubscription()


@attrs.frozen(kw_only=True)
class Member:
    """One member. `classic` is set for one that uses the classic protocol, whose generation is its member epoch."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscription: TopicSubscription = NO_SUBSCRIPTION
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None

    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    pending_revocation: Partitions = NO_PARTITIONS

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Tell whether it has exactly its target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def told(self, value: ConsumerGroupMemberMetadataValue, subscription: TopicSubscription) -> Member:
        """Return the member with new metadata; `subscription` is that of the value."""
        return Member(  # by its constructor: `attrs.evolve` takes three times as long, and a start does this very often
            member_id=self.member_id,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            subscription=subscription,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            assigned=self.assigned,
            pending_revocation=self.pending_revocation,
        )

    def has(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> Member:
        return Member(
            member_id=self.member_id,
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            subscription=self.subscription,
            server_assignor=self.server_assignor,
            classic=self.classic,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState.of(value.state),
            assigned=from_topic_partitions(value.assigned_partitions),
            pending_revocation=from_topic_partitions(value.partitions_pending_revocation),
        )

    def without_assignment(self) -> Member:
        """Return the member as if it had just joined."""
        return attrs.evolve(
            self,
            member_epoch=JOIN_EPOCH,
            previous_member_epoch=-1,
            state=MemberState.STABLE,
            assigned=NO_PARTITIONS,
            pending_revocation=NO_PARTITIONS,
        )

    def metadata_record(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ConsumerGroupMemberMetadataKey(group_id, self.member_id),
            ConsumerGroupMemberMetadataValue(
                instance_id=self.instance_id,
                rack_id=self.rack_id,
                client_id=self.client_id,
                client_host=self.client_host,
                subscribed_topic_names=sorted(self.subscription.topic_names),
                subscribed_topic_regex=self.subscription.topic_regex,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
                server_assignor=self.server_assignor,
                classic_member_metadata=self.classic,
            ),
        )

    def assignment_record(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ConsumerGroupCurrentMemberAssignmentKey(group_id, self.member_id),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=self.member_epoch,
                previous_member_epoch=self.previous_member_epoch,
                state=self.state.value,
                assigned_partitions=as_topic_partitions(self.assigned),
                partitions_pending_revocation=as_topic_partitions(self.pending_revocation),
            ),
        )
