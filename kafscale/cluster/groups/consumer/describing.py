"""A consumer group as administrators see it: values for ConsumerGroupDescribe."""

from __future__ import annotations

import attrs

from kafscale.cluster.groups.assignors.spec import Partitions
from kafscale.cluster.groups.consumer.members import Member
from kafscale.cluster.groups.consumer.settings import ConsumerGroupSettings
from kafscale.cluster.groups.consumer.state import ConsumerGroupState, GroupState
from kafscale.cluster.groups.consumer.target import preferred_assignor
from kafscale.cluster.groups.consumer.topics import KnownTopics

CLASSIC_MEMBER_TYPE = 0
CONSUMER_MEMBER_TYPE = 1


@attrs.frozen(kw_only=True)
class DescribedPartitions:
    """Partitions of a topic that exists."""

    topic_id: bytes
    topic_name: str
    partitions: tuple[int, ...]


@attrs.frozen(kw_only=True)
class DescribedMember:
    """One member, with its assignment and its target assignment."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str
    assignment: tuple[DescribedPartitions, ...]
    target_assignment: tuple[DescribedPartitions, ...]
    member_type: int


@attrs.frozen(kw_only=True)
class ConsumerGroupDescription:
    """One group with its members."""

    group_id: str
    state: ConsumerGroupState
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: tuple[DescribedMember, ...]


def describe(state: GroupState, topics: KnownTopics, settings: ConsumerGroupSettings) -> ConsumerGroupDescription:
    """Return all that is to be known about a group."""
    return ConsumerGroupDescription(
        group_id=state.group_id,
        state=state.state,
        group_epoch=state.epoch,
        assignment_epoch=state.assignment_epoch,
        assignor_name=preferred_assignor(state, settings.assignors),
        members=tuple(_member(state, member, topics) for member in state.members.values()),
    )


def _member(state: GroupState, member: Member, topics: KnownTopics) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscription.topic_names)),
        subscribed_topic_regex=member.subscription.topic_regex,
        assignment=_named(member.assigned, topics),
        target_assignment=_named(state.target(member.member_id), topics),
        member_type=CLASSIC_MEMBER_TYPE if member.uses_classic_protocol else CONSUMER_MEMBER_TYPE,
    )


def _named(partitions: Partitions, topics: KnownTopics) -> tuple[DescribedPartitions, ...]:
    known = [
        (topics.by_id[topic_id], of_topic) for topic_id, of_topic in partitions.items() if topic_id in topics.by_id
    ]
    return tuple(
        DescribedPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=tuple(sorted(of_topic)))
        for topic, of_topic in sorted(known, key=lambda each: each[0].name)
    )
