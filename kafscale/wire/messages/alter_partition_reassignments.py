"""AlterPartitionReassignments (key 45, versions 0 and 1): move partitions to other replicas, or stop that (KIP-455).

Version 1 can forbid that the replication factor changes (KIP-860).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class ReassignablePartition:
    partition_index: int = wire("int32")
    replicas: list[int] | None = wire(Array("int32"), default=None)  # null: cancel what is under way


@attrs.define(kw_only=True)
class ReassignableTopic:
    name: str = wire("string")
    partitions: list[ReassignablePartition] = wire(Array(ReassignablePartition), factory=list)


@attrs.define(kw_only=True)
class AlterPartitionReassignmentsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 45, 0, 1, 0

    timeout_ms: int = wire("int32", default=60000)
    allow_replication_factor_change: bool = wire("bool", since=1, default=True)
    topics: list[ReassignableTopic] = wire(Array(ReassignableTopic), factory=list)


@attrs.define(kw_only=True)
class ReassignablePartitionResponse:
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


@attrs.define(kw_only=True)
class ReassignableTopicResponse:
    name: str = wire("string")
    partitions: list[ReassignablePartitionResponse] = wire(Array(ReassignablePartitionResponse), factory=list)


@attrs.define(kw_only=True)
class AlterPartitionReassignmentsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 45, 0, 1, 0

    throttle_time_ms: int = wire("int32", default=0)
    allow_replication_factor_change: bool = wire("bool", since=1, default=True)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    responses: list[ReassignableTopicResponse] = wire(Array(ReassignableTopicResponse), factory=list)
