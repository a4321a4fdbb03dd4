"""Produce (key 0, versions 0 to 13): record batches to append.

Versions 0 to 2 carry message sets of the old format. They are here because clients look for them in ApiVersions
(KAFKA-18659); the handler refuses them. Version 10 added the leader hints (KIP-951), 12 adds partitions to a
transaction by itself (KIP-890), 13 has topic ids in place of names (KIP-516).
"""

from __future__ import annotations

import attrs

from kafscale.wire.messages.leaders import LeaderIdAndEpoch, NodeEndpoint
from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class PartitionProduceData:
    index: int = wire("int32")
    records: memoryview | None = wire("records")


@attrs.define(kw_only=True)
class TopicProduceData:
    name: str = wire("string", until=12, default="")
    topic_id: bytes = wire("uuid", since=13, default=bytes(16))
    partition_data: list[PartitionProduceData] = wire(Array(PartitionProduceData), factory=list)


@attrs.define(kw_only=True)
class ProduceRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, 13, 9
    # 0.2 s of the event loop. A producer's request of 1 MiB (max.request.size) has a quarter of that at the very most.
    ELEMENTS_MAX_COUNT = 50_000
    NEWEST_WITH_NAMES = 12

    transactional_id: str | None = wire("string", since=3, default=None)
    acks: int = wire("int16")  # 0 (no reply), 1 or -1 (all)
    timeout_ms: int = wire("int32")
    topic_data: list[TopicProduceData] = wire(Array(TopicProduceData), factory=list)


@attrs.define(kw_only=True)
class BatchIndexAndErrorMessage:
    batch_index: int = wire("int32")  # of the record within its batch
    batch_index_error_message: str | None = wire("string", default=None)


@attrs.define(kw_only=True)
class PartitionProduceResponse:
    index: int = wire("int32")
    error_code: int = wire("int16", default=0)
    base_offset: int = wire("int64", default=-1)
    log_append_time_ms: int = wire("int64", since=2, default=-1)  # -1 unless the topic uses LogAppendTime
    log_start_offset: int = wire("int64", since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = wire(Array(BatchIndexAndErrorMessage), since=8, factory=list)
    error_message: str | None = wire("string", since=8, default=None)
    # set with NOT_LEADER_OR_FOLLOWER
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch, since=10, tag=0, factory=LeaderIdAndEpoch)


@attrs.define(kw_only=True)
class TopicProduceResponse:
    name: str = wire("string", until=12, default="")
    topic_id: bytes = wire("uuid", since=13, default=bytes(16))
    partition_responses: list[PartitionProduceResponse] = wire(Array(PartitionProduceResponse), factory=list)


@attrs.define(kw_only=True)
class ProduceResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 0, 0, 13, 9

    responses: list[TopicProduceResponse] = wire(Array(TopicProduceResponse), factory=list)
    throttle_time_ms: int = wire("int32", since=1, default=0)
    node_endpoints: list[NodeEndpoint] = wire(Array(NodeEndpoint), since=10, tag=0, factory=list)
