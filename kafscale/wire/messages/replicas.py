"""Messages about partitions' leaders, replicas and directories."""

from __future__ import annotations

from kafscale.wire.schema import OWN_TAG, Array, Message, Nullable, Struct, wire


class ElectedTopicPartitions(Struct):
    topic: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


class ElectLeadersRequest(Message, key=43, versions=(0, 2), flexible=2):
    """ElectLeaders: let the preferred or any live replica lead partitions (KIP-460)."""

    election_type: int = wire("int8", since=1, default=0)  # 0 preferred, 1 unclean
    topic_partitions: list[ElectedTopicPartitions] | None = wire(Array(ElectedTopicPartitions))  # null: all partitions
    timeout_ms: int = wire("int32", default=60000)


class PartitionResult(Struct):
    partition_id: int = wire("int32")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


class ReplicaElectionResult(Struct):
    topic: str = wire("string")
    partition_result: list[PartitionResult] = wire(Array(PartitionResult), factory=list)


class ElectLeadersResponse(Message, answers=ElectLeadersRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", since=1, default=0)
    replica_election_results: list[ReplicaElectionResult] = wire(Array(ReplicaElectionResult), factory=list)


class ReassignablePartition(Struct):
    partition_index: int = wire("int32")
    replicas: list[int] | None = wire(Array("int32"), default=None)  # null: cancel what is under way


class ReassignableTopic(Struct):
    name: str = wire("string")
    partitions: list[ReassignablePartition] = wire(Array(ReassignablePartition), factory=list)


class AlterPartitionReassignmentsRequest(Message, key=45, versions=(0, 1), flexible=0):
    """AlterPartitionReassignments: move partitions, or stop moves (KIP-455, KIP-860)."""

    timeout_ms: int = wire("int32", default=60000)
    allow_replication_factor_change: bool = wire("bool", since=1, default=True)
    topics: list[ReassignableTopic] = wire(Array(ReassignableTopic), factory=list)


class ReassignablePartitionResponse(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


class ReassignableTopicResponse(Struct):
    name: str = wire("string")
    partitions: list[ReassignablePartitionResponse] = wire(Array(ReassignablePartitionResponse), factory=list)


class AlterPartitionReassignmentsResponse(Message, answers=AlterPartitionReassignmentsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    allow_replication_factor_change: bool = wire("bool", since=1, default=True)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    responses: list[ReassignableTopicResponse] = wire(Array(ReassignableTopicResponse), factory=list)


class ListPartitionReassignmentsTopics(Struct):
    name: str = wire("string")
    partition_indexes: list[int] = wire(Array("int32"), factory=list)


class ListPartitionReassignmentsRequest(Message, key=46, versions=(0, 0), flexible=0):
    """ListPartitionReassignments: partitions that are on their way to other replicas (KIP-455)."""

    timeout_ms: int = wire("int32", default=60000)
    # null: all that are under way
    topics: list[ListPartitionReassignmentsTopics] | None = wire(Array(ListPartitionReassignmentsTopics), default=None)


class OngoingPartitionReassignment(Struct):
    partition_index: int = wire("int32")
    replicas: list[int] = wire(Array("int32"), factory=list)
    adding_replicas: list[int] = wire(Array("int32"), factory=list)
    removing_replicas: list[int] = wire(Array("int32"), factory=list)


class OngoingTopicReassignment(Struct):
    name: str = wire("string")
    partitions: list[OngoingPartitionReassignment] = wire(Array(OngoingPartitionReassignment), factory=list)


class ListPartitionReassignmentsResponse(Message, answers=ListPartitionReassignmentsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    topics: list[OngoingTopicReassignment] = wire(Array(OngoingTopicReassignment), factory=list)


# ListPartitionReassignments of KafScale's CLI: the load of each broker, and the moves that balancing would make.
# A broker that is not the controller, or does not know these fields, gives no `balance`.


class BalancedBroker(Struct):
    """A serving broker, its present or coming load, and the planned one; -1 bytes a second: unknown."""

    broker_id: int = wire("int32")
    bytes_per_second: int = wire("int64")
    partition_count: int = wire("int32")
    planned_bytes_per_second: int = wire("int64")
    planned_partition_count: int = wire("int32")


class BusyPartition(Struct):
    topic: str = wire("string")
    partition_index: int = wire("int32")
    bytes_per_second: int = wire("int64")


class PlannedMove(Struct):
    topic: str = wire("string")
    partition_index: int = wire("int32")
    target: int = wire("int32")


class ToldBalance(Struct):
    """`is_waiting`: nothing is balanced now, as not all brokers have measured their load."""

    is_waiting: bool = wire("bool")
    brokers: list[BalancedBroker] = wire(Array(BalancedBroker))
    busiest: list[BusyPartition] = wire(Array(BusyPartition))
    moves: list[PlannedMove] = wire(Array(PlannedMove))


class BalanceRequest(ListPartitionReassignmentsRequest):
    """`released` are topics whose manual moves may be changed; null: all."""

    wants_balance: bool = wire("bool", tag=OWN_TAG, default=False)
    releases_all: bool = wire("bool", tag=OWN_TAG + 1, default=False)
    released: list[str] = wire(Array("string"), tag=OWN_TAG + 2, factory=list)


class BalanceResponse(ListPartitionReassignmentsResponse):
    balance: ToldBalance | None = wire(Nullable(ToldBalance), tag=OWN_TAG, default=None)


class AlterReplicaLogDirTopic(Struct):
    name: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


class AlterReplicaLogDir(Struct):
    path: str = wire("string")  # absolute
    topics: list[AlterReplicaLogDirTopic] = wire(Array(AlterReplicaLogDirTopic), factory=list)


class AlterReplicaLogDirsRequest(Message, key=34, versions=(1, 2), flexible=2):
    """AlterReplicaLogDirs: move replicas between the directories of a broker (KIP-113)."""

    dirs: list[AlterReplicaLogDir] = wire(Array(AlterReplicaLogDir), factory=list)


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = wire("string")
    partitions: list[AlterReplicaLogDirPartitionResult] = wire(Array(AlterReplicaLogDirPartitionResult), factory=list)


class AlterReplicaLogDirsResponse(Message, answers=AlterReplicaLogDirsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    results: list[AlterReplicaLogDirTopicResult] = wire(Array(AlterReplicaLogDirTopicResult), factory=list)


class DescribableLogDirTopic(Struct):
    topic: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


class DescribeLogDirsRequest(Message, key=35, versions=(1, 4), flexible=2):
    """DescribeLogDirs: the log directories and the size of each partition in them."""

    topics: list[DescribableLogDirTopic] | None = wire(Array(DescribableLogDirTopic))  # null: all of them


class DescribeLogDirsPartition(Struct):
    partition_index: int = wire("int32")
    partition_size: int = wire("int64")
    offset_lag: int = wire("int64", default=0)  # how far a future replica is behind
    is_future_key: bool = wire("bool", default=False)


class DescribeLogDirsTopic(Struct):
    name: str = wire("string")
    partitions: list[DescribeLogDirsPartition] = wire(Array(DescribeLogDirsPartition), factory=list)


class DescribeLogDirsResult(Struct):
    error_code: int = wire("int16", default=0)
    log_dir: str = wire("string")
    topics: list[DescribeLogDirsTopic] = wire(Array(DescribeLogDirsTopic), factory=list)
    total_bytes: int = wire("int64", since=4, default=-1)
    usable_bytes: int = wire("int64", since=4, default=-1)


class DescribeLogDirsResponse(Message, answers=DescribeLogDirsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", since=3, default=0)
    results: list[DescribeLogDirsResult] = wire(Array(DescribeLogDirsResult), factory=list)
