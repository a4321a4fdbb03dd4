"""DescribeGroups (15): state, protocol and members of groups.

v1  throttle time
v3  authorized operations, if asked for
v4  group.instance.id
v5  flexible

A group that does not exist is "Dead", without an error. Protocol and metadata are shown of a stable group only.
"""

from __future__ import annotations

from kafscale.api.authorized_operations import GROUP_OPERATIONS, NOT_ASKED
from kafscale.api.calls import Api, Call
from kafscale.api.services import Services
from kafscale.cluster.groups.group import Group, GroupState
from kafscale.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)


def handle(services: Services, _call: Call, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    described = [_describe(group_id, services.groups.group(group_id)) for group_id in request.groups]
    for group in described:
        group.authorized_operations = operations
    return DescribeGroupsResponse(groups=described)


def _describe(group_id: str, group: Group | None) -> DescribedGroup:
    if group is None:
        return DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    protocol = group.protocol_name if group.state is GroupState.STABLE else None
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol) if protocol is not None else b"",
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
    )


API = Api(15, "DescribeGroups", 0, 5, DescribeGroupsRequest, DescribeGroupsResponse, handle)
