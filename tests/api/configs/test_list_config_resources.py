from __future__ import annotations

from typing import Any

import pytest

from kafscale.api.configs.list_config_resources import API
from kafscale.cluster.groups.configs import GroupConfigs
from kafscale.cluster.membership.node import Node
from kafscale.cluster.registries.topics import NewConfigs, NewTopic, TopicRegistry
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.configs import ListConfigResourcesRequest
from tests.api.assignments import OTHER_ID, TwoBrokers
from tests.api.handlers import ask, some_services

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
NODE = Node(node_id=7, cluster_id="the-cluster", broker_epoch=3, advertised={})
BROKERS, TOPICS, GROUPS = [(BROKER, "7"), (BROKER, str(OTHER_ID))], [(TOPIC, "a"), (TOPIC, "b")], [(GROUP, "g")]


@pytest.fixture
async def services() -> Any:
    topics = TopicRegistry(store=MemoryMetadataStore())
    await topics.create([NewTopic(name="b"), NewTopic(name="a")])
    groups = GroupConfigs(MemoryMetadataStore())
    await groups.alter([NewConfigs(name="g", overrides=lambda _: {"consumer.session.timeout.ms": "50000"})])
    return some_services(node=NODE, topics=topics, assignment=TwoBrokers(NODE), group_configs=groups)


async def resources(services: Any, *types: int, version: int = 1) -> tuple[int, list[tuple[int, str]]]:
    response = await ask(API, services, ListConfigResourcesRequest(resource_types=list(types)), version=version)
    return response.error_code, [(each.resource_type, each.resource_name) for each in response.config_resources]


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ((), BROKERS + TOPICS + GROUPS),
        ((TOPIC,), TOPICS),
        ((TOPIC, TOPIC), TOPICS),
        ((BROKER,), BROKERS),
        ((TOPIC, BROKER), BROKERS + TOPICS),
        ((BROKER_LOGGER, CLIENT_METRICS), []),
        ((GROUP,), GROUPS),
    ],
)
async def test_resources_of_types(services: Any, types: tuple[int, ...], expected: list[tuple[int, str]]) -> None:
    assert await resources(services, *types) == (0, expected)


async def test_before_version_1_only_client_metrics_are_meant(services: Any) -> None:
    assert await resources(services, TOPIC, version=0) == (0, [])


@pytest.mark.parametrize("unknown", [0, 1, 3, 64, -1])
async def test_an_unknown_resource_type_is_refused_with_unsupported_version(services: Any, unknown: int) -> None:
    assert await resources(services, TOPIC, unknown) == (error_codes.UNSUPPORTED_VERSION, [])
