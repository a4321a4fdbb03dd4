"""JoinGroup (key 11, versions 0 to 9): take part in the next generation of a consumer group.

From version 4 on a new member is first given its id (KIP-394), 5 added static membership (KIP-345), 9 lets the leader
skip the assignment.
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class JoinGroupRequestProtocol:
    name: str = wire("string")
    metadata: bytes = wire("bytes")  # for consumers a ConsumerProtocolSubscription


@attrs.define(kw_only=True)
class JoinGroupRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 11, 0, 9, 6

    group_id: str = wire("string")
    session_timeout_ms: int = wire("int32")
    rebalance_timeout_ms: int = wire("int32", since=1, default=-1)  # -1 (version 0): as the session timeout
    member_id: str = wire("string")  # empty: not a member yet
    group_instance_id: str | None = wire("string", since=5, default=None)  # of a static member
    protocol_type: str = wire("string")
    protocols: list[JoinGroupRequestProtocol] = wire(Array(JoinGroupRequestProtocol), factory=list)
    reason: str | None = wire("string", since=8, default=None)


@attrs.define(kw_only=True)
class JoinGroupResponseMember:
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", since=5, default=None)
    metadata: bytes = wire("bytes")


@attrs.define(kw_only=True)
class JoinGroupResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 11, 0, 9, 6

    throttle_time_ms: int = wire("int32", since=2, default=0)
    error_code: int = wire("int16", default=0)
    generation_id: int = wire("int32", default=-1)
    protocol_type: str | None = wire("string", since=7, default=None)
    protocol_name: str | None = wire("string", default="")  # null only from version 7 on
    leader: str = wire("string", default="")
    skip_assignment: bool = wire("bool", since=9, default=False)
    member_id: str = wire("string", default="")
    members: list[JoinGroupResponseMember] = wire(Array(JoinGroupResponseMember), factory=list)  # for the leader only
