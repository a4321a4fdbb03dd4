"""ConsumerGroupDescribe (69): consumer groups of KIP-848, with each member's current and target assignment.

v1  which members use the classic protocol (KIP-1099)

A group that does not exist, and a classic one, is GROUP_ID_NOT_FOUND; clients then ask DescribeGroups.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import coordinator_error
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import distinct, in_turns
from kafscale.security.acls import DESCRIBE_TOPIC, ResourceType
from kafscale.wire.error_codes import GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, NONE, TOPIC_AUTHORIZATION_FAILED
from kafscale.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
)


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
    described = group.describe()
    if not await _may_see_topics(services, call, described.members):
        return DescribedConsumerGroup(
            group_id=group_id,
            error_code=TOPIC_AUTHORIZATION_FAILED,
            error_message="The group has described topic(s) that the client is not authorized to describe.",
        )
    if with_operations:
        described.authorized_operations = services.access.operations(call, ResourceType.GROUP, group_id)
    return described


async def _may_see_topics(services: Services, call: Call, members: Sequence[DescribedConsumer]) -> bool:
    if services.access.authorizer is None:
        return True
    names = {
        name
        async for member in in_turns(members)
        for name in (
            *member.subscribed_topic_names,
            *(of_topic.topic_name for of_topic in member.assignment.topic_partitions),
            *(of_topic.topic_name for of_topic in member.target_assignment.topic_partitions),
        )
    }
    return all([services.access.allows(call, DESCRIBE_TOPIC, name) async for name in in_turns(names)])


API = Api(69, "ConsumerGroupDescribe", 0, 1, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, handle)
