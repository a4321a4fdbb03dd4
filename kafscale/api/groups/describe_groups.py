"""DescribeGroups (15): state, protocol and members of groups.

v1  throttle time
v3  authorized operations, if asked for
v4  group.instance.id
v5  flexible
v6  GROUP_ID_NOT_FOUND (KIP-1043)

A group that does not exist, or is of KIP-848's protocol, is "Dead"; up to version 5 that is not an error. Protocol and
metadata are shown of a stable group only.
"""

from __future__ import annotations

from functools import partial

from kafscale.api.handling.access import NOT_ASKED
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import coordinator_error
from kafscale.api.handling.services import Services
from kafscale.cluster.groups.classic.group import ClassicGroupState
from kafscale.cluster.groups.classic.members import ClassicMember
from kafscale.concurrency.turns import distinct
from kafscale.security.acls import ResourceType
from kafscale.wire.error_codes import GROUP_ID_NOT_FOUND, NONE
from kafscale.wire.messages.groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kafscale.wire.schema import mapped

FIRST_VERSION_WITH_NOT_FOUND = 6


async def handle(services: Services, call: Call, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    describe = partial(_describe, services, call, request.include_authorized_operations)
    return DescribeGroupsResponse(groups=mapped(describe, await distinct(request.groups, str)))


def _describe(services: Services, call: Call, with_operations: bool, group_id: str) -> DescribedGroup:
    operations = services.access.operations(call, ResourceType.GROUP, group_id) if with_operations else NOT_ASKED
    if (error_code := coordinator_error(services, group_id)) != NONE:
        return DescribedGroup(group_id=group_id, error_code=error_code)
    group = services.groups.group(group_id)
    if group is None:
        dead = DescribedGroup(group_id=group_id, group_state=ClassicGroupState.DEAD.value)
        if call.version >= FIRST_VERSION_WITH_NOT_FOUND:
            reason = "is not a classic group" if services.groups.exists(group_id) else "not found"
            dead.error_code, dead.error_message = GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}."
        else:
            dead.authorized_operations = operations
        return dead
    protocol = group.protocol_name if group.state is ClassicGroupState.STABLE else None
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=mapped(partial(_member, protocol), tuple(group.members)),
        authorized_operations=operations,
    )


def _member(protocol: str | None, member: ClassicMember) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol) if protocol is not None else b"",
        member_assignment=member.assignment,
    )


API = Api(15, "DescribeGroups", 0, 6, DescribeGroupsRequest, DescribeGroupsResponse, handle)
