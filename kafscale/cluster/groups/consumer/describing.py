"""A consumer group as administrators see it, in the messages of ConsumerGroupDescribe."""

from __future__ import annotations

from kafscale.cluster.groups.assignors.spec import Partitions
from kafscale.cluster.groups.common.settings import ConsumerGroupSettings
from kafscale.cluster.groups.common.topics import KnownTopics
from kafscale.cluster.groups.consumer.members import Member
from kafscale.cluster.groups.consumer.state import GroupState
from kafscale.cluster.groups.consumer.target import preferred_assignor
from kafscale.wire.messages.consumer_groups import (
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
)

CLASSIC_MEMBER_TYPE = 0
CONSUMER_MEMBER_TYPE = 1


def describe(state: GroupState, topics: KnownTopics, settings: ConsumerGroupSettings) -> DescribedConsumerGroup:
    """Return the answer for a group, without authorized operations."""
    return DescribedConsumerGroup(
        group_id=state.group_id,
        group_state=state.state.value,
        group_epoch=state.epoch,
        assignment_epoch=state.assignment_epoch,
        assignor_name=preferred_assignor(state, settings.assignors),
        members=[_member(state, member, topics) for member in state.members.values()],
    )


def _member(state: GroupState, member: Member, topics: KnownTopics) -> DescribedConsumer:
    return DescribedConsumer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscription.topic_names),
        subscribed_topic_regex=member.subscription.topic_regex,
        assignment=_assignment(member.assigned, topics),
        target_assignment=_assignment(state.target(member.member_id), topics),
        member_type=CLASSIC_MEMBER_TYPE if member.uses_classic_protocol else CONSUMER_MEMBER_TYPE,
    )


def _assignment(partitions: Partitions, topics: KnownTopics) -> DescribedAssignment:
    """Return partitions of the topics that exist, in order of their names."""
    known = [topics.by_id[topic_id] for topic_id in partitions if topic_id in topics.by_id]
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(
                topic_id=topic.topic_id, topic_name=topic.name, partitions=sorted(partitions[topic.topic_id])
            )
            for topic in sorted(known, key=lambda topic: topic.name)
        ]
    )
