"""DescribeQuorum (key 55, versions 0 to 2): leader, voters and observers of the metadata's log (KIP-595).

Version 1 tells when replicas fetched and caught up (KIP-836), version 2 the directories and listeners of voters
(KIP-853).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class PartitionToDescribe:
    partition_index: int = wire("int32")


@attrs.define(kw_only=True)
class TopicToDescribe:
    topic_name: str = wire("string")
    partitions: list[PartitionToDescribe] = wire(Array(PartitionToDescribe), factory=list)


@attrs.define(kw_only=True)
class DescribeQuorumRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 55, 0, 2, 0

    topics: list[TopicToDescribe] = wire(Array(TopicToDescribe), factory=list)


@attrs.define(kw_only=True)
class ReplicaState:
    replica_id: int = wire("int32")
    replica_directory_id: bytes = wire("uuid", since=2, default=bytes(16))
    log_end_offset: int = wire("int64")  # -1: unknown
    last_fetch_timestamp: int = wire("int64", since=1, default=-1)  # in milliseconds; -1: unknown, or the leader
    last_caught_up_timestamp: int = wire("int64", since=1, default=-1)  # likewise, but of the leader the present


@attrs.define(kw_only=True)
class PartitionData:
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", since=2, default=None)
    leader_id: int = wire("int32", default=-1)  # -1: unknown
    leader_epoch: int = wire("int32", default=-1)
    high_watermark: int = wire("int64", default=-1)
    current_voters: list[ReplicaState] = wire(Array(ReplicaState), factory=list)
    observers: list[ReplicaState] = wire(Array(ReplicaState), factory=list)


@attrs.define(kw_only=True)
class TopicData:
    topic_name: str = wire("string")
    partitions: list[PartitionData] = wire(Array(PartitionData), factory=list)


@attrs.define(kw_only=True)
class Listener:
    name: str = wire("string")
    host: str = wire("string")
    port: int = wire("uint16")


@attrs.define(kw_only=True)
class Node:
    node_id: int = wire("int32")
    listeners: list[Listener] = wire(Array(Listener), factory=list)


@attrs.define(kw_only=True)
class DescribeQuorumResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 55, 0, 2, 0

    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", since=2, default=None)
    topics: list[TopicData] = wire(Array(TopicData), factory=list)
    nodes: list[Node] = wire(Array(Node), since=2, factory=list)
