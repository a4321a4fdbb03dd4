"""ListPartitionReassignments (key 46, version 0): partitions that are on their way to other replicas (KIP-455)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class ListPartitionReassignmentsTopics:
    name: str = wire("string")
    partition_indexes: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class ListPartitionReassignmentsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 46, 0, 0, 0

    timeout_ms: int = wire("int32", default=60000)
    # null: all that are under way
    topics: list[ListPartitionReassignmentsTopics] | None = wire(Array(ListPartitionReassignmentsTopics), default=None)


@attrs.define(kw_only=True)
class OngoingPartitionReassignment:
    partition_index: int = wire("int32")
    replicas: list[int] = wire(Array("int32"), factory=list)
    adding_replicas: list[int] = wire(Array("int32"), factory=list)
    removing_replicas: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class OngoingTopicReassignment:
    name: str = wire("string")
    partitions: list[OngoingPartitionReassignment] = wire(Array(OngoingPartitionReassignment), factory=list)


@attrs.define(kw_only=True)
class ListPartitionReassignmentsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 46, 0, 0, 0

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    topics: list[OngoingTopicReassignment] = wire(Array(OngoingTopicReassignment), factory=list)
