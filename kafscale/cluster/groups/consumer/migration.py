"""Members go, and a group with members changes its protocol.

A classic group becomes a consumer group with the first member of the new protocol that joins, and a classic group again
when the last one goes. Members keep their ids, their partitions, and their generation as epoch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from kafscale.cluster.groups.classic.group import ClassicGroup
from kafscale.cluster.groups.classic.members import ClassicMember
from kafscale.cluster.groups.common.assignors import Partitions
from kafscale.cluster.groups.common.context import CONSUMER_PROTOCOL_TYPE, Downgrade, EventRefused, TimerKind
from kafscale.cluster.groups.common.log_records import CoordinatorRecord
from kafscale.cluster.groups.common.topics import KnownTopics
from kafscale.cluster.groups.consumer.deciding import Deciding
from kafscale.cluster.groups.consumer.members import Member, MemberState, TopicSubscription
from kafscale.cluster.groups.consumer.regexes import delete_unsubscribed
from kafscale.cluster.groups.consumer.state import GroupState, target_record
from kafscale.config import Settings
from kafscale.config.values import GroupMigrationPolicy
from kafscale.errors import DecodeError
from kafscale.wire import error_codes
from kafscale.wire.codec import decoder, encode
from kafscale.wire.internal_topics.consumer_offsets import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from kafscale.wire.messages.consumer_groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
)

logger = logging.getLogger(__name__)

UPGRADING = (GroupMigrationPolicy.BIDIRECTIONAL, GroupMigrationPolicy.UPGRADE)
DOWNGRADING = (GroupMigrationPolicy.BIDIRECTIONAL, GroupMigrationPolicy.DOWNGRADE)


def fence(deciding: Deciding, members: Sequence[Member]) -> None:
    """Remove members; if all others use the classic protocol, the group becomes a classic one."""
    if not members:
        return
    for member in members:
        deciding.remove(member)
    if may_downgrade(deciding):
        downgrade(deciding, rebalances=True, reason="the last member of the consumer protocol has gone")
        return
    delete_unsubscribed(deciding)
    deciding.raise_epoch()


def may_downgrade(deciding: Deciding) -> bool:
    """Tell whether the group has members of the classic protocol only and may become a classic group."""
    state, settings = deciding.state, deciding.settings
    if not state.members or state.classic_count != len(state.members):
        return False
    if settings.coordinator.group_consumer_migration_policy not in DOWNGRADING:
        logger.info("group %r can't become a classic group: group.consumer.migration.policy says no", state.group_id)
        return False
    if len(state.members) > settings.limits.max_group_members_count:
        logger.info("group %r can't become a classic group: it has more members than group.max.size", state.group_id)
        return False
    return True


def _check_upgrade(group_id: str, classic: ClassicGroup, settings: Settings) -> None:
    if settings.coordinator.group_consumer_migration_policy not in UPGRADING:
        raise _refused(group_id, "online upgrade is disabled")
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _refused(group_id, "the group does not use the consumer embedded protocol")
    if len(classic.members) > settings.limits.group_consumer_max_size_count:
        raise _refused(group_id, "the group size exceeds the consumer group maximum size")


def upgrade(deciding: Deciding, classic: ClassicGroup) -> None:
    """Continue a classic group with members from its last assignment. Raises EventRefused."""
    state = deciding.state
    _check_upgrade(state.group_id, classic, deciding.settings)
    try:
        members = [_upgraded(deciding, classic, member) for member in classic.members]
    except DecodeError as exc:
        raise _refused(state.group_id, f"the embedded consumer protocol can't be carried over: {exc}") from exc
    generation_id = max(classic.generation_id, 0)
    for member in members:
        state.apply(member.metadata_record(state.group_id))  # for the hash; written below, behind the epoch
    value = ConsumerGroupMetadataValue(
        epoch=generation_id, metadata_hash=deciding.topics.hash_of(state.subscribed_topic_names())
    )
    deciding.write(CoordinatorRecord(ConsumerGroupMetadataKey(state.group_id), value))
    taken: dict[bytes, set[int]] = {}
    for member in members:
        deciding.write(member.metadata_record(state.group_id))
        deciding.write(target_record(state.group_id, member.member_id, _take(taken, member.assigned)))
    deciding.write(state.assignment_epoch_record(generation_id))
    for member in members:
        has = Member(
            member_id=member.member_id,
            member_epoch=generation_id,
            previous_member_epoch=generation_id,
            state=MemberState.STABLE,
            assigned=state.target(member.member_id),
        )
        deciding.write(has.assignment_record(state.group_id))
        assert member.classic is not None
        deciding.set_timer(TimerKind.SESSION, state.members[member.member_id], member.classic.session_timeout_ms)


def _upgraded(deciding: Deciding, group: ClassicGroup, member: ClassicMember) -> Member:
    protocol = next((one for one in member.protocols if one.name == group.protocol_name), member.protocols[0])
    told = read_subscription(protocol.metadata, deciding.topics)
    return Member(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=told.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscription=TopicSubscription(told.topic_names),
        classic=ClassicMemberMetadata(
            session_timeout_ms=member.session_timeout_ms, supported_protocols=list(member.protocols)
        ),
        assigned=read_assignment(member.assignment, deciding.topics),
    )


def _take(taken: dict[bytes, set[int]], partitions: Partitions) -> Partitions:
    """Return the partitions that no member before has: a leader may have assigned one twice."""
    free: dict[bytes, frozenset[int]] = {}
    for topic_id, of_topic in partitions.items():
        of_others = taken.setdefault(topic_id, set())
        if left := of_topic.difference(of_others):
            free[topic_id] = left
            of_others.update(left)
    return free


def _refused(group_id: str, reason: str) -> EventRefused:
    return EventRefused(
        error_codes.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group_id} to consumer group because {reason}."
    )


def downgrade(deciding: Deciding, *, rebalances: bool, reason: str) -> None:
    """Delete all records of the group, and continue it as a classic group."""
    state = deciding.state
    protocol_name = _select_protocol(state)
    group = GroupMetadataValue(
        generation_id=state.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocol_name,
        leader_id=next(iter(state.members)),
        state_timestamp_ms=deciding.now_ms,
        members=[_downgraded(deciding, member, protocol_name) for member in state.members.values()],
    )
    protocols = {
        member.member_id: member.classic.supported_protocols for member in state.members.values() if member.classic
    }
    delete(deciding)
    deciding.downgrade = Downgrade(group=group, protocols=protocols, rebalances=rebalances, reason=reason)


def _downgraded(deciding: Deciding, member: Member, protocol_name: str) -> MemberMetadata:
    assert member.classic is not None
    metadata = next(one.metadata for one in member.classic.supported_protocols if one.name == protocol_name)
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.classic.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscription=metadata,
        assignment=write_assignment(deciding.state.target(member.member_id), deciding.topics, metadata),
    )


def _select_protocol(state: GroupState) -> str:
    """Return the protocol with the most votes among those that all members know."""
    shared = {name for name, count in state.classic_protocols.items() if count == len(state.members)}
    votes: Counter[str] = Counter()
    for member in state.members.values():
        assert member.classic is not None
        votes[next(one.name for one in member.classic.supported_protocols if one.name in shared)] += 1
    return votes.most_common(1)[0][0]


def delete(deciding: Deciding) -> None:
    """Delete all records of the group: assignments first, the group itself last."""
    state = deciding.state
    group_id, member_ids = state.group_id, list(state.members)
    keys: list[ConsumerGroupKey] = [
        ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id) for member_id in member_ids
    ]
    keys += [ConsumerGroupTargetAssignmentMemberKey(group_id, member_id) for member_id in state.targets]
    keys += [ConsumerGroupTargetAssignmentMetadataKey(group_id)]
    keys += [ConsumerGroupMemberMetadataKey(group_id, member_id) for member_id in member_ids]
    keys += [ConsumerGroupRegularExpressionKey(group_id, regex) for regex in state.regexes]
    keys += [ConsumerGroupPartitionMetadataKey(group_id)] if state.has_partition_metadata else []
    keys += [ConsumerGroupMetadataKey(group_id)]
    for key in keys:
        deciding.write(CoordinatorRecord(key, None))
    for timer in list(deciding.soft.deadlines):
        deciding.cancel_timer(timer.kind, timer.member_id)


VERSION_BYTES = 2  # an int16 in front


@attrs.frozen(kw_only=True)
class EmbeddedSubscription:
    """The subscription of a classic member, and the partitions that it owns."""

    topic_names: frozenset[str]
    rack_id: str | None
    owned: Partitions


def read_subscription(metadata: bytes, topics: KnownTopics) -> EmbeddedSubscription:
    """Read a member's metadata. Raises DecodeError."""
    version = min(_version(metadata), ConsumerProtocolSubscription.MAX_VERSION)
    told, _ = decoder(ConsumerProtocolSubscription, version)(memoryview(metadata), VERSION_BYTES)
    owned = _by_id(told.owned_partitions, topics)
    return EmbeddedSubscription(topic_names=frozenset(told.topics), rack_id=told.rack_id or None, owned=owned)


