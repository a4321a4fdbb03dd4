"""What clients may do with topics that they name, see or write; and the log of what they were refused."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio.testing

from kafscale.api.handling import access as audit
from kafscale.api.handling.access import ALL_OPERATIONS, Access, AuditLog
from kafscale.api.handling.calls import Call
from kafscale.api.produce import ShortWay
from kafscale.client.connection import Connection
from kafscale.cluster.registries.topics import NewTopic
from kafscale.security.acls import READ_TOPIC, AclFilter, AclOperation, PatternType, Permission, ResourceType
from kafscale.wire.codec import encode
from kafscale.wire.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    NONE,
    SECURITY_DISABLED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kafscale.wire.messages.records import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.messages.security import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from kafscale.wire.messages.topics import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafscale.wire.records import Record, build_batch
from tests.api.handlers import some_peer
from tests.api.principals import acl_settings, binding, connect_as, grant
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts

VERSION = 9  # of Produce, by names


@pytest.fixture
async def running(autojump_clock: trio.testing.MockClock) -> AsyncIterator[MemoryBroker]:
    async with memory_broker(memory_parts(), acl_settings()) as broker:
        await broker.broker.services.topics.create([NewTopic(name=name) for name in ("mine", "theirs")])
        await grant(broker.broker, binding("alice", AclOperation.WRITE, ResourceType.TOPIC, "mine"))
        yield broker


async def metadata(client: Connection, *names: str, **more: Any) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names] if names else None
    return await client.request(MetadataRequest(topics=topics, **more), MetadataResponse)


def told(response: MetadataResponse) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


def produce(topic: str, transactional_id: str | None = None) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=memoryview(build_batch([Record(value=b"v")])))
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    return ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=topics, transactional_id=transactional_id)


async def send(client: Connection, requests: Sequence[ProduceRequest]) -> list[int]:
    """All in one write, so that the broker finds them in one read. Returns the error codes."""
    call = client.call(ProduceRequest, ProduceResponse, version=VERSION)
    replies = await client.send_many(call, [encode(each, VERSION) for each in requests])
    return [(await reply.wait()).responses[0].partition_responses[0].error_code for reply in replies]


async def test_metadata_hides_unauthorized_topics_and_refuses_them_when_named(
    running: MemoryBroker,
) -> None:
    alice, root = await connect_as(running, "alice"), await connect_as(running, "root")
    assert told(await metadata(alice)) == {"mine": NONE}
    assert told(await metadata(root)) == {"mine": NONE, "theirs": NONE}
    named = await metadata(alice, "mine", "theirs", "nowhere", allow_auto_topic_creation=False)
    assert told(named) == {
        "mine": NONE,
        "theirs": TOPIC_AUTHORIZATION_FAILED,
        "nowhere": TOPIC_AUTHORIZATION_FAILED,  # nor whether there is one
    }
    by_name = {topic.name: topic for topic in named.topics}
    assert by_name["theirs"].topic_id == bytes(16)


async def test_auto_creation_needs_the_create_operation_on_topic_or_cluster(running: MemoryBroker) -> None:
    alice, topics = await connect_as(running, "alice"), running.broker.services.topics
    describe = binding("alice", AclOperation.DESCRIBE, ResourceType.TOPIC, "new", pattern_type=PatternType.PREFIXED)
    await grant(running.broker, describe)
    assert told(await metadata(alice, "new-1", allow_auto_topic_creation=True)) == {"new-1": TOPIC_AUTHORIZATION_FAILED}
    assert topics.get("new-1") is None
    await grant(running.broker, binding("alice", AclOperation.CREATE, ResourceType.TOPIC, "new-1"))
    assert told(await metadata(alice, "new-1", allow_auto_topic_creation=True)) == {"new-1": NONE}
    await grant(running.broker, binding("alice", AclOperation.CREATE, ResourceType.CLUSTER, "kafka-cluster"))
    assert told(await metadata(alice, "new-2", allow_auto_topic_creation=True)) == {"new-2": NONE}


async def test_authorized_operations_list_the_rights_of_the_client(running: MemoryBroker) -> None:
    alice, root = await connect_as(running, "alice"), await connect_as(running, "root")
    (mine,) = (await metadata(alice, include_topic_authorized_operations=True)).topics
    assert mine.topic_authorized_operations == 1 << AclOperation.WRITE | 1 << AclOperation.DESCRIBE
    for topic in (await metadata(root, include_topic_authorized_operations=True)).topics:
        assert topic.topic_authorized_operations == ALL_OPERATIONS[ResourceType.TOPIC]


async def test_elements_that_are_refused_come_after_the_others(running: MemoryBroker) -> None:
    alice = await connect_as(running, "alice")
    topics = [
        ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
        for name in ("theirs", "mine", "nowhere")
    ]
    response = await alice.request(ListOffsetsRequest(topics=topics), ListOffsetsResponse)
    assert [(topic.name, topic.partitions[0].error_code) for topic in response.topics] == [
        ("mine", NONE),
        ("theirs", TOPIC_AUTHORIZATION_FAILED),
        ("nowhere", TOPIC_AUTHORIZATION_FAILED),
    ]


async def test_both_ways_of_produce_ask(running: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, log = await connect_as(running, "alice"), running.broker.services.log
    taken: list[bool] = []
    take = ShortWay.take

    def spy(self: ShortWay, frame: memoryview) -> Any:
        group = take(self, frame)
        taken.append(group is not None)
        return group

    monkeypatch.setattr(ShortWay, "take", spy)
    assert await send(alice, [produce("mine")] * 3) == [NONE] * 3
    assert any(taken)
    assert await send(alice, [produce("theirs")] * 3) == [TOPIC_AUTHORIZATION_FAILED] * 3
    assert await send(alice, [produce("nowhere")]) == [TOPIC_AUTHORIZATION_FAILED]
    assert await send(alice, [produce("mine", "tx")]) == [TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    await running.broker.services.acls.delete([AclFilter(resource_name="mine")])
    taken.clear()
    assert await send(alice, [produce("mine")] * 3) == [TOPIC_AUTHORIZATION_FAILED] * 3
    assert not any(taken)
    assert log.by_name["mine"][0].next_offset == 3
    assert log.by_name["theirs"][0].next_offset == 0


async def test_a_producer_id_needs_write_on_some_topic(running: MemoryBroker) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    alice, bob = await connect_as(running, "alice"), await connect_as(running, "bob")
    assert (await alice.request(request, InitProducerIdResponse)).error_code == NONE
    assert (await bob.request(request, InitProducerIdResponse)).error_code == CLUSTER_AUTHORIZATION_FAILED


def creation(user: str, operation: AclOperation, name: str) -> AclCreation:
    return AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name=name,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission_type=Permission.ALLOW,
    )


async def test_acls_are_created_described_and_deleted_only_by_authorized_users(running: MemoryBroker) -> None:
    alice, root = await connect_as(running, "alice"), await connect_as(running, "root")
    request = CreateAclsRequest(
        creations=[creation("bob", AclOperation.READ, "mine"), creation("bob", AclOperation.ANY, "mine")]
    )
    refused = await alice.request(request, CreateAclsResponse)
    assert [each.error_code for each in refused.results] == [CLUSTER_AUTHORIZATION_FAILED] * 2
    created = await root.request(request, CreateAclsResponse)
    assert [each.error_message for each in created.results] == [None, "Invalid operation ANY"]
    bob = await connect_as(running, "bob")
    assert told(await metadata(bob)) == {"mine": NONE}
    everything = {"pattern_type": PatternType.ANY, "operation": AclOperation.ANY, "permission": Permission.ANY}
    described = await root.request(
        DescribeAclsRequest(
            resource_type_filter=ResourceType.TOPIC,
            pattern_type_filter=everything["pattern_type"],
            operation=everything["operation"],
            permission_type=everything["permission"],
        ),
        DescribeAclsResponse,
    )
    (resource,) = described.resources
    assert {each.principal for each in resource.acls} == {"User:alice", "User:bob"}
    asked = DeleteAclsFilter(
        resource_type_filter=ResourceType.ANY,
        principal_filter="User:bob",
        operation=AclOperation.ANY,
        permission_type=Permission.ANY,
    )
    wrong = DeleteAclsFilter(resource_type_filter=99, operation=AclOperation.ANY, permission_type=Permission.ANY)
    deleted = await root.request(DeleteAclsRequest(filters=[asked, wrong]), DeleteAclsResponse)
    assert [len(each.matching_acls) for each in deleted.filter_results] == [1, 0]
    assert deleted.filter_results[1].error_message == "The filter contains unknown elements."
    assert told(await metadata(bob)) == {}


async def test_without_an_authorizer_there_is_nothing_to_change() -> None:
    async with memory_broker(memory_parts()) as broker:
        client = await broker.connect()
        created = await client.request(
            CreateAclsRequest(creations=[creation("bob", AclOperation.READ, "mine")]), CreateAclsResponse
        )
        assert [each.error_code for each in created.results] == [SECURITY_DISABLED]
        assert told(await metadata(client, "nowhere", allow_auto_topic_creation=False)) == {
            "nowhere": UNKNOWN_TOPIC_OR_PARTITION
        }


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(each.getMessage()) for each in caplog.records if each.name == "kafscale.audit"]


async def test_refusals_and_changes_are_in_the_audit_log(
    running: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kafscale.audit")
    alice, root = await connect_as(running, "alice"), await connect_as(running, "root")
    await metadata(alice)  # what is left out is not told
    assert lines(caplog) == []
    await metadata(alice, "theirs")
    await root.request(CreateAclsRequest(creations=[creation("bob", AclOperation.READ, "mine")]), CreateAclsResponse)
    denied, created = lines(caplog)
    assert denied == {
        "event": "denied",
        "principal": "User:alice",
        "host": "192.0.2.1",
        "listener": "PLAINTEXT",
        "client_id": alice.client_id,
        "api_key": 3,
        "operation": "DESCRIBE",
        "resource_type": "TOPIC",
        "resource_name": "theirs",
        "rule": "no ACL allows it",
    }
    assert (created["event"], created["principal"]) == ("acl_created", "User:root")
    assert created["acl"] == "ALLOW User:bob from * to READ TOPIC:LITERAL:mine"


async def test_the_audit_log_is_bounded(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kafscale.audit")
    log, call = AuditLog(), Call(3, 1, 1, "c", some_peer())
    for index in range(audit.LINES_MAX_COUNT + 50):
        log.denied(call, READ_TOPIC, f"t{index}", lambda: "r")
        log.denied(call, READ_TOPIC, f"t{index}", lambda: "r")
    assert len(lines(caplog)) == audit.LINES_MAX_COUNT
    await trio.sleep(audit.PERIOD_SECONDS)
    log.denied(call, READ_TOPIC, "x" * 9999, lambda: "r")
    summary, last = lines(caplog)[audit.LINES_MAX_COUNT :]
    assert summary == {"event": "denied", "left_out_count": audit.LINES_MAX_COUNT + 100}
    assert len(last["resource_name"]) == audit.NAME_MAX_LENGTH


def test_without_an_authorizer_everything_is_allowed() -> None:
    call = Call(3, 1, 1, "c", some_peer())
    access = Access()
    assert access.allows(call, READ_TOPIC, "t")
    assert access.allows_some(call, READ_TOPIC)
    assert access.error_code(call, READ_TOPIC, "t") == NONE
    assert access.operations(call, ResourceType.GROUP) == ALL_OPERATIONS[ResourceType.GROUP]
