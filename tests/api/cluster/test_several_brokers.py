"""What a client is told of the brokers, the leaders and the coordinators of a cluster of three."""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
import pytest
import trio.testing

from kafscale.client.connection import Connection
from kafscale.cluster.membership.assignment import Leader
from kafscale.cluster.membership.node import Endpoint
from kafscale.cluster.registries.topic_names import CONSUMER_OFFSETS_NAME, TRANSACTION_STATE_NAME
from kafscale.cluster.registries.topics import NewTopic
from kafscale.wire import error_codes as e
from kafscale.wire.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafscale.wire.messages.groups import ListGroupsRequest, ListGroupsResponse
from kafscale.wire.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from kafscale.wire.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kafscale.wire.messages.topics import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    TopicRequest,
)
from tests.api.assignments import OTHER_ID, OTHERS_EPOCH, THIRD_ID
from tests.api.several_brokers import ELSEWHERE, HERE, OWN_ID, TOPIC, SeveralBrokers, key_in, several_brokers
from tests.devtools.fakes.memory_broker import memory_settings

GROUP, TRANSACTION = 0, 1
EVERYWHERE = [(OWN_ID, "127.0.0.1", 9092), (OTHER_ID, "other.example", 9094), (THIRD_ID, "third.example", 9096)]
NOBODY = (-1, -1)


@pytest.fixture
async def cluster(autojump_clock: trio.testing.MockClock) -> AsyncIterator[SeveralBrokers]:
    settings = memory_settings(rack="zone-a", offsets_topic_partitions_count=6, transaction_state_partitions_count=6)
    async with several_brokers(settings) as cluster:
        yield cluster


async def metadata(cluster: SeveralBrokers, version: int | None = None) -> MetadataResponse:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    return await cluster.ask(request, MetadataResponse, version)


def leaders(response: MetadataResponse) -> list[tuple[int, int]]:
    return [(each.leader_id, each.leader_epoch) for each in response.topics[0].partitions]


@pytest.mark.parametrize("version", range(14))
async def test_metadata_has_every_broker_and_every_leader(cluster: SeveralBrokers, version: int) -> None:
    cluster.assignment.racks = {OTHER_ID: "zone-b"}
    cluster.assignment.other_controls = True
    response = await metadata(cluster, version)
    assert [(each.node_id, each.host, each.port) for each in response.brokers] == EVERYWHERE
    assert [each.rack for each in response.brokers] == (["zone-a", "zone-b", None] if version >= 1 else [None] * 3)
    assert response.controller_id == (OTHER_ID if version >= 1 else -1)
    own_epoch = cluster.services.node.broker_epoch
    for each in response.topics[0].partitions:
        leader_id = ELSEWHERE.get(each.partition_index, OWN_ID)
        epoch = own_epoch if leader_id == OWN_ID else OTHERS_EPOCH
        assert (each.error_code, each.leader_id) == (e.NONE, leader_id)
        assert each.leader_epoch == (epoch if version >= 7 else -1)
        assert (each.replica_nodes, each.isr_nodes) == ([leader_id], [leader_id])


async def test_a_partition_of_a_broker_that_is_gone_has_no_leader(cluster: SeveralBrokers) -> None:
    """Clients were named a leader that no broker of the same answer was."""
    cluster.assignment.third_is_up = False
    response = await metadata(cluster)
    assert [each.node_id for each in response.brokers] == [OWN_ID, OTHER_ID]
    for each in response.topics[0].partitions:
        is_gone = ELSEWHERE.get(each.partition_index) == THIRD_ID
        assert each.error_code == (e.LEADER_NOT_AVAILABLE if is_gone else e.NONE)
        assert (each.leader_id == -1) == is_gone
    cluster.assignment.third_is_up = True
    assert [each.error_code for each in (await metadata(cluster)).topics[0].partitions] == [e.NONE] * 6


async def test_a_broker_without_the_clients_listener_is_left_out_of_answers(cluster: SeveralBrokers) -> None:
    """Its clients would have come here, and asked for what another broker leads, for ever."""
    cluster.client = await Connection.over(cluster.running.open_stream("INSIDE"), cluster.client.address)
    response = await metadata(cluster)
    assert [(each.node_id, each.host) for each in response.brokers] == [(0, "192.0.2.2"), (OTHER_ID, "other.inside")]
    assert [each.error_code for each in response.topics[0].partitions] == [0, 0, e.LEADER_NOT_AVAILABLE] * 2
    cluster.assignment.endpoints[OTHER_ID] = {"INSIDE": None}  # a wildcard, of which only its port is known there
    described = await cluster.ask(DescribeClusterRequest(), DescribeClusterResponse)
    assert [(each.broker_id, each.host) for each in described.brokers] == [(0, "192.0.2.2")]
    moved = await fetch(cluster, 1)
    assert (moved.responses[0].partitions[0].error_code, moved.node_endpoints) == (e.NOT_LEADER_OR_FOLLOWER, [])
    assert moved.responses[0].partitions[0].current_leader.leader_id == -1
    await cluster.services.topics.create([NewTopic(name=CONSUMER_OFFSETS_NAME)])
    assert (await find(cluster, GROUP, key_in(2, 6)))[0] == e.COORDINATOR_NOT_AVAILABLE
    cluster.assignment.endpoints[OTHER_ID] = {"INSIDE": Endpoint("other.inside", 1)}
    assert await find(cluster, GROUP, key_in(1, 6)) == (e.NONE, OTHER_ID, "other.inside", 1)


