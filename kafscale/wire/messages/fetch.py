"""Fetch (key 1, versions 4 to 18): record batches from an offset on.

Version 7 added sessions (KIP-227), 12 the flexible encoding and truncation by epoch, 13 topic ids in place of names
(KIP-516), 15 moved the replica id into a tagged field, 16 added the leaders' endpoints (KIP-951).

Versions 17 and 18 added a directory id and a high watermark to each partition, as tagged fields that only replicas of
Kafka's metadata send (KIP-853, KIP-1166). They are not declared, but skipped like other unknown tags: as attributes of
each partition they made every decoded Fetch 3 to 6 % dearer.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized

import attrs

from kafscale.buffers import Buffer
from kafscale.wire.messages.leaders import LeaderIdAndEpoch, NodeEndpoint
from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class ReplicaState:
    replica_id: int = wire("int32", default=-1)
    replica_epoch: int = wire("int64", default=-1)


@attrs.define(kw_only=True)
class FetchPartition:
    partition: int = wire("int32")
    current_leader_epoch: int = wire("int32", since=9, default=-1)  # -1: don't check
    fetch_offset: int = wire("int64")
    last_fetched_epoch: int = wire("int32", since=12, default=-1)  # -1: the consumer does not check for truncation
    log_start_offset: int = wire("int64", since=5, default=-1)  # of a follower; -1 from a consumer
    partition_max_bytes: int = wire("int32")


@attrs.define(kw_only=True)
class FetchTopic:
    topic: str = wire("string", until=12, default="")
    topic_id: bytes = wire("uuid", since=13, default=bytes(16))
    partitions: list[FetchPartition] = wire(Array(FetchPartition), factory=list)


@attrs.define(kw_only=True)
class ForgottenTopic:
    topic: str = wire("string", until=12, default="")
    topic_id: bytes = wire("uuid", since=13, default=bytes(16))
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class FetchRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 1, 4, 18, 12

    cluster_id: str | None = wire("string", since=12, tag=0, default=None)
    replica_id: int = wire("int32", until=14, default=-1)  # -1: a consumer
    replica_state: ReplicaState = wire(ReplicaState, since=15, tag=1, factory=ReplicaState)
    max_wait_ms: int = wire("int32")
    min_bytes: int = wire("int32")
    max_bytes: int = wire("int32", default=0x7FFFFFFF)
    isolation_level: int = wire("int8", default=0)  # 0 read_uncommitted, 1 read_committed
    session_id: int = wire("int32", since=7, default=0)  # 0: no session, or a new one
    session_epoch: int = wire("int32", since=7, default=-1)  # -1: no session; 0: a new one
    topics: list[FetchTopic] = wire(Array(FetchTopic), factory=list)
    forgotten_topics_data: list[ForgottenTopic] = wire(Array(ForgottenTopic), since=7, factory=list)
    rack_id: str = wire("string", since=11, default="")


@attrs.define(kw_only=True)
class EpochEndOffset:
    epoch: int = wire("int32", default=-1)
    end_offset: int = wire("int64", default=-1)


@attrs.define(kw_only=True)
class SnapshotId:
    end_offset: int = wire("int64", default=-1)
    epoch: int = wire("int32", default=-1)


@attrs.define(kw_only=True)
class AbortedTransaction:
    producer_id: int = wire("int64")
    first_offset: int = wire("int64")


@attrs.define(kw_only=True)
class PartitionData:
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)
    high_watermark: int = wire("int64", default=-1)
    last_stable_offset: int = wire("int64", default=-1)  # -1: unknown
    log_start_offset: int = wire("int64", since=5, default=-1)
    diverging_epoch: EpochEndOffset = wire(EpochEndOffset, since=12, tag=0, factory=EpochEndOffset)
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch, since=12, tag=1, factory=LeaderIdAndEpoch)
    snapshot_id: SnapshotId = wire(SnapshotId, since=12, tag=2, factory=SnapshotId)
    # null under read_uncommitted
    aborted_transactions: list[AbortedTransaction] | None = wire(Array(AbortedTransaction), factory=list)
    preferred_read_replica: int = wire("int32", since=11, default=-1)  # -1: read from this broker
    records: Buffer | Sequence[Sized] | None = wire("records", default=b"")  # never null: librdkafka refuses it


@attrs.define(kw_only=True)
class FetchableTopicResponse:
    topic: str = wire("string", until=12, default="")
    topic_id: bytes = wire("uuid", since=13, default=bytes(16))
    partitions: list[PartitionData] = wire(Array(PartitionData), factory=list)


@attrs.define(kw_only=True)
class FetchResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 1, 4, 18, 12

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", since=7, default=0)
    session_id: int = wire("int32", since=7, default=0)
    responses: list[FetchableTopicResponse] = wire(Array(FetchableTopicResponse), factory=list)
    node_endpoints: list[NodeEndpoint] = wire(Array(NodeEndpoint), since=16, tag=0, factory=list)
