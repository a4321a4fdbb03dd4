"""ConsumerGroupDescribe (key 69, versions 0 and 1): state and members of groups of KIP-848's protocol.

Version 1 tells which members still speak the classic protocol (KIP-1099).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class ConsumerGroupDescribeRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 69, 0, 1, 0

    group_ids: list[str] = wire(Array("string"), factory=list)
    include_authorized_operations: bool = wire("bool", default=False)


@attrs.define(kw_only=True)
class TopicPartitions:
    topic_id: bytes = wire("uuid")
    topic_name: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = wire(Array(TopicPartitions), factory=list)


@attrs.define(kw_only=True)
class Member:
    member_id: str = wire("string")
    instance_id: str | None = wire("string", default=None)
    rack_id: str | None = wire("string", default=None)
    member_epoch: int = wire("int32")
    client_id: str = wire("string")
    client_host: str = wire("string")
    subscribed_topic_names: list[str] = wire(Array("string"), factory=list)
    subscribed_topic_regex: str | None = wire("string", default=None)
    assignment: Assignment = wire(Assignment, factory=Assignment)  # what it has now
    target_assignment: Assignment = wire(Assignment, factory=Assignment)  # what it is to have
    member_type: int = wire("int8", since=1, default=-1)  # -1 unknown, 0 classic, 1 consumer


@attrs.define(kw_only=True)
class DescribedGroup:
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    group_id: str = wire("string")
    group_state: str = wire("string", default="")
    group_epoch: int = wire("int32", default=0)
    assignment_epoch: int = wire("int32", default=0)
    assignor_name: str = wire("string", default="")
    members: list[Member] = wire(Array(Member), factory=list)
    authorized_operations: int = wire("int32", default=-2147483648)  # a bit field; this value means "not asked for"


@attrs.define(kw_only=True)
class ConsumerGroupDescribeResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 69, 0, 1, 0

    throttle_time_ms: int = wire("int32", default=0)
    groups: list[DescribedGroup] = wire(Array(DescribedGroup), factory=list)
