"""The table of operations, held row by row against that of Kafka's documentation."""

from __future__ import annotations

import pytest

from kafscale.api.handling.operations import OPERATIONS
from kafscale.api.table import APIS, every_api

# "Operations and Protocols" of Kafka's documentation of its authorization: each operation and resource of each API
# that is served here, in its order.
DOCUMENTED = """
Produce: Write TransactionalId, IdempotentWrite Cluster, Write Topic
Fetch: ClusterAction Cluster, Read Topic
ListOffsets: Describe Topic
Metadata: Describe Topic, Create Cluster, Create Topic
OffsetCommit: Read Group, Read Topic
OffsetFetch: Describe Group, Describe Topic
FindCoordinator: Describe Group, Describe TransactionalId
JoinGroup: Read Group
Heartbeat: Read Group
LeaveGroup: Read Group
SyncGroup: Read Group
DescribeGroups: Describe Group
ListGroups: Describe Cluster, Describe Group
SaslHandshake:
ApiVersions:
CreateTopics: Create Cluster, Create Topic
DeleteTopics: Delete Topic
DeleteRecords: Delete Topic
InitProducerId: Write TransactionalId, IdempotentWrite Cluster
OffsetForLeaderEpoch: ClusterAction Cluster, Describe Topic
AddPartitionsToTxn: Write TransactionalId, Write Topic
AddOffsetsToTxn: Write TransactionalId, Read Group
EndTxn: Write TransactionalId
WriteTxnMarkers: Alter Cluster, ClusterAction Cluster
TxnOffsetCommit: Write TransactionalId, Read Group, Read Topic
DescribeAcls: Describe Cluster
CreateAcls: Alter Cluster
DeleteAcls: Alter Cluster
DescribeConfigs: DescribeConfigs Cluster, DescribeConfigs Topic
AlterConfigs: AlterConfigs Cluster, AlterConfigs Topic
AlterReplicaLogDirs: Alter Cluster
DescribeLogDirs: Describe Cluster
SaslAuthenticate:
CreatePartitions: Alter Topic
DeleteGroups: Delete Group
ElectLeaders: ClusterAction Cluster
IncrementalAlterConfigs: AlterConfigs Cluster, AlterConfigs Topic
AlterPartitionReassignments: Alter Cluster
ListPartitionReassignments: Describe Cluster
OffsetDelete: Delete Group, Read Topic
DescribeClientQuotas: DescribeConfigs Cluster
AlterClientQuotas: AlterConfigs Cluster
DescribeUserScramCredentials: Describe Cluster
AlterUserScramCredentials: Alter Cluster
DescribeQuorum: Describe Cluster
UpdateFeatures: Alter Cluster
DescribeCluster: Describe Cluster
DescribeProducers: Read Topic
BrokerHeartbeat: ClusterAction Cluster
UnregisterBroker: Alter Cluster
DescribeTransactions: Describe TransactionalId
ListTransactions: Describe TransactionalId
ConsumerGroupHeartbeat: Read Group
ConsumerGroupDescribe: Read Group
ListConfigResources: DescribeConfigs Cluster
DescribeTopicPartitions: Describe Topic
"""

# Where Kafka's code (KafkaApis, ControllerApis) asks for something else than its documentation says.
NOT_ASKED = {
    ("Produce", "IdempotentWrite Cluster"): "since Kafka 3.0 Write on the topic is enough (KIP-679)",
    ("Fetch", "ClusterAction Cluster"): "it is asked of followers, which there are none of here",
    ("ElectLeaders", "ClusterAction Cluster"): "Alter is asked for",
    ("ConsumerGroupDescribe", "Read Group"): "Describe is asked for",
}
ASKED_BESIDES = {
    ("Metadata", "Describe Cluster"): "for the operations on the cluster (KIP-430)",
    ("CreateTopics", "DescribeConfigs Topic"): "for configs in the answer (KIP-525)",
    ("DeleteTopics", "Delete Cluster"): "the controller takes it for all topics",
    ("DeleteTopics", "Describe Topic"): "for the name of a topic that is given by id (KIP-516)",
    ("AddPartitionsToTxn", "ClusterAction Cluster"): "of versions for brokers (KIP-890)",
    ("DescribeConfigs", "DescribeConfigs Group"): "groups have configs (KIP-848)",
    ("AlterConfigs", "AlterConfigs Group"): "groups have configs (KIP-848)",
    ("IncrementalAlterConfigs", "AlterConfigs Group"): "groups have configs (KIP-848)",
    ("ElectLeaders", "Alter Cluster"): "instead of ClusterAction",
    ("DescribeTransactions", "Describe Topic"): "of the topics in a transaction (KIP-664)",
    ("ConsumerGroupHeartbeat", "Describe Topic"): "of the topics that a member subscribes to",
    ("ConsumerGroupDescribe", "Describe Group"): "instead of Read",
    ("ConsumerGroupDescribe", "Describe Topic"): "of the topics that members have",
}


def documented() -> dict[str, set[str]]:
    rows = (line.partition(":") for line in DOCUMENTED.strip().splitlines())
    return {name: {each.strip() for each in said.split(",") if each.strip()} for name, _, said in rows}


def asked(api: str) -> set[str]:
    checks = OPERATIONS[api]
    return {str(right) for each in checks for right in (each.right, each.unless) if right is not None}


@pytest.mark.parametrize("api", documented())
def test_a_row_is_that_of_kafkas_documentation(api: str) -> None:
    expected = documented()[api]
    expected -= {right for name, right in NOT_ASKED if name == api}
    expected |= {right for name, right in ASKED_BESIDES if name == api}
    assert asked(api) == expected


def test_every_api_has_its_row() -> None:
    assert OPERATIONS.keys() == documented().keys()
    assert {api.name for api in APIS} <= OPERATIONS.keys()


def test_listed_deviations_from_kafkas_documentation_are_real() -> None:
    assert all(right in documented()[api] for api, right in NOT_ASKED)
    assert all(right not in documented()[api] for api, right in ASKED_BESIDES)


def test_fields_of_a_check_exist_in_its_request() -> None:
    requests = {api.name: api.request for api in every_api()}
    for name, checks in OPERATIONS.items():
        for each in checks:
            if name in requests and (each.each or each.name):
                assert hasattr(requests[name], each.each or each.name or ""), (name, each)
