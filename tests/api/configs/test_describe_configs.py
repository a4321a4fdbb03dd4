from __future__ import annotations

from typing import Any

import attrs
import pytest

from kafscale.api.configs.describe_configs import API
from kafscale.cluster.groups.configs import GroupConfigs
from kafscale.cluster.membership.node import Endpoint, Node
from kafscale.cluster.registries.dynamic_configs import ALL_BROKERS, DYNAMIC_CONFIGS, BrokerConfigs
from kafscale.cluster.registries.topic_configs import BrokerDefaults
from kafscale.cluster.registries.topics import NewConfigs, NewTopic, TopicRegistry
from kafscale.config import CoordinatorSettings, Limits, Listener, Settings
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)
from tests.api.handlers import ask, some_services

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
TOPIC_SOURCE, BROKER_SOURCE, DEFAULT_SOURCE, GROUP_SOURCE = 1, 4, 5, 8
DYNAMIC_SOURCE, DYNAMIC_DEFAULT_SOURCE = 2, 3


@pytest.fixture
async def services() -> Any:
    settings = Settings(broker_id=3, default_partitions_count=6, limits=Limits(max_message_bytes=5000))
    topics = TopicRegistry(store=MemoryMetadataStore(), settings=settings)
    await topics.create([NewTopic(name="a", overrides={"retention.ms": "5", "cleanup.policy": "compact"})])
    node = Node(node_id=3, cluster_id="c", broker_epoch=0, advertised={})
    groups = GroupConfigs(MemoryMetadataStore(), CoordinatorSettings(group_consumer_heartbeat_interval_ms=6_000))
    await groups.alter([NewConfigs(name="g", overrides=lambda _: {"consumer.session.timeout.ms": "50000"})])
    brokers = BrokerConfigs(MemoryMetadataStore(), settings)
    return some_services(settings=settings, topics=topics, node=node, group_configs=groups, broker_configs=brokers)


