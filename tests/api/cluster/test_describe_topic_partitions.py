from __future__ import annotations

from typing import Any

import pytest

from kafscale.api.cluster import metadata
from kafscale.api.cluster.describe_topic_partitions import API
from kafscale.cluster.membership.assignment import Leader
from kafscale.cluster.membership.node import Node
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.config import Settings
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.topics import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    TopicRequest,
)
from tests.api.assignments import OTHER_ID, TwoBrokers
from tests.api.handlers import ask, some_services

NODE = Node(node_id=7, cluster_id="the-cluster", broker_epoch=3, advertised={})
A, B, C = ("a", [0]), ("b", [0, 1, 2]), ("c", [0, 1])


@pytest.fixture
async def services() -> Any:
    topics = TopicRegistry(store=MemoryMetadataStore())
    counts = {"c": 2, "a": 1, "b": 3}
    await topics.create([NewTopic(name=name, partition_count=count) for name, count in counts.items()])
    return some_services(node=NODE, topics=topics, settings=Settings())


async def page(
    services: Any, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsResponse:
    at = None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1])
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=at
    )
    response: DescribeTopicPartitionsResponse = await ask(API, services, request)
    return response


def told(response: DescribeTopicPartitionsResponse) -> list[tuple[str | None, list[int] | int]]:
    """Topics with their partitions, or with their error."""
    return [
        (topic.name, topic.error_code or [each.partition_index for each in topic.partitions])
        for topic in response.topics
    ]


def next_page(response: DescribeTopicPartitionsResponse) -> tuple[str, int] | None:
    cursor = response.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


async def test_all_topics_in_order_of_name(services: Any) -> None:
    response = await page(services)
    assert told(response) == [A, B, C]
    assert response.next_cursor is None


async def test_partitions_equal_the_ones_in_metadata(services: Any) -> None:
    await services.topics.create([NewTopic(name="copied", replication_factor=3)])
    (described,) = (await page(services, "copied")).topics
    everything = await ask(metadata.API, services, MetadataRequest(topics=None))
    known = next(topic for topic in everything.topics if topic.name == "copied")
    assert (described.topic_id, described.is_internal) == (known.topic_id, known.is_internal)
    (here,), (there,) = described.partitions, known.partitions
    for attribute in ("leader_id", "leader_epoch", "replica_nodes", "isr_nodes", "offline_replicas"):
        assert getattr(here, attribute) == getattr(there, attribute)
    assert (here.leader_id, here.leader_epoch, here.replica_nodes) == (7, 3, [7, 7, 7])
    assert (here.eligible_leader_replicas, here.last_known_elr) == ([], [])
    assert described.topic_authorized_operations == 3576  # as Kafka 4.1 without ACLs


async def test_internal_topics_are_marked_internal(services: Any) -> None:
    await services.topics.create([NewTopic(name="__consumer_offsets")])
    (topic,) = (await page(services, "__consumer_offsets")).topics
    assert topic.is_internal


async def test_each_partition_names_its_leader(services: Any) -> None:
    services.assignment = TwoBrokers(NODE, others={("b", 1): Leader(OTHER_ID, 5), ("b", 2): None})
    (topic,) = (await page(services, "b")).topics
    assert [(each.leader_id, each.leader_epoch, each.replica_nodes) for each in topic.partitions] == [
        (7, 3, [7]),
        (OTHER_ID, 5, [OTHER_ID]),
        (-1, -1, []),
    ]
    assert {each.error_code for each in topic.partitions} == {0}


@pytest.mark.parametrize(
    ("limit", "pages"),
    [
        (1, [[A], [("b", [0])], [("b", [1])], [("b", [2])], [("c", [0])], [("c", [1])]]),
        (2, [[A, ("b", [0])], [("b", [1, 2])], [C]]),
        (4, [[A, B], [C]]),
        (5, [[A, B, ("c", [0])], [("c", [1])]]),
        (6, [[A, B, C]]),
    ],
)
@pytest.mark.parametrize("names", [(), ("c", "b", "a", "b")], ids=["all", "named"])
async def test_pages_follow_each_other(
    services: Any, names: tuple[str, ...], limit: int, pages: list[list[tuple[str, list[int]]]]
) -> None:
    found, cursor = [], None
    while True:
        response = await page(services, *names, limit=limit, cursor=cursor)
        found.append(told(response))
        cursor = next_page(response)
        if cursor is None:
            break
    assert found == pages


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_has_at_least_one_partition(services: Any, limit: int) -> None:
    response = await page(services, limit=limit)
    assert (told(response), next_page(response)) == ([A], ("b", 0))


async def test_a_page_has_at_most_2000_partitions(services: Any) -> None:
    await services.topics.create([NewTopic(name="large", partition_count=2001)])
    response = await page(services, "large", "none", limit=1_000_000)
    assert next_page(response) == ("large", 2000)
    assert len(response.topics[0].partitions) == 2000


async def test_topics_that_do_not_exist_are_on_the_page_of_their_names_and_do_not_count(services: Any) -> None:
    names = ["x", "aa", "b", "a/b", "a", "bb"]
    first = await page(services, *names, limit=2)
    unknown, invalid = error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.INVALID_TOPIC_EXCEPTION
    assert (told(first), next_page(first)) == ([A, ("b", [0]), ("aa", unknown), ("a/b", invalid)], ("b", 1))
    second = await page(services, *names, limit=2, cursor=("b", 1))
    assert (told(second), next_page(second)) == ([("b", [1, 2]), ("x", unknown), ("bb", unknown)], None)


async def test_a_cursor_behind_the_last_partition(services: Any) -> None:
    assert told(await page(services, "b", "c", cursor=("b", 9))) == [("b", []), C]


async def test_a_cursor_of_a_topic_that_is_gone_begins_with_the_next_one(services: Any) -> None:
    assert told(await page(services, cursor=("aa", 2))) == [B, C]


@pytest.mark.parametrize("cursor", [("zz", 0), ("a", -1)])
async def test_cursors_that_can_not_be(services: Any, cursor: tuple[str, int]) -> None:
    response = await page(services, "a", "b", cursor=cursor)
    invalid = error_codes.INVALID_REQUEST
    assert (told(response), response.next_cursor) == ([("a", invalid), ("b", invalid)], None)


async def test_a_cursor_with_a_negative_partition_and_all_topics_returns_no_topics(services: Any) -> None:
    assert told(await page(services, cursor=("a", -1))) == []
