"""Messages that write and read records: Produce, Fetch, ListOffsets, DeleteRecords, OffsetForLeaderEpoch."""

from __future__ import annotations

from collections.abc import Sequence, Sized

from kafscale.buffers import Buffer
from kafscale.wire.schema import Array, Message, Struct, wire

# Produce and Fetch name the leader of a partition that another broker leads (KIP-951).


class LeaderIdAndEpoch(Struct):
    leader_id: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32", default=-1)


class NodeEndpoint(Struct):
    node_id: int = wire("int32")
    host: str = wire("string")
    port: int = wire("int32")
    rack: str | None = wire("string", default=None)


class PartitionProduceData(Struct):
    index: int = wire("int32")
    records: memoryview | None = wire("records")


class TopicProduceData(Struct):
    name: str = wire("string", until=12, default="")
    topic_id: bytes = wire("uuid", since=13, default=bytes(16))
    partition_data: list[PartitionProduceData] = wire(Array(PartitionProduceData), factory=list)


class ProduceRequest(Message, key=0, versions=(0, 13), flexible=9):
    """Produce: record batches to append.

    Versions 0 to 2 carry message sets of the old format: clients look for them in ApiVersions (KAFKA-18659), and the
    handler refuses them. Version 10 added leader hints (KIP-951), 12 enrols partitions in a transaction (KIP-890), 13
    has topic ids (KIP-516).
    """

    # 0.2 s of the event loop. A producer's request of 1 MiB (max.request.size) has a quarter of that at the very most.
    ELEMENTS_MAX_COUNT = 50_000
    NEWEST_WITH_NAMES = 12

    transactional_id: str | None = wire("string", since=3, default=None)
    acks: int = wire("int16")  # 0 (no reply), 1 or -1 (all)
    timeout_ms: int = wire("int32")
    topic_data: list[TopicProduceData] = wire(Array(TopicProduceData), factory=list)


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = wire("int32")  # of the record within its batch
    batch_index_error_message: str | None = wire("string", default=None)


class PartitionProduceResponse(Struct):
    index: int = wire("int32")
    error_code: int = wire("int16", default=0)
    base_offset: int = wire("int64", default=-1)
    log_append_time_ms: int = wire("int64", since=2, default=-1)  # -1 unless the topic uses LogAppendTime
    log_start_offset: int = wire("int64", since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = wire(Array(BatchIndexAndErrorMessage), since=8, factory=list)
    error_message: str | None = wire("string", since=8, default=None)
    # set with NOT_LEADER_OR_FOLLOWER
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch, since=10, tag=0, factory=LeaderIdAndEpoch)


class TopicProduceResponse(Struct):
    name: str = wire("string", until=12, default="")
    topic_id: bytes = wire("uuid", since=13, default=bytes(16))
    partition_responses: list[PartitionProduceResponse] = wire(Array(PartitionProduceResponse), factory=list)


class ProduceResponse(Message, answers=ProduceRequest):
    responses: list[TopicProduceResponse] = wire(Array(TopicProduceResponse), factory=list)
    throttle_time_ms: int = wire("int32", since=1, default=0)
    node_endpoints: list[NodeEndpoint] = wire(Array(NodeEndpoint), since=10, tag=0, factory=list)


class ReplicaState(Struct):
    replica_id: int = wire("int32", default=-1)
    replica_epoch: int = wire("int64", default=-1)


class FetchPartition(Struct):
    partition: int = wire("int32")
    current_leader_epoch: int = wire("int32", since=9, default=-1)  # -1: don't check
    fetch_offset: int = wire("int64")
    last_fetched_epoch: int = wire("int32", since=12, default=-1)  # -1: the consumer does not check for truncation
    log_start_offset: int = wire("int64", since=5, default=-1)  # of a follower; -1 from a consumer
    partition_max_bytes: int = wire("int32")


class FetchTopic(Struct):
    topic: str = wire("string", until=12, default="")
    topic_id: bytes = wire("uuid", since=13, default=bytes(16))
    partitions: list[FetchPartition] = wire(Array(FetchPartition), factory=list)


class ForgottenTopic(Struct):
    topic: str = wire("string", until=12, default="")
    topic_id: bytes = wire("uuid", since=13, default=bytes(16))
    partitions: list[int] = wire(Array("int32"), factory=list)


class FetchRequest(Message, key=1, versions=(4, 18), flexible=12):
    """Fetch: record batches from an offset on.

    Version 7 added sessions (KIP-227), 12 truncation by epoch, 13 topic ids (KIP-516), 15 the tagged replica id, 16 the
    leaders' endpoints (KIP-951). The tagged fields of versions 17 and 18, which only replicas of Kafka's metadata send
    (KIP-853, KIP-1166), are skipped: as attributes they made every decoded Fetch 3 to 6 % dearer.
    """

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


class DivergingEpoch(Struct):
    epoch: int = wire("int32", default=-1)
    end_offset: int = wire("int64", default=-1)


class SnapshotId(Struct):
    end_offset: int = wire("int64", default=-1)
    epoch: int = wire("int32", default=-1)


class FetchAbortedTransaction(Struct):
    producer_id: int = wire("int64")
    first_offset: int = wire("int64")


