"""SyncGroup (14): the leader says who does what; everyone gets its own part, once the whole is durable.

v1  throttle time
v3  static members (KIP-345)
v4  flexible
v5  protocol type and name, which must be those of the group (KIP-559)
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import membership_error, refusal_error
from kafscale.api.handling.services import Services
from kafscale.cluster.groups.common.context import GroupMemberIdentity, Sync
from kafscale.wire.error_codes import INCONSISTENT_GROUP_PROTOCOL, NONE
from kafscale.wire.messages.groups import SyncGroupRequest, SyncGroupResponse


async def handle(services: Services, call: Call, request: SyncGroupRequest) -> SyncGroupResponse:
    if call.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=INCONSISTENT_GROUP_PROTOCOL)
    if (error_code := membership_error(services, request.group_id)) != NONE:
        return SyncGroupResponse(error_code=error_code)
    sync = Sync(
        identity=GroupMemberIdentity(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id,
        ),
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={part.member_id: part.assignment for part in request.assignments},
    )
    result = await services.groups.sync(request.group_id, sync).wait()
    result.error_code = await refusal_error(services, [result.error_code]) or result.error_code
    return result


API = Api(14, "SyncGroup", 0, 5, SyncGroupRequest, SyncGroupResponse, handle)