async def fetch(cluster: SeveralBrokers, index: int) -> FetchResponse:
    wanted = FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic=TOPIC, topic_id=cluster.topic_id, partitions=[wanted])
    return await cluster.ask(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic]), FetchResponse)


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster_has_racks(cluster: SeveralBrokers, version: int) -> None:
    cluster.assignment.racks = {THIRD_ID: "zone-c"}
    response = await cluster.ask(DescribeClusterRequest(), DescribeClusterResponse, version)
    assert [(each.broker_id, each.host, each.port) for each in response.brokers] == EVERYWHERE
    assert [each.rack for each in response.brokers] == ["zone-a", None, "zone-c"]


async def test_a_new_leader_is_named_with_its_rack(cluster: SeveralBrokers) -> None:
    cluster.assignment.racks = {OTHER_ID: "zone-b"}
    (endpoint,) = (await fetch(cluster, 1)).node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.rack) == (OTHER_ID, "other.example", "zone-b")


async def test_describe_topic_partitions_follows_the_assignment(cluster: SeveralBrokers) -> None:
    cluster.assignment.others[TOPIC, HERE[1]] = None
    cluster.assignment.others[TOPIC, 4] = Leader(OTHER_ID, 41)
    cluster.assignment.third_is_up = False
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=TOPIC)])
    (topic,) = (await cluster.ask(request, DescribeTopicPartitionsResponse)).topics
    own = (OWN_ID, cluster.services.node.broker_epoch)
    told = [(each.leader_id, each.leader_epoch) for each in topic.partitions]
    assert told == [own, (OTHER_ID, OTHERS_EPOCH), NOBODY, NOBODY, (OTHER_ID, 41), NOBODY]
    assert [each.replica_nodes for each in topic.partitions] == [[0], [OTHER_ID], [], [], [OTHER_ID], []]
    assert {each.error_code for each in topic.partitions} == {e.NONE}


# ---- coordinators ----------------------------------------------------------------------------------------------------


async def find(cluster: SeveralBrokers, key_type: int, key: str) -> tuple[int, int, str, int]:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    (found,) = (await cluster.ask(request, FindCoordinatorResponse)).coordinators
    return found.error_code, found.node_id, found.host, found.port


@pytest.mark.parametrize(("key_type", "topic"), [(GROUP, CONSUMER_OFFSETS_NAME), (TRANSACTION, TRANSACTION_STATE_NAME)])
async def test_coordinators_are_the_leaders_of_the_internal_topics(
    cluster: SeveralBrokers, key_type: int, topic: str
) -> None:
    for index, (node_id, host, port) in enumerate(EVERYWHERE):
        assert await find(cluster, key_type, key_in(index, 6)) == (e.NONE, node_id, host, port)
        assert await find(cluster, key_type, key_in(index + 3, 6)) == (e.NONE, node_id, host, port)
    cluster.assignment.others[topic, 1] = Leader(THIRD_ID, 50)
    assert await find(cluster, key_type, key_in(1, 6)) == (e.NONE, *EVERYWHERE[2])
    cluster.assignment.others[topic, 1] = None
    assert (await find(cluster, key_type, key_in(1, 6)))[0] == e.COORDINATOR_NOT_AVAILABLE
    cluster.assignment.third_is_up = False
    assert (await find(cluster, key_type, key_in(2, 6)))[0] == e.COORDINATOR_NOT_AVAILABLE


async def test_a_broker_that_leads_no_partition_of_the_offsets_found_no_coordinator(cluster: SeveralBrokers) -> None:
    """It took the topic for missing, and would have taken every group for one that it coordinates."""
    cluster.assignment.others.update({(CONSUMER_OFFSETS_NAME, index): Leader(OTHER_ID, 50) for index in range(6)})
    assert await find(cluster, GROUP, "g") == (e.NONE, *EVERYWHERE[1])
    assert cluster.services.topics.get(CONSUMER_OFFSETS_NAME) is not None
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    cluster.assignment.others[CONSUMER_OFFSETS_NAME, 0] = Leader(OWN_ID, 51)  # but it has not been opened yet
    (group,) = (
        await cluster.ask(
            attrs.evolve(request, groups=[OffsetFetchRequestGroup(group_id=key_in(0, 6), topics=None)]),
            OffsetFetchResponse,
        )
    ).groups
    assert group.error_code == e.NOT_COORDINATOR
    listed = await cluster.ask(ListGroupsRequest(), ListGroupsResponse)
    assert (listed.error_code, listed.groups) == (e.COORDINATOR_LOAD_IN_PROGRESS, [])
    cluster.assignment.others[CONSUMER_OFFSETS_NAME, 0] = Leader(OTHER_ID, 52)
    listed = await cluster.ask(ListGroupsRequest(), ListGroupsResponse)
    assert (listed.error_code, listed.groups) == (e.NONE, [])
