"""SyncGroup (key 14, versions 0 to 5): the leader's assignment out, a member's own part back."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class SyncGroupRequestAssignment:
    member_id: str = wire("string")
    assignment: bytes = wire("bytes")  # for consumers a ConsumerProtocolAssignment


@attrs.define(kw_only=True)
class SyncGroupRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 14, 0, 5, 4

    group_id: str = wire("string")
    generation_id: int = wire("int32")
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", since=3, default=None)
    protocol_type: str | None = wire("string", since=5, default=None)
    protocol_name: str | None = wire("string", since=5, default=None)
    # from the leader only
    assignments: list[SyncGroupRequestAssignment] = wire(Array(SyncGroupRequestAssignment), factory=list)


@attrs.define(kw_only=True)
class SyncGroupResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 14, 0, 5, 4

    throttle_time_ms: int = wire("int32", since=1, default=0)
    error_code: int = wire("int16", default=0)
    protocol_type: str | None = wire("string", since=5, default=None)
    protocol_name: str | None = wire("string", since=5, default=None)
    assignment: bytes = wire("bytes", default=b"")
