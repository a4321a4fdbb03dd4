from __future__ import annotations

import time
from typing import Any

import pytest

from kafscale.api.cluster.describe_quorum import API
from kafscale.cluster.membership.node import Endpoint, Node
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionToDescribe,
    TopicToDescribe,
)
from tests.api.assignments import OTHER_ENDPOINTS, OTHER_ID, THIRD_ID, ThreeBrokers, TwoBrokers
from tests.api.handlers import ask, some_services

NODE = Node(node_id=7, cluster_id="the-cluster", broker_epoch=3, advertised={"PLAINTEXT": Endpoint("broker", 9999)})
METADATA = "__cluster_metadata"


@pytest.fixture
async def services() -> Any:
    topics = TopicRegistry(store=MemoryMetadataStore())
    await topics.create([NewTopic(name="a")])
    await topics.create([NewTopic(name="b")])
    return some_services(node=NODE, topics=topics, assignment=TwoBrokers(NODE))


async def describe(services: Any, *asked: tuple[str, list[int]], version: int = 2) -> DescribeQuorumResponse:
    topics = [
        TopicToDescribe(topic_name=name, partitions=[PartitionToDescribe(partition_index=each) for each in indexes])
        for name, indexes in asked
    ]
    response: DescribeQuorumResponse = await ask(API, services, DescribeQuorumRequest(topics=topics), version=version)
    assert (response.error_code, response.error_message) == (0, None)
    return response


@pytest.mark.parametrize("version", range(3))
async def test_the_controller_is_the_only_voter(services: Any, version: int) -> None:
    services.assignment.other_is_up = False
    response = await describe(services, (METADATA, [0, 0]), version=version)
    ((topic, (partition,)),) = [(each.topic_name, each.partitions) for each in response.topics]
    revision = services.topics.store.revision
    assert revision >= 2
    assert (topic, partition.partition_index, partition.error_code) == (METADATA, 0, 0)
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (7, 3, revision)
    (voter,) = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset, partition.observers) == (7, revision, [])
    for told_ms in (voter.last_fetch_timestamp, voter.last_caught_up_timestamp):
        assert (abs(told_ms - time.time() * 1000) < 60_000) if version >= 1 else told_ms == -1
    nodes = [(node.node_id, [(at.name, at.host, at.port) for at in node.listeners]) for node in response.nodes]
    assert nodes == ([(7, [("PLAINTEXT", "broker", 9999)])] if version >= 2 else [])


async def test_the_offset_follows_the_metadata(services: Any) -> None:
    async def high_watermark() -> int:
        return (await describe(services, (METADATA, [0]))).topics[0].partitions[0].high_watermark

    before = await high_watermark()
    await services.topics.create([NewTopic(name="c")])
    assert await high_watermark() > before


async def test_the_other_brokers_are_observers(services: Any) -> None:
    services.assignment = assignment = ThreeBrokers(NODE)

    async def observers() -> list[tuple[int, int]]:
        (partition,) = (await describe(services, (METADATA, [0]))).topics[0].partitions
        return [(each.replica_id, each.log_end_offset) for each in partition.observers]

    assert await observers() == [(OTHER_ID, -1), (THIRD_ID, -1)]
    assignment.other_controls = True
    assert await observers() == [(7, services.topics.store.revision), (THIRD_ID, -1)]


async def test_another_broker_is_the_controller(services: Any) -> None:
    services.assignment.other_controls = True
    response = await describe(services, (METADATA, [0]))
    partition = response.topics[0].partitions[0]
    assert (partition.leader_id, partition.leader_epoch) == (OTHER_ID, services.assignment.other.broker_epoch)
    assert [each.replica_id for each in partition.current_voters] == [OTHER_ID]
    (node,) = response.nodes
    assert node.listeners[0].host == OTHER_ENDPOINTS["PLAINTEXT"].host
    services.assignment.other_is_up = False
    response = await describe(services, (METADATA, [0]))
    assert (response.topics[0].partitions[0].leader_epoch, response.nodes) == (-1, [])


@pytest.mark.parametrize(
    "asked", [[("a", [0])], [(METADATA, [1])], [(METADATA, [0, 1])], [(METADATA, [0]), ("a", [0])]]
)
async def test_nothing_else_has_a_quorum(services: Any, asked: list[tuple[str, list[int]]]) -> None:
    response = await describe(services, *asked)
    found = [(topic.topic_name, [each.partition_index for each in topic.partitions]) for topic in response.topics]
    assert found == asked
    for partition in (each for topic in response.topics for each in topic.partitions):
        assert partition.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
        assert (partition.leader_id, partition.current_voters) == (-1, [])
    assert response.nodes == []


async def test_a_request_without_topics_describes_no_topics(services: Any) -> None:
    assert (await describe(services)).topics == []
