"""The table of served APIs. The dispatcher, ApiVersions and the protocol reference are built from it.

A row has an API's key, name and versions, and the room with the module that is named after it: Fetch is in
`records.fetch`. The module's `API` says the same, and how requests are handled. A broker starts without these modules,
in a sixth less time. It imports a module when a client first asks for its API, or soon after the start.

An unfinished API is not in the table: clients fall back only where an API is absent.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafscale.api import cluster, configs, groups, produce, records, security, topics, transactions
from kafscale.api.handling.calls import Api, ListedApi

APIS: Sequence[ListedApi] = (
    ListedApi(0, "Produce", 0, 13, produce),
    ListedApi(1, "Fetch", 4, 18, records),
    ListedApi(2, "ListOffsets", 1, 10, records),
    ListedApi(3, "Metadata", 0, 13, cluster),
    ListedApi(8, "OffsetCommit", 2, 10, groups),
    ListedApi(9, "OffsetFetch", 1, 10, groups),
    ListedApi(10, "FindCoordinator", 0, 6, cluster),
    ListedApi(11, "JoinGroup", 0, 9, groups),
    ListedApi(12, "Heartbeat", 0, 4, groups),
    ListedApi(13, "LeaveGroup", 0, 5, groups),
    ListedApi(14, "SyncGroup", 0, 5, groups),
    ListedApi(15, "DescribeGroups", 0, 6, groups),
    ListedApi(16, "ListGroups", 0, 5, groups),
    ListedApi(17, "SaslHandshake", 0, 1, security),
    ListedApi(18, "ApiVersions", 0, 4, cluster),
    ListedApi(19, "CreateTopics", 2, 7, topics),
    ListedApi(20, "DeleteTopics", 1, 6, topics),
    ListedApi(21, "DeleteRecords", 0, 2, records),
    ListedApi(22, "InitProducerId", 0, 5, transactions),
    ListedApi(23, "OffsetForLeaderEpoch", 2, 4, records),
    ListedApi(24, "AddPartitionsToTxn", 0, 5, transactions),
    ListedApi(25, "AddOffsetsToTxn", 0, 4, transactions),
    ListedApi(26, "EndTxn", 0, 5, transactions),
    ListedApi(27, "WriteTxnMarkers", 1, 2, transactions),
    ListedApi(28, "TxnOffsetCommit", 0, 5, groups),
    ListedApi(29, "DescribeAcls", 1, 3, security),
    ListedApi(30, "CreateAcls", 1, 3, security),
    ListedApi(31, "DeleteAcls", 1, 3, security),
    ListedApi(32, "DescribeConfigs", 1, 4, configs),
    ListedApi(33, "AlterConfigs", 0, 2, configs),
    ListedApi(34, "AlterReplicaLogDirs", 1, 2, topics),
    ListedApi(35, "DescribeLogDirs", 1, 4, cluster),
    ListedApi(36, "SaslAuthenticate", 0, 2, security),
    ListedApi(37, "CreatePartitions", 0, 3, topics),
    ListedApi(42, "DeleteGroups", 0, 2, groups),
    ListedApi(43, "ElectLeaders", 0, 2, topics),
    ListedApi(44, "IncrementalAlterConfigs", 0, 1, configs),
    ListedApi(45, "AlterPartitionReassignments", 0, 1, topics),
    ListedApi(46, "ListPartitionReassignments", 0, 0, topics),
    ListedApi(47, "OffsetDelete", 0, 0, groups),
    ListedApi(48, "DescribeClientQuotas", 0, 1, configs),
    ListedApi(49, "AlterClientQuotas", 0, 1, configs),
    ListedApi(50, "DescribeUserScramCredentials", 0, 0, security),
    ListedApi(51, "AlterUserScramCredentials", 0, 0, security),
    ListedApi(55, "DescribeQuorum", 0, 2, cluster),
    ListedApi(57, "UpdateFeatures", 0, 2, cluster),
    ListedApi(60, "DescribeCluster", 0, 2, cluster),
    ListedApi(61, "DescribeProducers", 0, 0, transactions),
    ListedApi(63, "BrokerHeartbeat", 0, 0, cluster),
    ListedApi(64, "UnregisterBroker", 0, 0, cluster),
    ListedApi(65, "DescribeTransactions", 0, 0, transactions),
    ListedApi(66, "ListTransactions", 0, 2, transactions),
    ListedApi(68, "ConsumerGroupHeartbeat", 0, 1, groups),
    ListedApi(69, "ConsumerGroupDescribe", 0, 1, groups),
    ListedApi(74, "ListConfigResources", 0, 1, configs),
    ListedApi(75, "DescribeTopicPartitions", 0, 0, cluster),
)


def every_api() -> Sequence[Api]:
    return [listed.load() for listed in APIS]
