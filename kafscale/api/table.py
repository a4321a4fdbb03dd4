"""The table of served APIs. The dispatcher, ApiVersions and the protocol reference are built from it.

A row says an API's key, name and versions, and the room that has the rest: modules whose `API` says the same and how it
is handled, each of which opens with the changes of each version. A broker starts without them, which takes a sixth less
time, and imports a room when a client first asks for one of its APIs, or soon after the broker is ready.

An unfinished API is not in the table: clients fall back only where an API is absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kafscale.api.handling.calls import Api, ListedApi


def _produce() -> Iterator[Api]:
    from kafscale.api import produce

    yield produce.API


def _records() -> Iterator[Api]:
    from kafscale.api.records import delete_records, fetch, list_offsets, offset_for_leader_epoch

    for module in (delete_records, fetch, list_offsets, offset_for_leader_epoch):
        yield module.API


def _topics() -> Iterator[Api]:
    from kafscale.api.topics import (
        alter_partition_reassignments,
        alter_replica_log_dirs,
        create_partitions,
        create_topics,
        delete_topics,
        elect_leaders,
        list_partition_reassignments,
    )

    for module in (
        alter_partition_reassignments,
        alter_replica_log_dirs,
        create_partitions,
        create_topics,
        delete_topics,
        elect_leaders,
        list_partition_reassignments,
    ):
        yield module.API


def _cluster() -> Iterator[Api]:
    from kafscale.api.cluster import (
        api_versions,
        broker_heartbeat,
        describe_cluster,
        describe_log_dirs,
        describe_quorum,
        describe_topic_partitions,
        find_coordinator,
        metadata,
        unregister_broker,
        update_features,
    )

    for module in (
        api_versions,
        broker_heartbeat,
        describe_cluster,
        describe_log_dirs,
        describe_quorum,
        describe_topic_partitions,
        find_coordinator,
        metadata,
        unregister_broker,
        update_features,
    ):
        yield module.API


def _configs() -> Iterator[Api]:
    from kafscale.api.configs import (
        alter_client_quotas,
        alter_configs,
        describe_client_quotas,
        describe_configs,
        incremental_alter_configs,
        list_config_resources,
    )

    for module in (
        alter_client_quotas,
        alter_configs,
        describe_client_quotas,
        describe_configs,
        incremental_alter_configs,
        list_config_resources,
    ):
        yield module.API


def _groups() -> Iterator[Api]:
    from kafscale.api.groups import (
        consumer_group_describe,
        consumer_group_heartbeat,
        delete_groups,
        describe_groups,
        heartbeat,
        join_group,
        leave_group,
        list_groups,
        offset_commit,
        offset_delete,
        offset_fetch,
        sync_group,
        txn_offset_commit,
    )

    for module in (
        consumer_group_describe,
        consumer_group_heartbeat,
        delete_groups,
        describe_groups,
        heartbeat,
        join_group,
        leave_group,
        list_groups,
        offset_commit,
        offset_delete,
        offset_fetch,
        sync_group,
        txn_offset_commit,
    ):
        yield module.API


def _transactions() -> Iterator[Api]:
    from kafscale.api.transactions import (
        add_offsets_to_txn,
        add_partitions_to_txn,
        describe_producers,
        describe_transactions,
        end_txn,
        init_producer_id,
        list_transactions,
        write_txn_markers,
    )

    for module in (
        add_offsets_to_txn,
        add_partitions_to_txn,
        describe_producers,
        describe_transactions,
        end_txn,
        init_producer_id,
        list_transactions,
        write_txn_markers,
    ):
        yield module.API


def _security() -> Iterator[Api]:
    from kafscale.api.security import (
        alter_user_scram_credentials,
        create_acls,
        delete_acls,
        describe_acls,
        describe_user_scram_credentials,
        sasl_authenticate,
        sasl_handshake,
    )

    for module in (
        alter_user_scram_credentials,
        create_acls,
        delete_acls,
        describe_acls,
        describe_user_scram_credentials,
        sasl_authenticate,
        sasl_handshake,
    ):
        yield module.API


APIS: Sequence[ListedApi] = (
    ListedApi(0, "Produce", 0, 13, _produce),
    ListedApi(1, "Fetch", 4, 18, _records),
    ListedApi(2, "ListOffsets", 1, 10, _records),
    ListedApi(3, "Metadata", 0, 13, _cluster),
    ListedApi(8, "OffsetCommit", 2, 10, _groups),
    ListedApi(9, "OffsetFetch", 1, 10, _groups),
    ListedApi(10, "FindCoordinator", 0, 6, _cluster),
    ListedApi(11, "JoinGroup", 0, 9, _groups),
    ListedApi(12, "Heartbeat", 0, 4, _groups),
    ListedApi(13, "LeaveGroup", 0, 5, _groups),
    ListedApi(14, "SyncGroup", 0, 5, _groups),
    ListedApi(15, "DescribeGroups", 0, 6, _groups),
    ListedApi(16, "ListGroups", 0, 5, _groups),
    ListedApi(17, "SaslHandshake", 0, 1, _security),
    ListedApi(18, "ApiVersions", 0, 4, _cluster),
    ListedApi(19, "CreateTopics", 2, 7, _topics),
    ListedApi(20, "DeleteTopics", 1, 6, _topics),
    ListedApi(21, "DeleteRecords", 0, 2, _records),
    ListedApi(22, "InitProducerId", 0, 5, _transactions),
    ListedApi(23, "OffsetForLeaderEpoch", 2, 4, _records),
    ListedApi(24, "AddPartitionsToTxn", 0, 5, _transactions),
    ListedApi(25, "AddOffsetsToTxn", 0, 4, _transactions),
    ListedApi(26, "EndTxn", 0, 5, _transactions),
    ListedApi(27, "WriteTxnMarkers", 1, 2, _transactions),
    ListedApi(28, "TxnOffsetCommit", 0, 5, _groups),
    ListedApi(29, "DescribeAcls", 1, 3, _security),
    ListedApi(30, "CreateAcls", 1, 3, _security),
    ListedApi(31, "DeleteAcls", 1, 3, _security),
    ListedApi(32, "DescribeConfigs", 1, 4, _configs),
    ListedApi(33, "AlterConfigs", 0, 2, _configs),
    ListedApi(34, "AlterReplicaLogDirs", 1, 2, _topics),
    ListedApi(35, "DescribeLogDirs", 1, 4, _cluster),
    ListedApi(36, "SaslAuthenticate", 0, 2, _security),
    ListedApi(37, "CreatePartitions", 0, 3, _topics),
    ListedApi(42, "DeleteGroups", 0, 2, _groups),
    ListedApi(43, "ElectLeaders", 0, 2, _topics),
    ListedApi(44, "IncrementalAlterConfigs", 0, 1, _configs),
    ListedApi(45, "AlterPartitionReassignments", 0, 1, _topics),
    ListedApi(46, "ListPartitionReassignments", 0, 0, _topics),
    ListedApi(47, "OffsetDelete", 0, 0, _groups),
    ListedApi(48, "DescribeClientQuotas", 0, 1, _configs),
    ListedApi(49, "AlterClientQuotas", 0, 1, _configs),
    ListedApi(50, "DescribeUserScramCredentials", 0, 0, _security),
    ListedApi(51, "AlterUserScramCredentials", 0, 0, _security),
    ListedApi(55, "DescribeQuorum", 0, 2, _cluster),
    ListedApi(57, "UpdateFeatures", 0, 2, _cluster),
    ListedApi(60, "DescribeCluster", 0, 2, _cluster),
    ListedApi(61, "DescribeProducers", 0, 0, _transactions),
    ListedApi(63, "BrokerHeartbeat", 0, 0, _cluster),
    ListedApi(64, "UnregisterBroker", 0, 0, _cluster),
    ListedApi(65, "DescribeTransactions", 0, 0, _transactions),
    ListedApi(66, "ListTransactions", 0, 2, _transactions),
    ListedApi(68, "ConsumerGroupHeartbeat", 0, 1, _groups),
    ListedApi(69, "ConsumerGroupDescribe", 0, 1, _groups),
    ListedApi(74, "ListConfigResources", 0, 1, _configs),
    ListedApi(75, "DescribeTopicPartitions", 0, 0, _cluster),
)


def every_api() -> Sequence[Api]:
    """Return all APIs, with their messages and handlers."""
    return [listed.load() for listed in APIS]
