"""LeaveGroup (key 13, versions 0 to 5): members leave their group: one, or from version 3 on several (KIP-345)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class MemberIdentity:
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", default=None)
    reason: str | None = wire("string", since=5, default=None)


@attrs.define(kw_only=True)
class LeaveGroupRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 13, 0, 5, 4

    group_id: str = wire("string")
    member_id: str = wire("string", until=2, default="")
    members: list[MemberIdentity] = wire(Array(MemberIdentity), since=3, factory=list)


@attrs.define(kw_only=True)
class MemberResponse:
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", default=None)
    error_code: int = wire("int16", default=0)


@attrs.define(kw_only=True)
class LeaveGroupResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 13, 0, 5, 4

    throttle_time_ms: int = wire("int32", since=1, default=0)
    error_code: int = wire("int16", default=0)
    members: list[MemberResponse] = wire(Array(MemberResponse), since=3, factory=list)
