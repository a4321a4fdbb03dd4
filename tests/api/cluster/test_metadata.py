from __future__ import annotations

from typing import Any

import pytest
import trio

from kafscale.api.cluster.metadata import API
from kafscale.cluster.membership.node import Endpoint, Node
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.config import Limits, Settings
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.topics import MetadataRequest, MetadataRequestTopic
from tests.api.handlers import ask, some_services

NODE = Node(node_id=7, cluster_id="the-cluster", broker_epoch=3, advertised={"PLAINTEXT": Endpoint("broker", 9999)})


@pytest.fixture
def topics() -> TopicRegistry:
    return TopicRegistry(
        store=MemoryMetadataStore(), settings=Settings(default_partitions_count=2, limits=Limits(max_topics_count=5))
    )


@pytest.fixture
def services(topics: TopicRegistry) -> Any:
    return some_services(node=NODE, topics=topics, settings=Settings())


def by_name(*names: str | None, allow_auto_topic_creation: bool = False) -> MetadataRequest:
    asked = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=asked, allow_auto_topic_creation=allow_auto_topic_creation)


@pytest.mark.parametrize("version", range(13))
async def test_brokers_and_all_topics_in_every_version(services: Any, version: int) -> None:
    await services.topics.create([NewTopic(name="b", partition_count=3, replication_factor=2), NewTopic(name="a")])
    request = MetadataRequest(topics=None if version else [])
    response = await ask(API, services, request, version=version)
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (7, "broker", 9999)
    assert response.cluster_id == ("the-cluster" if version >= 2 else None)
    assert response.controller_id == (7 if version >= 1 else -1)
    a, b = response.topics
    assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in (a, b)] == [("a", 0, 2), ("b", 0, 3)]
    assert b.topic_id == (services.topics.get("b").topic_id if version >= 10 else bytes(16))
    partition = b.partitions[2]
    assert (partition.partition_index, partition.leader_id) == (2, 7)
    assert partition.leader_epoch == (3 if version >= 7 else -1)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([7, 7], [7, 7], [])


async def test_an_empty_list_asks_for_no_topics(services: Any) -> None:
    await services.topics.create([NewTopic(name="a")])
    assert (await ask(API, services, MetadataRequest(topics=[]), version=1)).topics == []


async def test_a_missing_topic_is_created_when_request_and_broker_allow_auto_creation(services: Any) -> None:
    (topic,) = (await ask(API, services, by_name("new", allow_auto_topic_creation=True))).topics
    assert (topic.error_code, topic.name, len(topic.partitions)) == (0, "new", 2)
    assert topic.topic_id == services.topics.get("new").topic_id


async def test_versions_without_the_flag_create(services: Any) -> None:
    response = await ask(API, services, by_name("new", allow_auto_topic_creation=True), version=3)
    assert response.topics[0].error_code == 0
    assert services.topics.get("new") is not None


async def test_a_missing_topic_is_not_created_when_the_request_forbids_auto_creation(services: Any) -> None:
    response = await ask(API, services, by_name("new", "a/b"))
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("new", error_codes.UNKNOWN_TOPIC_OR_PARTITION),
        ("a/b", error_codes.INVALID_TOPIC_EXCEPTION),
    ]
    assert services.topics.all() == []


async def test_a_missing_topic_is_not_created_when_the_broker_forbids_auto_creation(topics: TopicRegistry) -> None:
    services = some_services(node=NODE, topics=topics, settings=Settings(auto_create_topics=False))
    response = await ask(API, services, by_name("new", allow_auto_topic_creation=True))
    assert response.topics[0].error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    assert topics.all() == []


async def test_a_failed_auto_creation_is_answered_with_its_error_code(services: Any) -> None:
    await services.topics.create([NewTopic(name="a.b")])
    names = ["a_b", "a/b", "__consumer_offsets"]
    response = await ask(API, services, by_name(*names, allow_auto_topic_creation=True))
    assert [topic.error_code for topic in response.topics] == [
        error_codes.INVALID_TOPIC_EXCEPTION,
        error_codes.INVALID_TOPIC_EXCEPTION,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert response.topics[2].is_internal


async def test_topics_past_the_limit_are_not_created(services: Any) -> None:
    names = [f"t{number}" for number in range(6)]
    response = await ask(API, services, by_name(*names, allow_auto_topic_creation=True))
    assert [topic.error_code for topic in response.topics] == [0] * 5 + [error_codes.POLICY_VIOLATION]


async def test_clients_that_ask_for_a_new_topic_at_once_see_the_same_one(services: Any) -> None:
    ids: list[bytes] = []

    async def client() -> None:
        response = await ask(API, services, by_name("new", allow_auto_topic_creation=True))
        assert response.topics[0].error_code == 0
        ids.append(response.topics[0].topic_id)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(client)
    assert len(ids) == 5
    assert len(set(ids)) == 1


async def test_topics_by_id(services: Any) -> None:
    await services.topics.create([NewTopic(name="a")])
    topic_id = services.topics.get("a").topic_id
    asked = [MetadataRequestTopic(name=None, topic_id=topic_id), MetadataRequestTopic(name=None, topic_id=b"x" * 16)]
    known, unknown = (await ask(API, services, MetadataRequest(topics=asked))).topics
    assert (known.name, known.error_code, len(known.partitions)) == ("a", 0, 2)
    assert (unknown.name, unknown.error_code, unknown.topic_id) == (None, error_codes.UNKNOWN_TOPIC_ID, b"x" * 16)


async def test_neither_name_nor_id(services: Any) -> None:
    response = await ask(API, services, by_name(None))
    assert response.topics[0].error_code == error_codes.INVALID_REQUEST


async def test_a_topic_that_is_requested_twice_is_answered_once(services: Any) -> None:
    response = await ask(API, services, by_name("a", "a", allow_auto_topic_creation=True))
    assert len(response.topics) == 1


async def test_authorized_operations_are_returned_only_on_request(services: Any) -> None:
    await services.topics.create([NewTopic(name="a")])
    request = by_name("a")
    response = await ask(API, services, request, version=8)
    assert response.cluster_authorized_operations == response.topics[0].topic_authorized_operations == -(2**31)
    request.include_cluster_authorized_operations = request.include_topic_authorized_operations = True
    response = await ask(API, services, request, version=8)
    assert (response.cluster_authorized_operations, response.topics[0].topic_authorized_operations) == (8096, 3576)
