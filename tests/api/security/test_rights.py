"""Every API asks for the rights that the table says: strangers get nothing, and who has them is not refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from kafscale.api.handling.calls import Api, Call, Peer
from kafscale.api.handling.operations import OPERATIONS
from kafscale.api.handling.refusals import handle_guarded
from kafscale.api.records.fetch import FetchReply
from kafscale.api.table import every_api
from kafscale.broker import Broker
from kafscale.cluster.registries.topics import NewTopic
from kafscale.security.acls import CLUSTER_NAME, AclBinding, ResourceType, Right
from kafscale.security.principals import USER, Principal
from kafscale.wire.codec import decode, encode
from kafscale.wire.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from kafscale.wire.schema import Array, fields_of
from tests.api.principals import HOST, acl_settings, binding, grant
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts

SECRET = "secret"
TOPIC, GROUP, CLUSTER, TRANSACTION = (
    TOPIC_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
# What a stranger is told who names things that there are. Those of Produce are tested with its two ways.
TOLD = {
    **dict.fromkeys(
        [
            *("Fetch", "ListOffsets", "Metadata", "CreateTopics", "DeleteTopics", "DeleteRecords"),
            *("OffsetForLeaderEpoch", "DescribeConfigs", "AlterConfigs", "CreatePartitions"),
            *("IncrementalAlterConfigs", "DescribeProducers", "DescribeTopicPartitions"),
        ],
        TOPIC,
    ),
    **dict.fromkeys(
        [
            *("OffsetCommit", "OffsetFetch", "FindCoordinator", "JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup"),
            *("DescribeGroups", "DeleteGroups", "OffsetDelete", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe"),
        ],
        GROUP,
    ),
    **dict.fromkeys(
        [
            *("WriteTxnMarkers", "DescribeAcls", "CreateAcls", "DeleteAcls", "AlterReplicaLogDirs", "DescribeLogDirs"),
            *("ElectLeaders", "AlterPartitionReassignments", "ListPartitionReassignments", "DescribeClientQuotas"),
            *("AlterClientQuotas", "DescribeUserScramCredentials", "AlterUserScramCredentials", "DescribeQuorum"),
            *("UpdateFeatures", "ListConfigResources", "UnregisterBroker", "BrokerHeartbeat"),
        ],
        CLUSTER,
    ),
    **dict.fromkeys(
        [
            *("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit"),
            "DescribeTransactions",
        ],
        TRANSACTION,
    ),
    **dict.fromkeys(["ListGroups", "ListTransactions", "DescribeCluster", "ApiVersions"], NONE),
}
NOT_HERE = {"Produce", "SaslHandshake", "SaslAuthenticate"}  # the latter two come before anybody is known
BY_NAME = {"Fetch": 12, "OffsetCommit": 9, "OffsetFetch": 9, "DeleteTopics": 5, "AddPartitionsToTxn": 3}
FILLED = {"resource_type": 2, "endpoint_type": 1, "resource_pattern_type": 3, "resource_type_filter": 2, "operation": 3}


def filled(cls: Any, version: int) -> Any:
    """A message with one of each, whose names are the secret's."""
    values: dict[str, Any] = {}
    for field in fields_of(cls):
        type_ = field.type
        if not field.is_in(version):
            continue
        if field.name in FILLED and type_ == "int8":
            values[field.name] = FILLED[field.name]
        elif isinstance(type_, Array) and isinstance(type_.of, type):
            values[field.name] = [filled(type_.of, version)]
        elif field.name.endswith("_filters"):
            values[field.name] = []  # what is asked for, and told again, not what there is
        elif isinstance(type_, Array):
            values[field.name] = [SECRET if type_.of == "string" else 0]
        elif type_ == "string" and not field.name.endswith("instance_id"):
            values[field.name] = SECRET
        elif field.default is attrs.NOTHING:
            values[field.name] = {"string": "", "bytes": b"", "uuid": bytes(16), "bool": False}.get(str(type_), 0)
    return cls(**values)


def codes(message: object) -> Iterator[int]:
    """All error codes in an answer."""
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if field.name.endswith("error_code"):
            yield value
        elif isinstance(value, list):
            for each in value:
                if attrs.has(type(each)):
                    yield from codes(each)


async def ask(broker: Broker, user: str, api: Api, request: Any = None, *, version: int | None = None) -> Any:
    """The answer to a client, by the way that every request goes but Produce."""
    version = BY_NAME.get(api.name, api.max_version) if version is None else version
    message = decode(api.request, version, b"".join(encode(request or filled(api.request, version), version)))
    peer = Peer(HOST, 1024, "PLAINTEXT", "192.0.2.2", 9092, principal=Principal(USER, user))
    call = Call(api.key, version, 1, "test", peer)
    response = await handle_guarded(broker.services, api, call, message)
    if isinstance(response, FetchReply):
        response.release()
        response = response.response
    return decode(api.response, version, b"".join(encode(response, version)))


def apis() -> list[Api]:
    return [api for api in every_api() if api.name not in NOT_HERE]


def name_for(right: Right) -> str:
    return CLUSTER_NAME if right.resource_type is ResourceType.CLUSTER else SECRET


def bindings_of(user: str, api: Api) -> list[AclBinding]:
    rights = {right for each in OPERATIONS[api.name] for right in (each.right, each.unless) if right is not None}
    return [binding(user, each.operation, each.resource_type, name_for(each)) for each in rights]


async def test_every_api_refuses_a_user_without_rights() -> None:
    assert TOLD.keys() | NOT_HERE == OPERATIONS.keys()
    async with memory_broker(memory_parts(), acl_settings()) as running:
        await running.broker.services.topics.create([NewTopic(name=SECRET)])
        for api in apis():
            response = await ask(running.broker, "stranger", api)
            assert set(codes(response)) - {NONE} == {TOLD[api.name]} - {NONE}, (api.name, response)
            assert SECRET not in str(response) or TOLD[api.name] != NONE, (api.name, response)
            assert await ask(running.broker, "stranger", api, version=api.min_version) is not None
        assert [topic.name for topic in running.broker.services.topics.all()] == [SECRET]
        assert not list(running.broker.services.groups.groups())


async def test_principals_with_the_rights_of_the_table_are_allowed(autojump_clock: object) -> None:
    async with memory_broker(memory_parts(), acl_settings()) as running:
        broker = running.broker
        for api in apis():
            await broker.services.topics.create([NewTopic(name=SECRET)])  # unless it is there
            if api.name == "JoinGroup":  # which waits for others
                continue
            user = f"friend-of-{api.name}"
            await grant(broker, *bindings_of(user, api))
            response = await ask(broker, user, api)
            assert not {TOPIC, GROUP, CLUSTER, TRANSACTION} & set(codes(response)), (api.name, response)


async def test_a_user_without_one_of_the_required_rights_is_refused() -> None:
    async with memory_broker(memory_parts(), acl_settings()) as running:
        broker = running.broker
        await broker.services.topics.create([NewTopic(name=SECRET)])
        for api in apis():
            version = BY_NAME.get(api.name, api.max_version)
            checks = [each for each in OPERATIONS[api.name] if not each.by_handler and version in each.versions]
            for missing in checks:
                user = f"{api.name}-without-{missing.right}".replace(" ", "-")
                others = [each for each in checks if each is not missing]
                await grant(
                    broker,
                    *(binding(user, c.right.operation, c.right.resource_type, name_for(c.right)) for c in others),
                )
                response = await ask(broker, user, api)
                told = {TOPIC, GROUP, CLUSTER, TRANSACTION} & set(codes(response))
                assert len(told) == 1, (api.name, missing.right, response)
