"""Metadata (key 3, versions 0 to 13): brokers, topics, and who leads each partition.

Version 0 asks for all topics by an empty list; from 1 on that is null, and an empty list asks for none.
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class MetadataRequestTopic:
    topic_id: bytes = wire("uuid", since=10, default=bytes(16))
    name: str | None = wire("string")  # null when asked for by id


@attrs.define(kw_only=True)
class MetadataRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 3, 0, 13, 9

    # null (in version 0: empty) asks for all topics
    topics: list[MetadataRequestTopic] | None = wire(Array(MetadataRequestTopic))
    allow_auto_topic_creation: bool = wire("bool", since=4, default=True)
    include_cluster_authorized_operations: bool = wire("bool", since=8, until=10, default=False)
    include_topic_authorized_operations: bool = wire("bool", since=8, default=False)


@attrs.define(kw_only=True)
class MetadataResponseBroker:
    node_id: int = wire("int32")
    host: str = wire("string")
    port: int = wire("int32")
    rack: str | None = wire("string", since=1, default=None)


@attrs.define(kw_only=True)
class MetadataResponsePartition:
    error_code: int = wire("int16", default=0)
    partition_index: int = wire("int32")
    leader_id: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32", since=7, default=-1)
    replica_nodes: list[int] = wire(Array("int32"), factory=list)
    isr_nodes: list[int] = wire(Array("int32"), factory=list)
    offline_replicas: list[int] = wire(Array("int32"), since=5, factory=list)


@attrs.define(kw_only=True)
class MetadataResponseTopic:
    error_code: int = wire("int16", default=0)
    name: str | None = wire("string")  # null for an unknown id
    topic_id: bytes = wire("uuid", since=10, default=bytes(16))
    is_internal: bool = wire("bool", since=1, default=False)
    partitions: list[MetadataResponsePartition] = wire(
        Array(MetadataResponsePartition, may_be_encoded=True), factory=list
    )
    # a bit field; this value means "not asked for"
    topic_authorized_operations: int = wire("int32", since=8, default=-2147483648)


@attrs.define(kw_only=True)
class MetadataResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 3, 0, 13, 9

    throttle_time_ms: int = wire("int32", since=3, default=0)
    brokers: list[MetadataResponseBroker] = wire(Array(MetadataResponseBroker), factory=list)
    cluster_id: str | None = wire("string", since=2, default=None)
    controller_id: int = wire("int32", since=1, default=-1)
    topics: list[MetadataResponseTopic] = wire(Array(MetadataResponseTopic), factory=list)
    # as `topic_authorized_operations`
    cluster_authorized_operations: int = wire("int32", since=8, until=10, default=-2147483648)
    error_code: int = wire("int16", since=13, default=0)
