"""Messages about partitions' leaders, replicas and directories."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import OWN_TAG, Array, Message, Nullable, wire


@attrs.define(kw_only=True)
class ElectedTopicPartitions:
    topic: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class ElectLeadersRequest(Message, key=43, versions=(0, 2), flexible=2):
    """ElectLeaders: let the preferred or any live replica lead partitions (KIP-460)."""

    election_type: int = wire("int8", since=1, default=0)  # 0 preferred, 1 unclean
    topic_partitions: list[ElectedTopicPartitions] | None = wire(Array(ElectedTopicPartitions))  # null: all partitions
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
class ElectLeadersResponse(Message, answers=ElectLeadersRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", since=1, default=0)
    replica_election_results: list[ReplicaElectionResult] = wire(Array(ReplicaElectionResult), factory=list)


@attrs.define(kw_only=True)
class ReassignablePartition:
    partition_index: int = wire("int32")
    replicas: list[int] | None = wire(Array("int32"), default=None)  # null: cancel what is under way


@attrs.define(kw_only=True)
class ReassignableTopic:
    name: str = wire("string")
    partitions: list[ReassignablePartition] = wire(Array(ReassignablePartition), factory=list)


@attrs.define(kw_only=True)
class AlterPartitionReassignmentsRequest(Message, key=45, versions=(0, 1), flexible=0):
    """AlterPartitionReassignments: move partitions, or stop moves (KIP-455, KIP-860)."""

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
class AlterPartitionReassignmentsResponse(Message, answers=AlterPartitionReassignmentsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    allow_replication_factor_change: bool = wire("bool", since=1, default=True)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    responses: list[ReassignableTopicResponse] = wire(Array(ReassignableTopicResponse), factory=list)


@attrs.define(kw_only=True)
class ListPartitionReassignmentsTopics:
    name: str = wire("string")
    partition_indexes: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class ListPartitionReassignmentsRequest(Message, key=46, versions=(0, 0), flexible=0):
    """ListPartitionReassignments: partitions that are on their way to other replicas (KIP-455)."""

    timeout_ms: int = wire("int32", default=60000)
    # null: all that are under way
    topics: list[ListPartitionReassignmentsTopics] | None = wire(Array(ListPartitionReassignmentsTopics), default=None)


@attrs.define(kw_only=True)
class OngoingPartitionReassignment:
    partition_index: int = wire("int32")
    replicas: list[int] = wire(Array("int32"), factory=list)
    adding_replicas: list[int] = wire(Array("int32"), factory=list)
    removing_replicas: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class OngoingTopicReassignment:
    name: str = wire("string")
    partitions: list[OngoingPartitionReassignment] = wire(Array(OngoingPartitionReassignment), factory=list)


@attrs.define(kw_only=True)
class ListPartitionReassignmentsResponse(Message, answers=ListPartitionReassignmentsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    topics: list[OngoingTopicReassignment] = wire(Array(OngoingTopicReassignment), factory=list)


# ListPartitionReassignments of KafScale's CLI: the load of each broker, and the moves that balancing would make.
# A broker that is not the controller, or does not know these fields, gives no `balance`.


@attrs.define(kw_only=True)
class BalancedBroker:
    """A serving broker, its present or coming load, and the planned one; -1 bytes a second: unknown."""

    broker_id: int = wire("int32")
    bytes_per_second: int = wire("int64")
    partition_count: int = wire("int32")
    planned_bytes_per_second: int = wire("int64")
    planned_partition_count: int = wire("int32")


@attrs.define(kw_only=True)
class BusyPartition:
    topic: str = wire("string")
    partition_index: int = wire("int32")
    bytes_per_second: int = wire("int64")


@attrs.define(kw_only=True)
class PlannedMove:
    topic: str = wire("string")
    partition_index: int = wire("int32")
    target: int = wire("int32")


@attrs.define(kw_only=True)
class ToldBalance:
    """`is_waiting`: nothing is balanced now, as not all brokers have measured their load."""

    is_waiting: bool = wire("bool")
    brokers: list[BalancedBroker] = wire(Array(BalancedBroker))
    busiest: list[BusyPartition] = wire(Array(BusyPartition))
    moves: list[PlannedMove] = wire(Array(PlannedMove))


@attrs.define(kw_only=True)
class BalanceRequest(ListPartitionReassignmentsRequest):
    """`released` are topics whose manual moves may be changed; null: all."""

    wants_balance: bool = wire("bool", tag=OWN_TAG, default=False)
    releases_all: bool = wire("bool", tag=OWN_TAG + 1, default=False)
    released: list[str] = wire(Array("string"), tag=OWN_TAG + 2, factory=list)


@attrs.define(kw_only=True)
class BalanceResponse(ListPartitionReassignmentsResponse):
    balance: ToldBalance | None = wire(Nullable(ToldBalance), tag=OWN_TAG, default=None)


@attrs.define(kw_only=True)
class AlterReplicaLogDirTopic:
    name: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class AlterReplicaLogDir:
    path: str = wire("string")  # absolute
    topics: list[AlterReplicaLogDirTopic] = wire(Array(AlterReplicaLogDirTopic), factory=list)


@attrs.define(kw_only=True)
class AlterReplicaLogDirsRequest(Message, key=34, versions=(1, 2), flexible=2):
    """AlterReplicaLogDirs: move replicas between the directories of a broker (KIP-113)."""

    dirs: list[AlterReplicaLogDir] = wire(Array(AlterReplicaLogDir), factory=list)


@attrs.define(kw_only=True)
class AlterReplicaLogDirPartitionResult:
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)


@attrs.define(kw_only=True)
class AlterReplicaLogDirTopicResult:
    topic_name: str = wire("string")
    partitions: list[AlterReplicaLogDirPartitionResult] = wire(Array(AlterReplicaLogDirPartitionResult), factory=list)


@attrs.define(kw_only=True)
class AlterReplicaLogDirsResponse(Message, answers=AlterReplicaLogDirsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    results: list[AlterReplicaLogDirTopicResult] = wire(Array(AlterReplicaLogDirTopicResult), factory=list)


@attrs.define(kw_only=True)
class DescribableLogDirTopic:
    topic: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class DescribeLogDirsRequest(Message, key=35, versions=(1, 4), flexible=2):
    """DescribeLogDirs: the log directories and the size of each partition in them."""

    topics: list[DescribableLogDirTopic] | None = wire(Array(DescribableLogDirTopic))  # null: all of them


@attrs.define(kw_only=True)
class DescribeLogDirsPartition:
    partition_index: int = wire("int32")
    partition_size: int = wire("int64")
    offset_lag: int = wire("int64", default=0)  # how far a future replica is behind
    is_future_key: bool = wire("bool", default=False)


@attrs.define(kw_only=True)
class DescribeLogDirsTopic:
    name: str = wire("string")
    partitions: list[DescribeLogDirsPartition] = wire(Array(DescribeLogDirsPartition), factory=list)


@attrs.define(kw_only=True)
class DescribeLogDirsResult:
    error_code: int = wire("int16", default=0)
    log_dir: str = wire("string")
    topics: list[DescribeLogDirsTopic] = wire(Array(DescribeLogDirsTopic), factory=list)
    total_bytes: int = wire("int64", since=4, default=-1)
    usable_bytes: int = wire("int64", since=4, default=-1)


@attrs.define(kw_only=True)
class DescribeLogDirsResponse(Message, answers=DescribeLogDirsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", since=3, default=0)
    results: list[DescribeLogDirsResult] = wire(Array(DescribeLogDirsResult), factory=list)
