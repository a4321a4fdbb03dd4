"""Heartbeat (12): a member is alive; the answer tells it whether to join again. Writes nothing.

v1  throttle time
v3  static members (KIP-345)
v4  flexible
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import membership_error, refusal_error
from kafscale.api.handling.services import Services
from kafscale.cluster.groups.common.context import GroupMemberIdentity
from kafscale.wire.error_codes import NONE
from kafscale.wire.messages.groups import HeartbeatRequest, HeartbeatResponse


async def handle(services: Services, _call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
    if (error_code := membership_error(services, request.group_id)) != NONE:
        return HeartbeatResponse(error_code=error_code)
    identity = GroupMemberIdentity(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation_id=request.generation_id,
    )
    error_code = services.groups.heartbeat(request.group_id, identity)
    return HeartbeatResponse(error_code=await refusal_error(services, [error_code]) or error_code)


API = Api(12, "Heartbeat", 0, 4, HeartbeatRequest, HeartbeatResponse, handle)