def read_assignment(assignment: bytes, topics: KnownTopics) -> Partitions:
    """Read a leader's assignment of a member, without deleted topics.

    Raises DecodeError for bytes that are not an assignment, and for data of a custom assignor, which would be lost.
    """
    if not assignment:
        return {}
    version = min(_version(assignment), ConsumerProtocolAssignment.MAX_VERSION)
    told, _ = decoder(ConsumerProtocolAssignment, version)(memoryview(assignment), VERSION_BYTES)
    if told.user_data:
        raise DecodeError("a custom assignor is in use, and its data would be lost")
    return _by_id(told.assigned_partitions, topics)


def write_assignment(partitions: Partitions, topics: KnownTopics, metadata: bytes) -> bytes:
    """Return an assignment in the version of the member's metadata; in version 0 if that has none."""
    try:
        version = min(_version(metadata), ConsumerProtocolAssignment.MAX_VERSION)
    except DecodeError:
        version = 0
    assigned = [
        ConsumerTopicPartitions(topic=topics.by_id[topic_id].name, partitions=sorted(of_topic))
        for topic_id, of_topic in partitions.items()
        if topic_id in topics.by_id
    ]
    assigned.sort(key=lambda topic: topic.topic)
    return version.to_bytes(VERSION_BYTES) + b"".join(
        encode(ConsumerProtocolAssignment(assigned_partitions=assigned), version)
    )


def _version(data: bytes) -> int:
    version = int.from_bytes(data[:VERSION_BYTES], signed=True)
    if len(data) < VERSION_BYTES or version < 0:
        raise DecodeError("a consumer's metadata must begin with a version")
    return version


def _by_id(named: Iterable[ConsumerTopicPartitions], topics: KnownTopics) -> Partitions:
    known = ((topics.by_name.get(of_topic.topic), of_topic.partitions) for of_topic in named)
    return {topic.topic_id: frozenset(partitions) for topic, partitions in known if topic is not None and partitions}
