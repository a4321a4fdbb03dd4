"""DescribeTopicPartitions (key 75, version 0): topics and their partitions, in pages (KIP-966).

An answer ends with the cursor of the next page, or with null.
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, Nullable, wire


@attrs.define(kw_only=True)
class TopicRequest:
    name: str = wire("string")


@attrs.define(kw_only=True)
class Cursor:
    topic_name: str = wire("string")
    partition_index: int = wire("int32")


@attrs.define(kw_only=True)
class DescribeTopicPartitionsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 75, 0, 0, 0

    topics: list[TopicRequest] = wire(Array(TopicRequest), factory=list)
    response_partition_limit: int = wire("int32", default=2000)
    cursor: Cursor | None = wire(Nullable(Cursor), default=None)  # null: from the beginning


@attrs.define(kw_only=True)
class DescribeTopicPartitionsResponsePartition:
    error_code: int = wire("int16", default=0)
    partition_index: int = wire("int32")
    leader_id: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32", default=-1)
    replica_nodes: list[int] = wire(Array("int32"), factory=list)
    isr_nodes: list[int] = wire(Array("int32"), factory=list)
    eligible_leader_replicas: list[int] | None = wire(Array("int32"), default=None)  # null: the broker does not know
    last_known_elr: list[int] | None = wire(Array("int32"), default=None)
    offline_replicas: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class DescribeTopicPartitionsResponseTopic:
    error_code: int = wire("int16", default=0)
    name: str | None = wire("string")
    topic_id: bytes = wire("uuid", default=bytes(16))
    is_internal: bool = wire("bool", default=False)
    partitions: list[DescribeTopicPartitionsResponsePartition] = wire(
        Array(DescribeTopicPartitionsResponsePartition), factory=list
    )
    # a bit field; this value means "not asked for"
    topic_authorized_operations: int = wire("int32", default=-2147483648)


@attrs.define(kw_only=True)
class DescribeTopicPartitionsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 75, 0, 0, 0

    throttle_time_ms: int = wire("int32", default=0)
    topics: list[DescribeTopicPartitionsResponseTopic] = wire(Array(DescribeTopicPartitionsResponseTopic), factory=list)
    next_cursor: Cursor | None = wire(Nullable(Cursor), default=None)  # null: that was all
