from __future__ import annotations

from typing import Any

import pytest

from kafscale.api.topics.create_partitions import API
from kafscale.cluster.membership.node import Node
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.topics import CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic
from tests.api.assignments import OTHER_ID, THIRD_ID, ScriptedMover, ThreeBrokers
from tests.api.handlers import ask, some_services


@pytest.fixture
async def services() -> Any:
    topics = TopicRegistry(store=MemoryMetadataStore())
    await topics.create([NewTopic(name="a", partition_count=2), NewTopic(name="b", replication_factor=2)])
    return some_services(topics=topics, node=Node(node_id=1, cluster_id="c", broker_epoch=0, advertised={}))


def more(name: str, count: int, *brokers: list[int]) -> CreatePartitionsTopic:
    assignments = [CreatePartitionsAssignment(broker_ids=ids) for ids in brokers] if brokers else None
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments)


@pytest.mark.parametrize("version", range(4))
async def test_more_partitions_in_every_version(services: Any, version: int) -> None:
    request = CreatePartitionsRequest(topics=[more("a", 5), more("b", 2, [1, 1])], timeout_ms=1000)
    response = await ask(API, services, request, version=version)
    assert [(result.name, result.error_code) for result in response.results] == [("a", 0), ("b", 0)]
    assert [topic.partition_count for topic in services.topics.all()] == [5, 2]


async def test_validate_only(services: Any) -> None:
    request = CreatePartitionsRequest(topics=[more("a", 5)], timeout_ms=1000, validate_only=True)
    assert (await ask(API, services, request)).results[0].error_code == 0
    assert services.topics.get("a").partition_count == 2


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        (more("nope", 5), error_codes.UNKNOWN_TOPIC_OR_PARTITION, "does not host"),
        (more("a", 2), error_codes.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
        (
            more("a", 1),
            error_codes.INVALID_PARTITIONS,
            "The topic a currently has 2 partition(s); 1 would not be an increase.",
        ),
        (
            more("a", 4, [1]),
            error_codes.INVALID_REPLICA_ASSIGNMENT,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (more("a", 3, [9]), error_codes.INVALID_REPLICA_ASSIGNMENT, "includes broker 9"),
        (more("b", 2, [1]), error_codes.INVALID_REPLICA_ASSIGNMENT, "which have 2 replica(s)"),
    ],
)
async def test_errors(services: Any, wanted: CreatePartitionsTopic, code: int, message: str) -> None:
    response = await ask(API, services, CreatePartitionsRequest(topics=[wanted], timeout_ms=1000))
    assert response.results[0].error_code == code
    assert message in response.results[0].error_message


async def test_a_duplicate_topic_name_is_refused_in_one_result(services: Any) -> None:
    response = await ask(API, services, CreatePartitionsRequest(topics=[more("a", 5), more("a", 6)], timeout_ms=1000))
    assert [(result.error_code, result.error_message) for result in response.results] == [
        (error_codes.INVALID_REQUEST, "Duplicate topic name.")
    ]
    assert services.topics.get("a").partition_count == 2


async def test_more_partitions_are_led_by_the_brokers_that_are_named(services: Any) -> None:
    """They were led by whoever the cluster chose."""
    services.assignment = ThreeBrokers(services.node)
    services.mover = ScriptedMover(services.assignment)
    wanted = [more("a", 5, [1], [THIRD_ID], [OTHER_ID]), more("b", 2, [5, 5])]
    request = CreatePartitionsRequest(topics=wanted, timeout_ms=1000, validate_only=True)
    assert (await ask(API, services, request)).results[0].error_code == 0
    assert services.mover.moves == []
    response = await ask(API, services, CreatePartitionsRequest(topics=wanted, timeout_ms=1000))
    assert [each.error_code for each in response.results] == [0, error_codes.INVALID_REPLICA_ASSIGNMENT]
    assert services.mover.moves == [("a", 2, 1), ("a", 3, THIRD_ID)]  # a-4 is led there already