async def describe(
    services: Any, kind: int, name: str, *, keys: list[str] | None = None, version: int = 4, **request: bool
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    response = await ask(API, services, DescribeConfigsRequest(resources=[resource], **request), version=version)
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def by_name(result: DescribeConfigsResult) -> dict[str, DescribeConfigsResourceResult]:
    assert (result.error_code, result.error_message) == (0, None)
    return {config.name: config for config in result.configs}


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_topic_in_every_version(services: Any, version: int) -> None:
    configs = by_name(await describe(services, TOPIC, "a", version=version, include_documentation=True))
    assert len(configs) == 33
    retention, segment, message = configs["retention.ms"], configs["segment.ms"], configs["max.message.bytes"]
    assert (retention.value, retention.config_source) == ("5", TOPIC_SOURCE)
    assert (segment.value, segment.config_source) == ("604800000", DEFAULT_SOURCE)
    assert (message.value, message.config_source) == ("5000", BROKER_SOURCE)
    assert not any(config.read_only or config.is_sensitive or config.synonyms for config in configs.values())
    long = 5 if version >= 3 else 0
    assert retention.config_type == long
    assert (retention.documentation is not None) == (version >= 3)


@pytest.mark.parametrize("rack", ["zone-a", None])
async def test_the_brokers_rack(services: Any, rack: str | None) -> None:
    services.settings = attrs.evolve(services.settings, rack=rack)
    told = by_name(await describe(services, BROKER, "3"))["broker.rack"]
    assert (told.value, told.config_type, told.read_only) == (rack, 2, True)


async def test_types_are_kafkas_numbers(services: Any) -> None:
    configs = by_name(await describe(services, TOPIC, "a"))
    names = ["preallocate", "compression.type", "segment.bytes", "retention.ms", "min.cleanable.dirty.ratio"]
    assert [configs[name].config_type for name in [*names, "cleanup.policy"]] == [1, 2, 3, 5, 6, 7]


async def test_documentation_is_left_out_unless_requested(services: Any) -> None:
    configs = by_name(await describe(services, TOPIC, "a"))
    assert configs["retention.ms"].documentation is None


async def test_synonyms_list_the_sources_of_a_value_in_order_of_precedence(services: Any) -> None:
    configs = by_name(await describe(services, TOPIC, "a", include_synonyms=True))

    def synonyms(name: str) -> list[tuple[str, str | None, int]]:
        return [(synonym.name, synonym.value, synonym.source) for synonym in configs[name].synonyms]

    assert synonyms("retention.ms") == [
        ("retention.ms", "5", TOPIC_SOURCE),
        ("log.retention.ms", "604800000", DEFAULT_SOURCE),
    ]
    assert synonyms("max.message.bytes") == [
        ("message.max.bytes", "5000", BROKER_SOURCE),
        ("message.max.bytes", "1048588", DEFAULT_SOURCE),
    ]
    assert synonyms("remote.storage.enable") == []


@pytest.mark.parametrize("keys", [["retention.ms", "nope", "segment.ms"]])
async def test_only_requested_configs_are_described(services: Any, keys: list[str]) -> None:
    assert set(by_name(await describe(services, TOPIC, "a", keys=keys))) == {"retention.ms", "segment.ms"}


async def test_an_empty_list_of_keys_asks_for_all(services: Any) -> None:
    assert len(by_name(await describe(services, TOPIC, "a", keys=[]))) == 33


async def test_the_broker_has_its_settings_under_kafkas_names(services: Any) -> None:
    configs = by_name(await describe(services, BROKER, "3", include_synonyms=True, include_documentation=True))
    told = {name: (config.value, config.config_source) for name, config in configs.items()}
    assert told["num.partitions"] == ("6", BROKER_SOURCE)
    assert told["message.max.bytes"] == ("5000", BROKER_SOURCE)
    assert told["auto.create.topics.enable"] == ("true", DEFAULT_SOURCE)
    assert told["log.retention.ms"] == ("604800000", DEFAULT_SOURCE)
    assert told["node.id"] == ("3", BROKER_SOURCE)
    assert told["ssl.keystore.location"] == (None, DEFAULT_SOURCE)
    assert told["sasl.enabled.mechanisms"] == ("SCRAM-SHA-512,SCRAM-SHA-256", DEFAULT_SOURCE)
    assert all(config.documentation for config in configs.values())
    assert {name for name, config in configs.items() if config.read_only} == configs.keys() - DYNAMIC_CONFIGS
    assert [config.name for config in configs.values()] == sorted(configs)


async def test_each_broker_config_is_listed_once(services: Any) -> None:
    result = await describe(services, BROKER, "3")
    assert len(by_name(result)) == len(result.configs)


def told(config: DescribeConfigsResourceResult) -> tuple[str | None, int, bool, list[tuple[str, str | None, int]]]:
    synonyms = [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]
    return config.value, config.config_source, config.read_only, synonyms


async def test_describing_the_empty_broker_name_returns_the_cluster_wide_configs(services: Any) -> None:
    """Kafka 4.1 sets min.insync.replicas when a cluster is made, and tells it as such of topics and brokers, too."""
    insync = "min.insync.replicas"
    as_set = (insync, "1", DYNAMIC_DEFAULT_SOURCE)
    found = by_name(await describe(services, BROKER, "", include_synonyms=True))
    assert {name: told(config) for name, config in found.items()} == {
        insync: ("1", DYNAMIC_DEFAULT_SOURCE, False, [as_set])
    }
    for kind, name in ((BROKER, "3"), (TOPIC, "a")):
        config = by_name(await describe(services, kind, name, include_synonyms=True))[insync]
        assert told(config) == ("1", DYNAMIC_DEFAULT_SOURCE, False, [as_set, (insync, "1", DEFAULT_SOURCE)])


async def test_configs_set_at_run_time_come_before_the_brokers_options(services: Any) -> None:
    configs, dynamic = services.broker_configs, DYNAMIC_SOURCE
    configs.follow(lambda: services.topics.use_defaults(BrokerDefaults.of(configs.settings, configs.dynamic)))
    await configs.alter(3, lambda _: {"message.max.bytes": "6000", "num.io.threads": "9"})
    await configs.alter(ALL_BROKERS, lambda _: {"message.max.bytes": "7000", "log.retention.ms": "9"})
    broker = by_name(await describe(services, BROKER, "3", include_synonyms=True))
    synonyms = [
        ("message.max.bytes", "6000", dynamic),
        ("message.max.bytes", "7000", DYNAMIC_DEFAULT_SOURCE),
        ("message.max.bytes", "5000", BROKER_SOURCE),
        ("message.max.bytes", "1048588", DEFAULT_SOURCE),
    ]
    assert told(broker["message.max.bytes"]) == ("6000", dynamic, False, synonyms)
    threads = [("num.io.threads", "9", dynamic), ("num.io.threads", "8", DEFAULT_SOURCE)]
    assert told(broker["num.io.threads"]) == ("9", dynamic, False, threads)
    assert told(broker["log.cleaner.backoff.ms"])[:3] == ("15000", DEFAULT_SOURCE, False)
    assert broker["num.partitions"].read_only
    topic = by_name(await describe(services, TOPIC, "a", include_synonyms=True))
    assert told(topic["max.message.bytes"]) == ("6000", dynamic, False, synonyms)
    retention = [
        ("retention.ms", "5", TOPIC_SOURCE),
        ("log.retention.ms", "9", DYNAMIC_DEFAULT_SOURCE),
        ("log.retention.ms", "604800000", DEFAULT_SOURCE),
    ]
    assert told(topic["retention.ms"]) == ("5", TOPIC_SOURCE, False, retention)
    defaults = by_name(await describe(services, BROKER, ""))
    assert {name: each.value for name, each in defaults.items()} == {
        "log.retention.ms": "9",
        "message.max.bytes": "7000",
        "min.insync.replicas": "1",
    }


async def advertised(services: Any, **listeners: tuple[Listener, Endpoint | None]) -> str | None:
    """What a broker with these listeners says of them, and is reached by PLAINTEXT at 127.0.0.1:9092."""
    services.settings = Settings(broker_id=3, listeners=tuple(listener for listener, _ in listeners.values()))
    told = {name: endpoint for name, (_, endpoint) in listeners.items()}
    services.node = Node(node_id=3, cluster_id="c", broker_epoch=0, advertised=told)
    return by_name(await describe(services, BROKER, "3"))["advertised.listeners"].value


async def test_advertised_listeners_show_the_advertised_addresses(services: Any) -> None:
    inside, outside = Listener("PLAINTEXT", "127.0.0.1", 0), Listener("OUT", "0.0.0.0", 9093)
    told = {"PLAINTEXT": (inside, Endpoint("127.0.0.1", 9192)), "OUT": (outside, Endpoint("broker.example", 19093))}
    assert await advertised(services, **told) == "PLAINTEXT://127.0.0.1:9192,OUT://broker.example:19093"


async def test_a_wildcard_listener_is_advertised_with_the_address_the_client_connected_to(services: Any) -> None:
    reached, other = Listener("PLAINTEXT", "0.0.0.0", 9092), Listener("OUT", "0.0.0.0", 9093)
    found = await advertised(services, PLAINTEXT=(reached, None), OUT=(other, None))
    assert found == "PLAINTEXT://127.0.0.1:9092,OUT://0.0.0.0:9093"


async def test_another_broker_is_not_described(services: Any) -> None:
    result = await describe(services, BROKER, "4")
    assert result.error_message == "Unexpected broker id, expected 3 or empty string, but received 4"
    assert by_name(await describe(services, BROKER, "+03")) == by_name(await describe(services, BROKER, "3"))


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", error_codes.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", error_codes.INVALID_TOPIC_EXCEPTION),
        (BROKER, "4", error_codes.INVALID_REQUEST),
        (BROKER, "x", error_codes.INVALID_REQUEST),
        (BROKER_LOGGER, "3", error_codes.INVALID_REQUEST),
        (99, "", error_codes.INVALID_REQUEST),
    ],
)
async def test_resources_that_can_not_be_described(services: Any, kind: int, name: str, code: int) -> None:
    result = await describe(services, kind, name)
    assert (result.error_code, result.configs) == (code, [])
    assert result.error_message


@pytest.mark.parametrize("name", ["g", "there is no such group"])
async def test_group_configs_override_the_defaults_of_the_broker(services: Any, name: str) -> None:
    configs = by_name(await describe(services, GROUP, name, include_synonyms=True))
    found = {each.name: [(of.name, of.value, of.source) for of in each.synonyms] for each in configs.values()}
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    of_broker = [
        (f"group.{heartbeat}", "6000", BROKER_SOURCE),
        (f"group.{heartbeat}", "5000", DEFAULT_SOURCE),
    ]
    own = [(session, "50000", GROUP_SOURCE)] if name == "g" else []
    assert found == {heartbeat: of_broker, session: [*own, (f"group.{session}", "45000", DEFAULT_SOURCE)]}
    for each in configs.values():
        first = each.synonyms[0]
        assert (each.value, each.config_source, each.read_only) == (first.value, first.source, False)


async def test_a_group_has_a_name(services: Any) -> None:
    result = await describe(services, GROUP, "")
    assert (result.error_code, result.error_message) == (error_codes.INVALID_REQUEST, "Group name must not be empty")
