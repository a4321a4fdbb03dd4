"""DescribeProducers (key 61, version 0): who has written to partitions of late, with open transactions (KIP-664)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class TopicRequest:
    name: str = wire("string")
    partition_indexes: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class DescribeProducersRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 61, 0, 0, 0

    topics: list[TopicRequest] = wire(Array(TopicRequest), factory=list)


@attrs.define(kw_only=True)
class ProducerState:
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int32")  # an int16 everywhere else
    last_sequence: int = wire("int32", default=-1)
    last_timestamp: int = wire("int64", default=-1)  # in milliseconds
    coordinator_epoch: int = wire("int32")  # of the last end marker; -1: none
    current_txn_start_offset: int = wire("int64", default=-1)  # -1: no transaction is open


@attrs.define(kw_only=True)
class PartitionResponse:
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    active_producers: list[ProducerState] = wire(Array(ProducerState), factory=list)


@attrs.define(kw_only=True)
class TopicResponse:
    name: str = wire("string")
    partitions: list[PartitionResponse] = wire(Array(PartitionResponse), factory=list)


@attrs.define(kw_only=True)
class DescribeProducersResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 61, 0, 0, 0

    throttle_time_ms: int = wire("int32", default=0)
    topics: list[TopicResponse] = wire(Array(TopicResponse), factory=list)
