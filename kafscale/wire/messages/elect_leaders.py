"""ElectLeaders (key 43, versions 0 to 2): have partitions led by their preferred or by any live replica (KIP-460)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class TopicPartitions:
    topic: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class ElectLeadersRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 43, 0, 2, 2

    election_type: int = wire("int8", since=1, default=0)  # 0 preferred, 1 unclean
    topic_partitions: list[TopicPartitions] | None = wire(Array(TopicPartitions))  # null: all partitions
    timeout_ms: int = wire("int32", default=60000)


@attrs.define(kw_only=True)
class PartitionResult:
    partition_id: int = wire("int32")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


@attrs.define(kw_only=True)
class ReplicaElectionResult:
    topic: str = wire("string")
    partition_result: list[PartitionResult] = wire(Array(PartitionResult), factory=list)


@attrs.define(kw_only=True)
class ElectLeadersResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 43, 0, 2, 2

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", since=1, default=0)
    replica_election_results: list[ReplicaElectionResult] = wire(Array(ReplicaElectionResult), factory=list)