class PartitionData(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)
    high_watermark: int = wire("int64", default=-1)
    last_stable_offset: int = wire("int64", default=-1)  # -1: unknown
    log_start_offset: int = wire("int64", since=5, default=-1)
    diverging_epoch: DivergingEpoch = wire(DivergingEpoch, since=12, tag=0, factory=DivergingEpoch)
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch, since=12, tag=1, factory=LeaderIdAndEpoch)
    snapshot_id: SnapshotId = wire(SnapshotId, since=12, tag=2, factory=SnapshotId)
    # null under read_uncommitted
    aborted_transactions: list[FetchAbortedTransaction] | None = wire(Array(FetchAbortedTransaction), factory=list)
    preferred_read_replica: int = wire("int32", since=11, default=-1)  # -1: read from this broker
    records: Buffer | Sequence[Sized] | None = wire("records", default=b"")  # never null: librdkafka refuses it


class FetchableTopicResponse(Struct):
    topic: str = wire("string", until=12, default="")
    topic_id: bytes = wire("uuid", since=13, default=bytes(16))
    partitions: list[PartitionData] = wire(Array(PartitionData), factory=list)


class FetchResponse(Message, answers=FetchRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", since=7, default=0)
    session_id: int = wire("int32", since=7, default=0)
    responses: list[FetchableTopicResponse] = wire(Array(FetchableTopicResponse), factory=list)
    node_endpoints: list[NodeEndpoint] = wire(Array(NodeEndpoint), since=16, tag=0, factory=list)


class ListOffsetsPartition(Struct):
    partition_index: int = wire("int32")
    current_leader_epoch: int = wire("int32", since=4, default=-1)
    timestamp: int = wire("int64")


class ListOffsetsTopic(Struct):
    name: str = wire("string")
    partitions: list[ListOffsetsPartition] = wire(Array(ListOffsetsPartition), factory=list)


class ListOffsetsRequest(Message, key=2, versions=(1, 10), flexible=6):
    """ListOffsets: offsets by timestamp, or one end of the log.

    Special timestamps: -1 latest, -2 earliest, -3 the record with the greatest timestamp (KIP-734), -4 the earliest
    local one (KIP-405), -5 the latest remote one (KIP-1005).
    """

    replica_id: int = wire("int32", default=-1)  # -1: a consumer
    isolation_level: int = wire("int8", since=2, default=0)  # 0 read_uncommitted, 1 read_committed
    topics: list[ListOffsetsTopic] = wire(Array(ListOffsetsTopic), factory=list)
    timeout_ms: int = wire("int32", since=10, default=0)  # of reads from remote storage (KIP-1075)


class ListOffsetsPartitionResponse(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)
    timestamp: int = wire("int64", default=-1)
    offset: int = wire("int64", default=-1)
    leader_epoch: int = wire("int32", since=4, default=-1)


class ListOffsetsTopicResponse(Struct):
    name: str = wire("string")
    partitions: list[ListOffsetsPartitionResponse] = wire(Array(ListOffsetsPartitionResponse), factory=list)


class ListOffsetsResponse(Message, answers=ListOffsetsRequest):
    throttle_time_ms: int = wire("int32", since=2, default=0)
    topics: list[ListOffsetsTopicResponse] = wire(Array(ListOffsetsTopicResponse), factory=list)


class DeleteRecordsPartition(Struct):
    partition_index: int = wire("int32")
    offset: int = wire("int64")  # -1: the high watermark


class DeleteRecordsTopic(Struct):
    name: str = wire("string")
    partitions: list[DeleteRecordsPartition] = wire(Array(DeleteRecordsPartition), factory=list)


class DeleteRecordsRequest(Message, key=21, versions=(0, 2), flexible=2):
    """DeleteRecords: move the log start offset of partitions up."""

    topics: list[DeleteRecordsTopic] = wire(Array(DeleteRecordsTopic), factory=list)
    timeout_ms: int = wire("int32")


class DeleteRecordsPartitionResult(Struct):
    partition_index: int = wire("int32")
    low_watermark: int = wire("int64", default=-1)
    error_code: int = wire("int16", default=0)


class DeleteRecordsTopicResult(Struct):
    name: str = wire("string")
    partitions: list[DeleteRecordsPartitionResult] = wire(Array(DeleteRecordsPartitionResult), factory=list)


class DeleteRecordsResponse(Message, answers=DeleteRecordsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    topics: list[DeleteRecordsTopicResult] = wire(Array(DeleteRecordsTopicResult), factory=list)


class OffsetForLeaderPartition(Struct):
    partition: int = wire("int32")
    current_leader_epoch: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32")


class OffsetForLeaderTopic(Struct):
    topic: str = wire("string")
    partitions: list[OffsetForLeaderPartition] = wire(Array(OffsetForLeaderPartition), factory=list)


class OffsetForLeaderEpochRequest(Message, key=23, versions=(2, 4), flexible=4):
    """OffsetForLeaderEpoch: the end of a leader epoch, by which consumers notice truncation (KIP-320)."""

    replica_id: int = wire("int32", since=3, default=-2)  # -1: a consumer, -2: unknown
    topics: list[OffsetForLeaderTopic] = wire(Array(OffsetForLeaderTopic), factory=list)


class EpochEndOffset(Struct):
    error_code: int = wire("int16", default=0)
    partition: int = wire("int32")
    leader_epoch: int = wire("int32", default=-1)
    end_offset: int = wire("int64", default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = wire("string")
    partitions: list[EpochEndOffset] = wire(Array(EpochEndOffset), factory=list)


class OffsetForLeaderEpochResponse(Message, answers=OffsetForLeaderEpochRequest):
    throttle_time_ms: int = wire("int32", default=0)
    topics: list[OffsetForLeaderTopicResult] = wire(Array(OffsetForLeaderTopicResult), factory=list)
