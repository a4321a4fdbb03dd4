"""The state of one consumer group: a fold of its records, with the indexes that decisions need.

`apply` is the only way to change it, for an event that has just been decided as for a record that is read after a
restart. It accepts records in any order: a compacted log lacks those that later ones replace.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import Any

import attrs

from kafscale.cluster.groups.common.assignors import NO_PARTITIONS, Partitions
from kafscale.cluster.groups.common.context import GroupStateBytes
from kafscale.cluster.groups.common.log_records import CoordinatorRecord
from kafscale.cluster.groups.consumer.members import (
    Member,
    TopicSubscription,
    as_topic_partitions,
    from_topic_partitions,
    member_bytes,
    partitions_bytes,
    regex_bytes,
)
from kafscale.wire.internal_topics.consumer_offsets import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

NO_TARGET_EPOCH = -1


class ConsumerGroupState(enum.Enum):
    """The values are what clients are shown."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@attrs.frozen(kw_only=True)
class ResolvedRegex:
    """The topics that a regular expression has found, at a version of the topics and a time (wall clock)."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


@attrs.define(eq=False, repr=False)
class GroupState:
    """One group. Members are in the order in which they joined, so that choices among them are deterministic."""

    group_id: str
    state_bytes: GroupStateBytes = attrs.field(factory=GroupStateBytes)
    exists: bool = attrs.field(default=False, init=False)  # by a record of its epoch
    is_deleted: bool = attrs.field(default=False, init=False)
    epoch: int = attrs.field(default=0, init=False)
    metadata_hash: int = attrs.field(default=0, init=False)
    assignment_epoch: int = attrs.field(default=0, init=False)
    has_partition_metadata: bool = attrs.field(default=False, init=False)  # of Kafka 4.0, to be deleted
    members: dict[str, Member] = attrs.field(factory=dict, init=False)
    static: dict[str, str] = attrs.field(factory=dict, init=False)  # instance id -> member id
    targets: dict[str, Partitions] = attrs.field(factory=dict, init=False)
    regexes: dict[str, ResolvedRegex] = attrs.field(factory=dict, init=False)
    subscriptions: Counter[TopicSubscription] = attrs.field(factory=Counter, init=False)  # -> how many members have it
    regex_counts: Counter[str] = attrs.field(factory=Counter, init=False)  # -> how many members subscribe by it
    assignors: Counter[str] = attrs.field(factory=Counter, init=False)  # -> how many members ask for it
    classic_count: int = attrs.field(default=0, init=False)  # members of the classic protocol
    classic_protocols: Counter[str] = attrs.field(factory=Counter, init=False)  # -> how many of those know it
    counted_bytes: int = attrs.field(default=0, init=False)  # of the group in the bound on all groups
    _owners: dict[bytes, dict[int, str]] = attrs.field(factory=dict, init=False)
    _known_subscriptions: dict[TopicSubscription, TopicSubscription] = attrs.field(
        factory=dict, init=False
    )  # one object each

    # -- Questions -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        if self.is_deleted:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = None if instance_id is None else self.static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """Return the member that has this partition, or has yet to revoke it."""
        owners = self._owners.get(topic_id)
        return None if owners is None else owners.get(partition)

    def unowned(self, topic_id: bytes, partitions: frozenset[int]) -> frozenset[int]:
        owners = self._owners.get(topic_id)
        return partitions if owners is None else frozenset(index for index in partitions if index not in owners)

    def topic_names_of(self, subscription: TopicSubscription) -> frozenset[str]:
        """Return the topics of a subscription; an expression that has not been searched yet has none."""
        resolved = self.regexes.get(subscription.topic_regex) if subscription.topic_regex else None
        return subscription.topic_names | resolved.topics if resolved is not None else subscription.topic_names

    def is_subscribed_to(self, topic_name: str) -> bool:
        """Tell whether any member subscribes to a topic, by its name or by an expression that has found it."""
        return any(topic_name in subscription.topic_names for subscription in self.subscriptions) or any(
            topic_name in self.regexes[regex].topics for regex in self.regex_counts if regex in self.regexes
        )

    def subscribed_topic_names(self) -> frozenset[str]:
        """Return the names of all subscribed topics, also of those that do not exist."""
        return frozenset().union(*map(self.topic_names_of, self.subscriptions))

    def assignment_epoch_record(self, epoch: int) -> CoordinatorRecord:
        """Return the record that completes a target assignment of this epoch."""
        value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
        return CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(self.group_id), value)

    # -- Change ------------------------------------------------------------------------------------------------------

    def apply(self, record: CoordinatorRecord) -> None:
        assert record.key.group_id == self.group_id
        value = record.value
        match record.key:
            case ConsumerGroupMetadataKey():
                self.is_deleted = self.exists and value is None
                self.exists = value is not None
                self.epoch = 0 if value is None else value.epoch
                self.metadata_hash = 0 if value is None else value.metadata_hash
            case ConsumerGroupPartitionMetadataKey():
                self.has_partition_metadata = value is not None
            case ConsumerGroupMemberMetadataKey(member_id=member_id):
                self._apply_metadata(member_id, value)
            case ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id):
                self._apply_assignment(member_id, value)
            case ConsumerGroupTargetAssignmentMetadataKey():
                self.assignment_epoch = NO_TARGET_EPOCH if value is None else value.assignment_epoch
            case ConsumerGroupTargetAssignmentMemberKey(member_id=member_id):
                self._apply_target(member_id, value)
            case ConsumerGroupRegularExpressionKey(regular_expression=regex):
                self._apply_regex(regex, value)

    def rebuild_owners(self) -> None:
        """Index the owners anew: midway through a compacted log two members may have had one partition."""
        self._owners.clear()
        for member in self.members.values():
            self._own(member)

    def forget_bytes(self) -> None:
        """Give back the group's bytes; nothing else may be done with it."""
        self.state_bytes.change(-self.counted_bytes)
        self.counted_bytes = 0

    def _apply_metadata(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        known = self.members.get(member_id)
        if value is not None:
            subscription = TopicSubscription.of(value)
            subscription = self._known_subscriptions.setdefault(subscription, subscription)
            self._replace(known, (known or Member(member_id=member_id)).told(value, subscription))
        elif known is not None:
            self._replace(known, None)

    def _apply_assignment(self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        known = self.members.get(member_id)
        if value is not None:
            self._replace(known, (known or Member(member_id=member_id)).has(value))
        elif known is not None:
            self._replace(known, known.without_assignment())

    def _apply_target(self, member_id: str, value: ConsumerGroupTargetAssignmentMemberValue | None) -> None:
        before = self.targets.pop(member_id, None)
        if before is not None:
            self._count(-partitions_bytes(before))
        if value is not None:
            self.targets[member_id] = partitions = from_topic_partitions(value.topic_partitions)
            self._count(partitions_bytes(partitions))

    def _apply_regex(self, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        before = self.regexes.pop(regex, None)
        if before is not None:
            self._count(-regex_bytes(regex, before.topics))
        if value is not None:
            topics = frozenset(value.topics)
            self.regexes[regex] = ResolvedRegex(topics=topics, version=value.version, timestamp_ms=value.timestamp_ms)
            self._count(regex_bytes(regex, topics))

    def _replace(self, before: Member | None, after: Member | None) -> None:
        if before is not None:
            self._disown(before)
            self._index(before, -1)
            if after is None or before.instance_id != after.instance_id:
                self._release_instance(before)
        if after is not None:
            self.members[after.member_id] = after
            self._own(after)
            self._index(after, 1)
            if after.instance_id is not None:
                self.static[after.instance_id] = after.member_id
        elif before is not None:
            del self.members[before.member_id]

    def _release_instance(self, member: Member) -> None:
        if member.instance_id is not None and self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]

    def _index(self, member: Member, by: int) -> None:
        self._count(by * member_bytes(member))
        _add(self.subscriptions, member.subscription, by)
        if member.subscription not in self.subscriptions:
            self._known_subscriptions.pop(member.subscription, None)
        elif by > 0:
            self._known_subscriptions.setdefault(member.subscription, member.subscription)
        if member.subscription.topic_regex:
            _add(self.regex_counts, member.subscription.topic_regex, by)
        if member.server_assignor is not None:
            _add(self.assignors, member.server_assignor, by)
        if member.classic is not None:
            self.classic_count += by
            for protocol in member.classic.supported_protocols:
                _add(self.classic_protocols, protocol.name, by)

    def _own(self, member: Member) -> None:
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, of_topic in partitions.items():
                self._owners.setdefault(topic_id, {}).update(dict.fromkeys(of_topic, member.member_id))

    def _disown(self, member: Member) -> None:
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, of_topic in partitions.items():
                owners = self._owners.get(topic_id, {})
                for partition in of_topic:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self._owners.pop(topic_id, None)

    def _count(self, by_bytes: int) -> None:
        self.counted_bytes += by_bytes
        self.state_bytes.change(by_bytes)


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> CoordinatorRecord:
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp_ms=resolved.timestamp_ms
    )
    return CoordinatorRecord(ConsumerGroupRegularExpressionKey(group_id, regex), value)


def target_record(group_id: str, member_id: str, partitions: Partitions) -> CoordinatorRecord:
    value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=as_topic_partitions(partitions))
    return CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), value)


def _add(counter: Counter[Any], key: object, by: int) -> None:
    counter[key] += by
    if not counter[key]:
        del counter[key]
