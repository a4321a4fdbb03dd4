"""LeaveGroup (13): members leave, and the others need not wait for their sessions to end.

v1  throttle time
v3  several members, by member id or, for an administrator, by group.instance.id (KIP-345)
v4  flexible
v5  the reason (KIP-800)
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import membership_error, refusal_error
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import in_turns
from kafscale.wire.error_codes import COORDINATOR_NOT_AVAILABLE, NONE
from kafscale.wire.messages.groups import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)


async def handle(services: Services, call: Call, request: LeaveGroupRequest) -> LeaveGroupResponse:
    if (error_code := membership_error(services, request.group_id)) != NONE:
        return LeaveGroupResponse(error_code=error_code)
    if call.version < 3:
        (error_code,) = await services.groups.leave(request.group_id, [MemberIdentity(member_id=request.member_id)])
        return LeaveGroupResponse(error_code=await refusal_error(services, [error_code]) or error_code)
    error_codes = await services.groups.leave(request.group_id, request.members)
    if COORDINATOR_NOT_AVAILABLE in error_codes:  # of the group, so of all
        return LeaveGroupResponse(error_code=COORDINATOR_NOT_AVAILABLE)
    if (error_code := await refusal_error(services, error_codes)) != NONE:
        return LeaveGroupResponse(error_code=error_code)
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=leaver.member_id, group_instance_id=leaver.group_instance_id, error_code=error_code
            )
            async for leaver, error_code in in_turns(zip(request.members, error_codes, strict=True))
        ]
    )


API = Api(13, "LeaveGroup", 0, 5, LeaveGroupRequest, LeaveGroupResponse, handle)
