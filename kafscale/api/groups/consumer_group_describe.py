"""ConsumerGroupDescribe (69): consumer groups of KIP-848, with what each member has and is to have.

v1  which members use the classic protocol (KIP-1099)

A group that does not exist, and a classic one, is GROUP_ID_NOT_FOUND; clients then ask DescribeGroups.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafscale.api.handling.access import NOT_ASKED
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import coordinator_error
from kafscale.api.handling.services import Services
from kafscale.cluster.groups.consumer.describing import DescribedMember, DescribedPartitions
from kafscale.concurrency.turns import distinct, in_turns
from kafscale.security.acls import DESCRIBE_TOPIC, ResourceType
from kafscale.wire.error_codes import GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, NONE, TOPIC_AUTHORIZATION_FAILED
from kafscale.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
)
from kafscale.wire.schema import mapped


async def handle(
    services: Services, call: Call, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    groups = [
        await _describe(services, call, request.include_authorized_operations, group_id)
        async for group_id in in_turns(await distinct(request.group_ids, str))
    ]
    return ConsumerGroupDescribeResponse(groups=groups)


async def _describe(services: Services, call: Call, with_operations: bool, group_id: str) -> DescribedConsumerGroup:
    if not group_id:
        return DescribedConsumerGroup(group_id=group_id, error_code=INVALID_GROUP_ID)
    if (error_code := coordinator_error(services, group_id)) != NONE:
        return DescribedConsumerGroup(group_id=group_id, error_code=error_code)
    await services.groups.wait_settled(group_id)
    group = services.groups.consumer_group(group_id)
    if group is None:
        reason = "is not a consumer group" if services.groups.exists(group_id) else "not found"
        message = f"Group {group_id} {reason}."
        return DescribedConsumerGroup(group_id=group_id, error_code=GROUP_ID_NOT_FOUND, error_message=message)
    described = group.machine.describe()
    if not await _may_see_topics(services, call, described.members):
        return DescribedConsumerGroup(
            group_id=group_id,
            error_code=TOPIC_AUTHORIZATION_FAILED,
            error_message="The group has described topic(s) that the client is not authorized to describe.",
        )
    access = services.access
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=described.state.value,
        group_epoch=described.group_epoch,
        assignment_epoch=described.assignment_epoch,
        assignor_name=described.assignor_name,
        members=mapped(_member, described.members),
        authorized_operations=(access.operations(call, ResourceType.GROUP, group_id) if with_operations else NOT_ASKED),
    )


async def _may_see_topics(services: Services, call: Call, members: Sequence[DescribedMember]) -> bool:
    """Tell whether the client may be told of every topic that a member subscribes to, has or is to have."""
    if services.access.authorizer is None:
        return True
    names = {
        name
        async for member in in_turns(members)
        for name in (
            *member.subscribed_topic_names,
            *(of_topic.topic_name for of_topic in (*member.assignment, *member.target_assignment)),
        )
    }
    return all([services.access.allows(call, DESCRIBE_TOPIC, name) async for name in in_turns(names)])


def _member(member: DescribedMember) -> DescribedConsumer:
    return DescribedConsumer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_assignment(member.assignment),
        target_assignment=_assignment(member.target_assignment),
        member_type=member.member_type,
    )


def _assignment(partitions: Sequence[DescribedPartitions]) -> DescribedAssignment:
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(
                topic_id=of_topic.topic_id, topic_name=of_topic.topic_name, partitions=list(of_topic.partitions)
            )
            for of_topic in partitions
        ]
    )


API = Api(69, "ConsumerGroupDescribe", 0, 1, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, handle)
