"""Messages about the cluster: ApiVersions, DescribeCluster, FindCoordinator, DescribeQuorum, UpdateFeatures."""

from __future__ import annotations

from kafscale.wire.schema import Array, Message, Struct, wire


class ApiVersionsRequest(Message, key=18, versions=(0, 4), flexible=3):
    """ApiVersions: the broker's APIs and versions, and the client's name."""

    client_software_name: str = wire("string", since=3, default="")
    client_software_version: str = wire("string", since=3, default="")


class ApiVersion(Struct):
    api_key: int = wire("int16")
    min_version: int = wire("int16")
    max_version: int = wire("int16")


class SupportedFeatureKey(Struct):
    name: str = wire("string")
    min_version: int = wire("int16")
    max_version: int = wire("int16")


class FinalizedFeatureKey(Struct):
    name: str = wire("string")
    max_version_level: int = wire("int16")
    min_version_level: int = wire("int16")


class ApiVersionsResponse(Message, answers=ApiVersionsRequest):
    error_code: int = wire("int16", default=0)
    api_keys: list[ApiVersion] = wire(Array(ApiVersion), factory=list)
    throttle_time_ms: int = wire("int32", since=1, default=0)
    supported_features: list[SupportedFeatureKey] = wire(Array(SupportedFeatureKey), since=3, tag=0, factory=list)
    finalized_features_epoch: int = wire("int64", since=3, tag=1, default=-1)  # -1: unknown
    finalized_features: list[FinalizedFeatureKey] = wire(Array(FinalizedFeatureKey), since=3, tag=2, factory=list)
    zk_migration_ready: bool = wire("bool", since=3, tag=3, default=False)


class DescribeClusterRequest(Message, key=60, versions=(0, 2), flexible=0):
    """DescribeCluster: the cluster's id and brokers (KIP-700)."""

    include_cluster_authorized_operations: bool = wire("bool", default=False)
    endpoint_type: int = wire("int8", since=1, default=1)  # 1 brokers, 2 controllers
    include_fenced_brokers: bool = wire("bool", since=2, default=False)  # (KIP-1073)


class DescribeClusterBroker(Struct):
    broker_id: int = wire("int32")
    host: str = wire("string")
    port: int = wire("int32")
    rack: str | None = wire("string", default=None)
    is_fenced: bool = wire("bool", since=2, default=False)


class DescribeClusterResponse(Message, answers=DescribeClusterRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    endpoint_type: int = wire("int8", since=1, default=1)
    cluster_id: str = wire("string", default="")
    controller_id: int = wire("int32", default=-1)
    brokers: list[DescribeClusterBroker] = wire(Array(DescribeClusterBroker), factory=list)
    # a bit field; this value means "not asked for"
    cluster_authorized_operations: int = wire("int32", default=-2147483648)


class FindCoordinatorRequest(Message, key=10, versions=(0, 6), flexible=3):
    """FindCoordinator: the brokers that coordinate groups or transactional ids."""

    key: str = wire("string", until=3, default="")
    key_type: int = wire("int8", since=1, default=0)  # 0 a group, 1 a transactional id, 2 (from 6) a share partition
    coordinator_keys: list[str] = wire(Array("string"), since=4, factory=list)


class Coordinator(Struct):
    key: str = wire("string")
    node_id: int = wire("int32", default=-1)
    host: str = wire("string", default="")
    port: int = wire("int32", default=-1)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


class FindCoordinatorResponse(Message, answers=FindCoordinatorRequest):
    throttle_time_ms: int = wire("int32", since=1, default=0)
    error_code: int = wire("int16", until=3, default=0)
    error_message: str | None = wire("string", since=1, until=3, default=None)
    node_id: int = wire("int32", until=3, default=-1)
    host: str = wire("string", until=3, default="")
    port: int = wire("int32", until=3, default=-1)
    coordinators: list[Coordinator] = wire(Array(Coordinator), since=4, factory=list)


class PartitionToDescribe(Struct):
    partition_index: int = wire("int32")


class TopicToDescribe(Struct):
    topic_name: str = wire("string")
    partitions: list[PartitionToDescribe] = wire(Array(PartitionToDescribe), factory=list)


class DescribeQuorumRequest(Message, key=55, versions=(0, 2), flexible=0):
    """DescribeQuorum: leader, voters and observers of the metadata's log (KIP-595, KIP-836, KIP-853)."""

    topics: list[TopicToDescribe] = wire(Array(TopicToDescribe), factory=list)


class QuorumReplicaState(Struct):
    replica_id: int = wire("int32")
    replica_directory_id: bytes = wire("uuid", since=2, default=bytes(16))
    log_end_offset: int = wire("int64")  # -1: unknown
    last_fetch_timestamp: int = wire("int64", since=1, default=-1)  # in milliseconds; -1: unknown, or the leader
    last_caught_up_timestamp: int = wire("int64", since=1, default=-1)  # likewise, but of the leader the present


class QuorumPartitionData(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", since=2, default=None)
    leader_id: int = wire("int32", default=-1)  # -1: unknown
    leader_epoch: int = wire("int32", default=-1)
    high_watermark: int = wire("int64", default=-1)
    current_voters: list[QuorumReplicaState] = wire(Array(QuorumReplicaState), factory=list)
    observers: list[QuorumReplicaState] = wire(Array(QuorumReplicaState), factory=list)


class QuorumTopicData(Struct):
    topic_name: str = wire("string")
    partitions: list[QuorumPartitionData] = wire(Array(QuorumPartitionData), factory=list)


class QuorumListener(Struct):
    name: str = wire("string")
    host: str = wire("string")
    port: int = wire("uint16")


class QuorumNode(Struct):
    node_id: int = wire("int32")
    listeners: list[QuorumListener] = wire(Array(QuorumListener), factory=list)


class DescribeQuorumResponse(Message, answers=DescribeQuorumRequest):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", since=2, default=None)
    topics: list[QuorumTopicData] = wire(Array(QuorumTopicData), factory=list)
    nodes: list[QuorumNode] = wire(Array(QuorumNode), since=2, factory=list)


class FeatureUpdateKey(Struct):
    feature: str = wire("string")
    max_version_level: int = wire("int16")  # below 1: delete the feature
    allow_downgrade: bool = wire("bool", until=0, default=False)
    upgrade_type: int = wire("int8", since=1, default=1)  # 1 upgrade, 2 safe downgrade, 3 unsafe downgrade


class UpdateFeaturesRequest(Message, key=57, versions=(0, 2), flexible=0):
    """UpdateFeatures: raise or lower the cluster's feature levels (KIP-584, KIP-778)."""

    timeout_ms: int = wire("int32", default=60000)
    feature_updates: list[FeatureUpdateKey] = wire(Array(FeatureUpdateKey), factory=list)
    validate_only: bool = wire("bool", since=1, default=False)


class UpdatableFeatureResult(Struct):
    feature: str = wire("string")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


class UpdateFeaturesResponse(Message, answers=UpdateFeaturesRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    results: list[UpdatableFeatureResult] = wire(Array(UpdatableFeatureResult), until=1, factory=list)
