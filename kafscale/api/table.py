"""Every API that this broker serves. The dispatcher, ApiVersions and the protocol reference are built from this table.

What is not finished is not here: clients fall back only where an API is absent. A row says key, name and versions, and
which module below `kafscale.api` has the rest, as its `API`; that opens with what each version brought. A broker starts
without them, which takes a sixth less time, and imports each when it is first asked for, or soon after it is ready.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafscale.api.handling.calls import Api, ListedApi

APIS: Sequence[ListedApi] = (
    ListedApi(0, "Produce", 0, 13, "produce"),
    ListedApi(1, "Fetch", 4, 18, "records.fetch"),
    ListedApi(2, "ListOffsets", 1, 10, "records.list_offsets"),
    ListedApi(3, "Metadata", 0, 13, "cluster.metadata"),
    ListedApi(8, "OffsetCommit", 2, 10, "groups.offset_commit"),
    ListedApi(9, "OffsetFetch", 1, 10, "groups.offset_fetch"),
    ListedApi(10, "FindCoordinator", 0, 6, "cluster.find_coordinator"),
    ListedApi(11, "JoinGroup", 0, 9, "groups.join_group"),
    ListedApi(12, "Heartbeat", 0, 4, "groups.heartbeat"),
    ListedApi(13, "LeaveGroup", 0, 5, "groups.leave_group"),
    ListedApi(14, "SyncGroup", 0, 5, "groups.sync_group"),
    ListedApi(15, "DescribeGroups", 0, 6, "groups.describe_groups"),
    ListedApi(16, "ListGroups", 0, 5, "groups.list_groups"),
    ListedApi(17, "SaslHandshake", 0, 1, "security.sasl_handshake"),
    ListedApi(18, "ApiVersions", 0, 4, "cluster.api_versions"),
    ListedApi(19, "CreateTopics", 2, 7, "topics.create_topics"),
    ListedApi(20, "DeleteTopics", 1, 6, "topics.delete_topics"),
    ListedApi(21, "DeleteRecords", 0, 2, "records.delete_records"),
    ListedApi(22, "InitProducerId", 0, 5, "transactions.init_producer_id"),
    ListedApi(23, "OffsetForLeaderEpoch", 2, 4, "records.offset_for_leader_epoch"),
    ListedApi(24, "AddPartitionsToTxn", 0, 5, "transactions.add_partitions_to_txn"),
    ListedApi(25, "AddOffsetsToTxn", 0, 4, "transactions.add_offsets_to_txn"),
    ListedApi(26, "EndTxn", 0, 5, "transactions.end_txn"),
    ListedApi(27, "WriteTxnMarkers", 1, 2, "transactions.write_txn_markers"),
    ListedApi(28, "TxnOffsetCommit", 0, 5, "groups.txn_offset_commit"),
    ListedApi(29, "DescribeAcls", 1, 3, "security.describe_acls"),
    ListedApi(30, "CreateAcls", 1, 3, "security.create_acls"),
    ListedApi(31, "DeleteAcls", 1, 3, "security.delete_acls"),
    ListedApi(32, "DescribeConfigs", 1, 4, "configs.describe_configs"),
    ListedApi(33, "AlterConfigs", 0, 2, "configs.alter_configs"),
    ListedApi(34, "AlterReplicaLogDirs", 1, 2, "topics.alter_replica_log_dirs"),
    ListedApi(35, "DescribeLogDirs", 1, 4, "cluster.describe_log_dirs"),
    ListedApi(36, "SaslAuthenticate", 0, 2, "security.sasl_authenticate"),
    ListedApi(37, "CreatePartitions", 0, 3, "topics.create_partitions"),
    ListedApi(42, "DeleteGroups", 0, 2, "groups.delete_groups"),
    ListedApi(43, "ElectLeaders", 0, 2, "topics.elect_leaders"),
    ListedApi(44, "IncrementalAlterConfigs", 0, 1, "configs.incremental_alter_configs"),
    ListedApi(45, "AlterPartitionReassignments", 0, 1, "topics.alter_partition_reassignments"),
    ListedApi(46, "ListPartitionReassignments", 0, 0, "topics.list_partition_reassignments"),
    ListedApi(47, "OffsetDelete", 0, 0, "groups.offset_delete"),
    ListedApi(48, "DescribeClientQuotas", 0, 1, "configs.describe_client_quotas"),
    ListedApi(49, "AlterClientQuotas", 0, 1, "configs.alter_client_quotas"),
    ListedApi(50, "DescribeUserScramCredentials", 0, 0, "security.describe_user_scram_credentials"),
    ListedApi(51, "AlterUserScramCredentials", 0, 0, "security.alter_user_scram_credentials"),
    ListedApi(55, "DescribeQuorum", 0, 2, "cluster.describe_quorum"),
    ListedApi(57, "UpdateFeatures", 0, 2, "cluster.update_features"),
    ListedApi(60, "DescribeCluster", 0, 2, "cluster.describe_cluster"),
    ListedApi(61, "DescribeProducers", 0, 0, "transactions.describe_producers"),
    ListedApi(63, "BrokerHeartbeat", 0, 0, "cluster.broker_heartbeat"),
    ListedApi(64, "UnregisterBroker", 0, 0, "cluster.unregister_broker"),
    ListedApi(65, "DescribeTransactions", 0, 0, "transactions.describe_transactions"),
    ListedApi(66, "ListTransactions", 0, 2, "transactions.list_transactions"),
    ListedApi(68, "ConsumerGroupHeartbeat", 0, 1, "groups.consumer_group_heartbeat"),
    ListedApi(69, "ConsumerGroupDescribe", 0, 1, "groups.consumer_group_describe"),
    ListedApi(74, "ListConfigResources", 0, 1, "configs.list_config_resources"),
    ListedApi(75, "DescribeTopicPartitions", 0, 0, "cluster.describe_topic_partitions"),
)


def every_api() -> Sequence[Api]:
    """All of them, with the messages and the handler of each."""
    return [each.load() for each in APIS]
