"""Messages of classic consumer groups, and those that list, describe and delete groups."""

from __future__ import annotations

from kafscale.wire.schema import Array, Message, Struct, wire


class JoinGroupRequestProtocol(Struct):
    name: str = wire("string")
    metadata: bytes = wire("bytes")  # for consumers a ConsumerProtocolSubscription


class JoinGroupRequest(Message, key=11, versions=(0, 9), flexible=6):
    """JoinGroup: take part in the next generation of a consumer group."""

    group_id: str = wire("string")
    session_timeout_ms: int = wire("int32")
    rebalance_timeout_ms: int = wire("int32", since=1, default=-1)  # -1 (version 0): as the session timeout
    member_id: str = wire("string")  # empty: not a member yet
    group_instance_id: str | None = wire("string", since=5, default=None)  # of a static member
    protocol_type: str = wire("string")
    protocols: list[JoinGroupRequestProtocol] = wire(Array(JoinGroupRequestProtocol), factory=list)
    reason: str | None = wire("string", since=8, default=None)


class JoinGroupResponseMember(Struct):
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", since=5, default=None)
    metadata: bytes = wire("bytes")


class JoinGroupResponse(Message, answers=JoinGroupRequest):
    throttle_time_ms: int = wire("int32", since=2, default=0)
    error_code: int = wire("int16", default=0)
    generation_id: int = wire("int32", default=-1)
    protocol_type: str | None = wire("string", since=7, default=None)
    protocol_name: str | None = wire("string", default="")  # null only from version 7 on
    leader: str = wire("string", default="")
    skip_assignment: bool = wire("bool", since=9, default=False)
    member_id: str = wire("string", default="")
    members: list[JoinGroupResponseMember] = wire(Array(JoinGroupResponseMember), factory=list)  # for the leader only


class SyncGroupRequestAssignment(Struct):
    member_id: str = wire("string")
    assignment: bytes = wire("bytes")  # for consumers a ConsumerProtocolAssignment


class SyncGroupRequest(Message, key=14, versions=(0, 5), flexible=4):
    """SyncGroup: the leader's assignment out, a member's own part back."""

    group_id: str = wire("string")
    generation_id: int = wire("int32")
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", since=3, default=None)
    protocol_type: str | None = wire("string", since=5, default=None)
    protocol_name: str | None = wire("string", since=5, default=None)
    # from the leader only
    assignments: list[SyncGroupRequestAssignment] = wire(Array(SyncGroupRequestAssignment), factory=list)


class SyncGroupResponse(Message, answers=SyncGroupRequest):
    throttle_time_ms: int = wire("int32", since=1, default=0)
    error_code: int = wire("int16", default=0)
    protocol_type: str | None = wire("string", since=5, default=None)
    protocol_name: str | None = wire("string", since=5, default=None)
    assignment: bytes = wire("bytes", default=b"")


class HeartbeatRequest(Message, key=12, versions=(0, 4), flexible=4):
    """Heartbeat: a member is alive; the reply says whether the group rebalances."""

    group_id: str = wire("string")
    generation_id: int = wire("int32")
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", since=3, default=None)


class HeartbeatResponse(Message, answers=HeartbeatRequest):
    throttle_time_ms: int = wire("int32", since=1, default=0)
    error_code: int = wire("int16", default=0)


class MemberIdentity(Struct):
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", default=None)
    reason: str | None = wire("string", since=5, default=None)


class LeaveGroupRequest(Message, key=13, versions=(0, 5), flexible=4):
    """LeaveGroup: members leave their group: one, or from version 3 on several (KIP-345)."""

    group_id: str = wire("string")
    member_id: str = wire("string", until=2, default="")
    members: list[MemberIdentity] = wire(Array(MemberIdentity), since=3, factory=list)


class MemberResponse(Struct):
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", default=None)
    error_code: int = wire("int16", default=0)


class LeaveGroupResponse(Message, answers=LeaveGroupRequest):
    throttle_time_ms: int = wire("int32", since=1, default=0)
    error_code: int = wire("int16", default=0)
    members: list[MemberResponse] = wire(Array(MemberResponse), since=3, factory=list)


class ListGroupsRequest(Message, key=16, versions=(0, 5), flexible=3):
    """ListGroups: the groups of this broker. Version 4 added states (KIP-518), 5 types (KIP-848)."""

    states_filter: list[str] = wire(Array("string"), since=4, factory=list)  # empty: all
    types_filter: list[str] = wire(Array("string"), since=5, factory=list)  # empty: all


class ListedGroup(Struct):
    group_id: str = wire("string")
    protocol_type: str = wire("string", default="")
    group_state: str = wire("string", since=4, default="")
    group_type: str = wire("string", since=5, default="")


class ListGroupsResponse(Message, answers=ListGroupsRequest):
    throttle_time_ms: int = wire("int32", since=1, default=0)
    error_code: int = wire("int16", default=0)
    groups: list[ListedGroup] = wire(Array(ListedGroup), factory=list)


class DescribeGroupsRequest(Message, key=15, versions=(0, 6), flexible=5):
    """DescribeGroups: state, protocol and members of groups. In version 6 a missing group is an error (KIP-1043)."""

    groups: list[str] = wire(Array("string"), factory=list)
    include_authorized_operations: bool = wire("bool", since=3, default=False)


class DescribedGroupMember(Struct):
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", since=4, default=None)
    client_id: str = wire("string", default="")
    client_host: str = wire("string", default="")
    member_metadata: bytes = wire("bytes", default=b"")
    member_assignment: bytes = wire("bytes", default=b"")


class DescribedGroup(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", since=6, default=None)
    group_id: str = wire("string")
    group_state: str = wire("string", default="")
    protocol_type: str = wire("string", default="")
    protocol_data: str = wire("string", default="")  # the name of the chosen protocol
    members: list[DescribedGroupMember] = wire(Array(DescribedGroupMember), factory=list)
    # a bit field; this value means "not asked for"
    authorized_operations: int = wire("int32", since=3, default=-2147483648)


class DescribeGroupsResponse(Message, answers=DescribeGroupsRequest):
    throttle_time_ms: int = wire("int32", since=1, default=0)
    groups: list[DescribedGroup] = wire(Array(DescribedGroup), factory=list)


class DeleteGroupsRequest(Message, key=42, versions=(0, 2), flexible=2):
    """DeleteGroups: groups to delete with their offsets."""

    groups_names: list[str] = wire(Array("string"), factory=list)


class DeletableGroupResult(Struct):
    group_id: str = wire("string")
    error_code: int = wire("int16", default=0)


class DeleteGroupsResponse(Message, answers=DeleteGroupsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    results: list[DeletableGroupResult] = wire(Array(DeletableGroupResult), factory=list)
