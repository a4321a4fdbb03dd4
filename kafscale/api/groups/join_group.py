"""JoinGroup (11): take part in the next generation of a group. Answered when that begins.

v1  a rebalance timeout of its own; before, the session timeout is meant
v2  throttle time
v4  a new member is first given its id, with MEMBER_ID_REQUIRED (KIP-394)
v5  static members (KIP-345)
v6  flexible
v7  protocol type in the answer (KIP-559)
v8  the reason (KIP-800)
v9  a leader may be told to skip the assignment (KIP-814)
"""

from __future__ import annotations

import trio

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.coordinators import membership_error, prepare_groups, refusal_error
from kafscale.api.handling.services import Services
from kafscale.cluster.groups.common.context import Join, refused_join
from kafscale.concurrency.turns import in_turns
from kafscale.wire.error_codes import NONE
from kafscale.wire.internal_topics.consumer_offsets import ClassicProtocol
from kafscale.wire.messages.groups import JoinGroupRequest, JoinGroupResponse

FIRST_VERSION_WITH_NULL_PROTOCOL = 7


async def handle(services: Services, call: Call, request: JoinGroupRequest) -> JoinGroupResponse:
    has_rebalance_timeout = call.version >= 1
    protocols = [ClassicProtocol(one.name, one.metadata) async for one in in_turns(request.protocols)]
    join = Join(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=call.client_id,
        client_host=f"/{call.peer.host}",  # as Kafka shows it
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms if has_rebalance_timeout else request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(protocols),
        member_id_required=call.version >= 4,
        can_skip_assignment=call.version >= 9,
        reason=request.reason or "not provided",
    )
    await prepare_groups(services)
    if (error_code := membership_error(services, request.group_id)) != NONE:
        return _answer(call, refused_join(error_code, request.member_id))
    reply = services.groups.join(request.group_id, join)
    try:
        result = await reply.wait()
    except trio.Cancelled:  # the peer has gone
        services.groups.abandon_join(request.group_id, reply)
        raise
    if (error_code := await refusal_error(services, [result.error_code])) != NONE:
        result = refused_join(error_code, request.member_id)
    return _answer(call, result)


def _answer(call: Call, result: JoinGroupResponse) -> JoinGroupResponse:
    if call.version < FIRST_VERSION_WITH_NULL_PROTOCOL:
        result.protocol_name = result.protocol_name or ""
    return result


API = Api(11, "JoinGroup", 0, 9, JoinGroupRequest, JoinGroupResponse, handle)
