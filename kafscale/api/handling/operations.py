"""Rights that each API needs: Kafka's table of operations.

A check is of one of three kinds. `kafscale.api.handling.refusals` makes the first two, in order, before the handler.

    whole    for the request: a refused client gets the error for all of it
    each     for each element of an array: refused elements get the error, the others are answered
    handler  by the handler, which asks `services.access`: its answer is more than an error for each named resource
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from kafscale.security import acls as rights
from kafscale.security.acls import Right


@attrs.frozen(eq=False, kw_only=True, repr=False)
class RightCheck:
    """A right that an API needs.

    `name` is the field with the resource's name, in the request or in an element of the array `each`; None for the
    cluster, and for elements that are names. `unless` is a right to the cluster that is enough instead.
    """

    right: Right
    name: str | None = None
    each: str | None = None
    unless: Right | None = None
    versions: range = range(2**15)
    by_handler: bool = False
    note: str = ""


def _whole(right: Right, name: str | None = None, *, unless: Right | None = None, since: int = 0) -> RightCheck:
    return RightCheck(right=right, name=name, unless=unless, versions=range(since, 2**15))


def _each(right: Right, array: str, name: str | None = None, *, unless: Right | None = None) -> RightCheck:
    return RightCheck(right=right, each=array, name=name, unless=unless)


def _handler(right: Right, note: str = "") -> RightCheck:
    return RightCheck(right=right, by_handler=True, note=note)


def _of_type(*asked: Right) -> Sequence[RightCheck]:
    return [_handler(right, "by the type of each resource") for right in asked]


_ALTER_CONFIGS = _of_type(rights.ALTER_CLUSTER_CONFIGS, rights.ALTER_TOPIC_CONFIGS, rights.ALTER_GROUP_CONFIGS)

OPERATIONS: Final[Mapping[str, Sequence[RightCheck]]] = {
    "Produce": (_handler(rights.WRITE_TRANSACTION, "of a transactional producer"), _handler(rights.WRITE_TOPIC)),
    "Fetch": (_handler(rights.READ_TOPIC),),
    "ListOffsets": (_each(rights.DESCRIBE_TOPIC, "topics", "name"),),
    "Metadata": (
        _handler(rights.DESCRIBE_TOPIC, "topics are left out where all are asked for"),
        _handler(rights.CREATE_IN_CLUSTER, "of a topic that would be created; enough instead of the next one"),
        _handler(rights.CREATE_TOPIC),
        _handler(rights.DESCRIBE_CLUSTER, "where operations on the cluster are asked for"),
    ),
    "OffsetCommit": (_whole(rights.READ_GROUP, "group_id"), _each(rights.READ_TOPIC, "topics", "name")),
    "OffsetFetch": (
        _handler(rights.DESCRIBE_GROUP),
        _handler(rights.DESCRIBE_TOPIC, "topics are left out where all are asked for"),
    ),
    "FindCoordinator": (_handler(rights.DESCRIBE_GROUP), _handler(rights.DESCRIBE_TRANSACTION)),
    "JoinGroup": (_whole(rights.READ_GROUP, "group_id"),),
    "Heartbeat": (_whole(rights.READ_GROUP, "group_id"),),
    "LeaveGroup": (_whole(rights.READ_GROUP, "group_id"),),
    "SyncGroup": (_whole(rights.READ_GROUP, "group_id"),),
    "DescribeGroups": (_each(rights.DESCRIBE_GROUP, "groups"),),
    "ListGroups": (
        _handler(rights.DESCRIBE_CLUSTER, "enough to see all groups"),
        _handler(rights.DESCRIBE_GROUP, "others are left out"),
    ),
    "SaslHandshake": (),
    "ApiVersions": (),
    "CreateTopics": (
        _handler(rights.CREATE_IN_CLUSTER, "enough instead of the next one"),
        _handler(rights.CREATE_TOPIC),
        _handler(rights.DESCRIBE_TOPIC_CONFIGS, "to be told configs, partitions and replicas"),
    ),
    "DeleteTopics": (
        _handler(rights.DELETE_IN_CLUSTER, "enough instead of the next ones"),
        _handler(rights.DELETE_TOPIC),
        _handler(rights.DESCRIBE_TOPIC, "to be told the name that an id has"),
    ),
    "DeleteRecords": (_each(rights.DELETE_TOPIC, "topics", "name"),),
    "InitProducerId": (
        _handler(rights.WRITE_TRANSACTION, "of a transactional producer"),
        _handler(rights.WRITE_IDEMPOTENTLY, "of any other; Write on any topic is enough, too (KIP-679)"),
    ),
    "OffsetForLeaderEpoch": (_each(rights.DESCRIBE_TOPIC, "topics", "topic", unless=rights.CLUSTER_ACTION),),
    "AddPartitionsToTxn": (
        _whole(rights.CLUSTER_ACTION, since=4),
        _handler(rights.WRITE_TRANSACTION, "until version 3"),
        _handler(rights.WRITE_TOPIC, "until version 3"),
    ),
    "AddOffsetsToTxn": (_whole(rights.WRITE_TRANSACTION, "transactional_id"), _whole(rights.READ_GROUP, "group_id")),
    "EndTxn": (_whole(rights.WRITE_TRANSACTION, "transactional_id"),),
    "WriteTxnMarkers": (_whole(rights.CLUSTER_ACTION, unless=rights.ALTER_CLUSTER),),
    "BrokerHeartbeat": (_whole(rights.CLUSTER_ACTION),),
    "TxnOffsetCommit": (
        _whole(rights.WRITE_TRANSACTION, "transactional_id"),
        _whole(rights.READ_GROUP, "group_id"),
        _each(rights.READ_TOPIC, "topics", "name"),
    ),
    "DescribeAcls": (_whole(rights.DESCRIBE_CLUSTER),),
    "CreateAcls": (_whole(rights.ALTER_CLUSTER),),
    "DeleteAcls": (_whole(rights.ALTER_CLUSTER),),
    "DescribeConfigs": _of_type(
        rights.DESCRIBE_CLUSTER_CONFIGS, rights.DESCRIBE_TOPIC_CONFIGS, rights.DESCRIBE_GROUP_CONFIGS
    ),
    "AlterConfigs": _ALTER_CONFIGS,
    "AlterReplicaLogDirs": (_whole(rights.ALTER_CLUSTER),),
    "DescribeLogDirs": (_whole(rights.DESCRIBE_CLUSTER),),
    "SaslAuthenticate": (),
    "CreatePartitions": (_each(rights.ALTER_TOPIC, "topics", "name"),),
    "DeleteGroups": (_each(rights.DELETE_GROUP, "groups_names"),),
    "ElectLeaders": (_whole(rights.ALTER_CLUSTER),),
    "IncrementalAlterConfigs": _ALTER_CONFIGS,
    "AlterPartitionReassignments": (_whole(rights.ALTER_CLUSTER),),
    "ListPartitionReassignments": (_whole(rights.DESCRIBE_CLUSTER),),
    "OffsetDelete": (_whole(rights.DELETE_GROUP, "group_id"), _each(rights.READ_TOPIC, "topics", "name")),
    "DescribeClientQuotas": (_whole(rights.DESCRIBE_CLUSTER_CONFIGS),),
    "AlterClientQuotas": (_whole(rights.ALTER_CLUSTER_CONFIGS),),
    "DescribeUserScramCredentials": (_whole(rights.DESCRIBE_CLUSTER),),
    "AlterUserScramCredentials": (_whole(rights.ALTER_CLUSTER),),
    "DescribeQuorum": (_whole(rights.DESCRIBE_CLUSTER),),
    "UpdateFeatures": (_whole(rights.ALTER_CLUSTER),),
    "DescribeCluster": (_handler(rights.DESCRIBE_CLUSTER, "where operations on the cluster are asked for"),),
    "DescribeProducers": (_each(rights.READ_TOPIC, "topics", "name"),),
    "UnregisterBroker": (_whole(rights.ALTER_CLUSTER),),
    "DescribeTransactions": (
        _each(rights.DESCRIBE_TRANSACTION, "transactional_ids"),
        _handler(rights.DESCRIBE_TOPIC, "other topics are left out"),
    ),
    "ListTransactions": (_handler(rights.DESCRIBE_TRANSACTION, "others are left out"),),
    "ConsumerGroupHeartbeat": (
        _whole(rights.READ_GROUP, "group_id"),
        _handler(rights.DESCRIBE_TOPIC, "of each name that is subscribed to"),
    ),
    "ConsumerGroupDescribe": (
        _each(rights.DESCRIBE_GROUP, "group_ids"),
        _handler(rights.DESCRIBE_TOPIC, "of each topic that a member has"),
    ),
    "ListConfigResources": (_whole(rights.DESCRIBE_CLUSTER_CONFIGS),),
    "DescribeTopicPartitions": (_handler(rights.DESCRIBE_TOPIC, "topics are left out where all are asked for"),),
}
