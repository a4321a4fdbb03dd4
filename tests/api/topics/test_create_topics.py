from __future__ import annotations

from typing import Any

import attrs
import pytest

from kafscale.api.topics.create_topics import API
from kafscale.cluster.membership.node import Node
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.config import Settings
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from tests.api.assignments import OTHER_ID, THIRD_ID, ScriptedMover, ThreeBrokers
from tests.api.handlers import ask, some_services

NODE = Node(node_id=1, cluster_id="c", broker_epoch=0, advertised={})


@pytest.fixture
def services() -> Any:
    return some_services(node=NODE, topics=TopicRegistry(store=MemoryMetadataStore()))


def new_topic(name: str, *, partitions: int = 1, replicas: int = 1, **more: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, **more)


def assigned_topic(*brokers: list[int], indexes: tuple[int, ...] = (0, 1, 2)) -> CreatableTopic:
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
        for index, ids in zip(indexes, brokers, strict=False)
    ]
    return new_topic("a", partitions=-1, replicas=-1, assignments=assignments)


async def create(services: Any, *topics: CreatableTopic, version: int = 7) -> list[CreatableTopicResult]:
    response = await ask(API, services, CreateTopicsRequest(topics=list(topics)), version=version)
    return response.topics


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_in_every_version(services: Any, version: int) -> None:
    (result,) = await create(services, new_topic("a", partitions=3, replicas=2), version=version)
    topic = services.topics.get("a")
    assert (topic.partition_count, topic.replication_factor) == (3, 2)
    assert (result.name, result.error_code, result.error_message) == ("a", 0, None)
    assert (result.num_partitions, result.replication_factor) == ((3, 2) if version >= 5 else (-1, -1))
    assert result.topic_id == (topic.topic_id if version >= 7 else bytes(16))
    assert len(result.configs) == (33 if version >= 5 else 0)


async def test_minus_one_is_the_brokers_default(services: Any) -> None:
    services.topics.settings = Settings(default_partitions_count=4)
    (result,) = await create(services, new_topic("a", partitions=-1, replicas=-1))
    assert (result.num_partitions, result.replication_factor) == (4, 1)


async def test_topic_configs_are_stored_and_returned(services: Any) -> None:
    (result,) = await create(services, new_topic("a", configs=[CreatableTopicConfig(name="retention.ms", value="5")]))
    assert services.topics.get("a").config.retention_ms == 5
    told = {config.name: (config.value, config.config_source) for config in result.configs}
    assert told["retention.ms"] == ("5", 1)
    assert told["segment.ms"] == ("604800000", 5)


async def test_validate_only(services: Any) -> None:
    request = CreateTopicsRequest(topics=[new_topic("a", partitions=3), new_topic("")], validate_only=True)
    good, bad = (await ask(API, services, request)).topics
    assert (good.error_code, good.num_partitions) == (0, 3)
    assert bad.error_code == error_codes.INVALID_TOPIC_EXCEPTION
    assert services.topics.all() == []


async def test_a_duplicate_topic_name_is_refused_in_one_result(services: Any) -> None:
    results = await create(services, new_topic("a"), new_topic("b"), new_topic("a"))
    assert [(result.name, result.error_code, result.error_message) for result in results] == [
        ("a", error_codes.INVALID_REQUEST, "Duplicate topic name."),
        ("b", 0, None),
    ]
    assert services.topics.get("a") is None


NULLS = [CreatableTopicConfig(name="retention.ms"), CreatableTopicConfig(name="segment.ms")]


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (new_topic("taken"), error_codes.TOPIC_ALREADY_EXISTS, "Topic 'taken' already exists."),
        (new_topic(".."), error_codes.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: '..' is not allowed"),
        (
            new_topic("a", configs=NULLS),
            error_codes.INVALID_CONFIG,
            "Null value not supported for topic configs: retention.ms,segment.ms",
        ),
        (
            new_topic("a", configs=[CreatableTopicConfig(name="nope", value="1")]),
            error_codes.INVALID_CONFIG,
            "Unknown topic config name: nope",
        ),
        (
            new_topic("__cluster_metadata"),
            error_codes.INVALID_REQUEST,
            "Creation of internal topic __cluster_metadata is prohibited.",
        ),
        (
            new_topic("a", partitions=0),
            error_codes.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        ),
    ],
)
async def test_errors_have_kafkas_code_and_message(
    services: Any, topic: CreatableTopic, code: int, message: str
) -> None:
    await services.topics.create([NewTopic(name="taken")])
    (result,) = await create(services, topic)
    assert (result.error_code, result.error_message) == (code, message)


async def test_a_manual_assignment_sets_partition_count_and_replication_factor(services: Any) -> None:
    (result,) = await create(services, assigned_topic([1, 1], [1, 1], [1, 1]))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 2)


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (assigned_topic([2]), "includes broker 2"),
        (assigned_topic([]), "empty replica list"),
        (assigned_topic([1], [1, 1]), "not consistent"),
        (assigned_topic([1], indexes=(1,)), "consecutive 0-based"),
        (assigned_topic([1], [1], indexes=(0, 0)), "multiple manual partition assignments for partition 0"),
    ],
)
async def test_bad_manual_assignments(services: Any, topic: CreatableTopic, message: str) -> None:
    (result,) = await create(services, topic)
    assert result.error_code == error_codes.INVALID_REPLICA_ASSIGNMENT
    assert message in result.error_message
    assert services.topics.all() == []


@pytest.mark.parametrize(("partitions", "replicas", "field"), [(1, -1, "numPartitions"), (-1, 1, "replication factor")])
async def test_a_manual_assignment_and_a_number(services: Any, partitions: int, replicas: int, field: str) -> None:
    topic = assigned_topic([1])
    topic.num_partitions, topic.replication_factor = partitions, replicas
    (result,) = await create(services, topic)
    assert result.error_code == error_codes.INVALID_REQUEST
    assert f"{field} was not set to -1" in result.error_message


async def test_new_partitions_are_led_by_the_first_of_the_brokers_that_are_named(
    services: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """They were led by whoever the cluster chose."""
    services.assignment = ThreeBrokers(NODE)
    services.mover = ScriptedMover(services.assignment, refused={("a", 0)})
    asked = assigned_topic([THIRD_ID, 1], [OTHER_ID, THIRD_ID], [1, OTHER_ID])
    (result,) = await create(services, asked)
    assert (result.error_code, result.replication_factor) == (0, 2)
    assert services.mover.moves == [("a", 2, 1)]  # the second is led there already
    assert f"can't move new partition a-0 to broker {THIRD_ID}: broker {THIRD_ID} is about to leave" in caplog.text
    (result,) = await create(services, asked)
    assert result.error_code == error_codes.TOPIC_ALREADY_EXISTS
    request = CreateTopicsRequest(topics=[attrs.evolve(asked, name="b")], validate_only=True)
    assert (await ask(API, services, request)).topics[0].error_code == 0
    assert len(services.mover.moves) == 1
