"""DescribeGroups (key 15, versions 0 to 6): state, protocol and members of groups.

In version 6 a group that does not exist is an error (KIP-1043).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class DescribeGroupsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 15, 0, 6, 5

    groups: list[str] = wire(Array("string"), factory=list)
    include_authorized_operations: bool = wire("bool", since=3, default=False)


@attrs.define(kw_only=True)
class DescribedGroupMember:
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", since=4, default=None)
    client_id: str = wire("string", default="")
    client_host: str = wire("string", default="")
    member_metadata: bytes = wire("bytes", default=b"")
    member_assignment: bytes = wire("bytes", default=b"")


@attrs.define(kw_only=True)
class DescribedGroup:
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", since=6, default=None)
    group_id: str = wire("string")
    group_state: str = wire("string", default="")
    protocol_type: str = wire("string", default="")
    protocol_data: str = wire("string", default="")  # the name of the chosen protocol
    members: list[DescribedGroupMember] = wire(Array(DescribedGroupMember), factory=list)
    # a bit field; this value means "not asked for"
    authorized_operations: int = wire("int32", since=3, default=-2147483648)


@attrs.define(kw_only=True)
class DescribeGroupsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 15, 0, 6, 5

    throttle_time_ms: int = wire("int32", since=1, default=0)
    groups: list[DescribedGroup] = wire(Array(DescribedGroup), factory=list)
