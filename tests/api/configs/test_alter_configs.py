"""AlterConfigs and IncrementalAlterConfigs: what they share is tested through both."""

from __future__ import annotations

from typing import Any

import pytest

from kafscale.api.configs import alter_configs, incremental_alter_configs
from kafscale.cluster.groups.common.context import GroupOverrides
from kafscale.cluster.groups.configs import GroupConfigs
from kafscale.cluster.membership.node import Node
from kafscale.cluster.registries.dynamic_configs import BrokerConfigs
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.config import Settings
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tests.api.handlers import ask, some_services

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
NOBODY_IN = (
    "Invalid value 0 for configuration max.connections.per.ip: --max-connections-per-ip: '0' refuses every client; "
    "allowed: 0 with --max-connections-per-ip-overrides"
)


@pytest.fixture
async def services() -> Any:
    topics = TopicRegistry(store=MemoryMetadataStore())
    await topics.create([NewTopic(name="a", overrides={"retention.ms": "5", "cleanup.policy": "compact"})])
    return some_services(
        topics=topics,
        group_configs=GroupConfigs(MemoryMetadataStore()),
        broker_configs=BrokerConfigs(MemoryMetadataStore(), Settings(broker_id=1)),
        node=Node(node_id=1, cluster_id="c", broker_epoch=0, advertised={}),
    )


def change(*configs: tuple[str, int, str | None], name: str = "a", kind: int = TOPIC) -> Any:
    alterable = [IncrementalAlterableConfig(name=n, config_operation=op, value=value) for n, op, value in configs]
    return IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=alterable)


def replacement(*configs: tuple[str, str | None], name: str = "a", kind: int = TOPIC) -> Any:
    alterable = [AlterableConfig(name=n, value=value) for n, value in configs]
    return AlterConfigsResource(resource_type=kind, resource_name=name, configs=alterable)


async def alter(services: Any, *resources: Any, version: int | None = None, validate_only: bool = False) -> list[Any]:
    """Send them by the API that they belong to."""
    if isinstance(resources[0], AlterConfigsResource):
        request: Any = AlterConfigsRequest(resources=list(resources), validate_only=validate_only)
        api = alter_configs.API
    else:
        request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
        api = incremental_alter_configs.API
    return (await ask(api, services, request, version=version)).responses


@pytest.mark.parametrize("version", range(2))
async def test_incremental_changes_leave_the_rest(services: Any, version: int) -> None:
    (result,) = await alter(services, change(("segment.ms", SET, "7"), ("retention.ms", DELETE, None)), version=version)
    assert (result.error_code, result.error_message, result.resource_type, result.resource_name) == (0, None, 2, "a")
    topic = services.topics.get("a")
    assert topic.overrides == {"cleanup.policy": "compact", "segment.ms": "7"}
    assert (topic.config.segment_ms, topic.config.retention_ms) == (7, 604_800_000)


@pytest.mark.parametrize("version", range(3))
async def test_the_older_api_replaces_everything(services: Any, version: int) -> None:
    (result,) = await alter(services, replacement(("segment.ms", "7")), version=version)
    assert (result.error_code, result.resource_name) == (0, "a")
    assert services.topics.get("a").overrides == {"segment.ms": "7"}


@pytest.mark.parametrize(
    ("operation", "value", "expected"),
    [
        (APPEND, "delete", "compact,delete"),
        (APPEND, "compact", "compact"),
        (SUBTRACT, "compact", ""),
        (SUBTRACT, "x", "compact"),
        (APPEND, " delete ", "compact,delete"),
        (APPEND, " compact", "compact"),
        (SUBTRACT, " compact", ""),
        (SET, "compact , delete", "compact,delete"),
    ],
)
async def test_lists_grow_and_shrink(services: Any, operation: int, value: str, expected: str) -> None:
    (result,) = await alter(services, change(("cleanup.policy", operation, value)))
    assert result.error_code == 0
    assert services.topics.get("a").overrides["cleanup.policy"] == expected


async def test_a_list_grows_from_its_default(services: Any) -> None:
    await alter(services, change(("cleanup.policy", DELETE, None)))
    await alter(services, change(("cleanup.policy", APPEND, "compact")))
    assert services.topics.get("a").overrides["cleanup.policy"] == "delete,compact"


async def test_appending_to_a_list_config_stops_at_the_string_length_limit(services: Any) -> None:
    """DescribeConfigs of versions 1 to 3 raised struct.error for who asked for the topic."""
    name, half = "leader.replication.throttled.replicas", ",".join(f"{index}:1" for index in range(3_000))
    (first,) = await alter(services, change((name, APPEND, half)))
    (second,) = await alter(services, change((name, APPEND, half.replace(":1", ":2"))))
    assert (first.error_code, second.error_code) == (0, error_codes.INVALID_CONFIG)
    assert services.topics.get("a").overrides[name] == half


async def test_deleting_an_unset_config_succeeds(services: Any) -> None:
    (result,) = await alter(services, change(("segment.ms", DELETE, None), ("no.such.config", DELETE, None)))
    assert result.error_code == 0


async def test_validate_only_changes_nothing(services: Any) -> None:
    good, bad = change(("retention.ms", SET, "7")), change(("retention.ms", SET, "x"))
    assert (await alter(services, good, validate_only=True))[0].error_code == 0
    assert (await alter(services, bad, validate_only=True))[0].error_code == error_codes.INVALID_CONFIG
    assert services.topics.get("a").config.retention_ms == 5


@pytest.mark.parametrize(
    ("resource", "code", "message"),
    [
        (
            change(("retention.ms", SET, "x")),
            error_codes.INVALID_CONFIG,
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
        ),
        (replacement(("nope", "1")), error_codes.INVALID_CONFIG, "Unknown topic config name: nope"),
        (
            change(("retention.ms", APPEND, "1")),
            error_codes.INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            change(("nope", SUBTRACT, "1")),
            error_codes.INVALID_CONFIG,
            "Can't SUBTRACT to key nope because its type is not LIST.",
        ),
        (
            change(("retention.ms", SET, None)),
            error_codes.INVALID_REQUEST,
            "Null value not supported for : retention.ms",
        ),
        (
            replacement(("retention.ms", None)),
            error_codes.INVALID_REQUEST,
            "Null value not supported for : retention.ms",
        ),
        (change(("retention.ms", 4, "1")), error_codes.INVALID_REQUEST, "Unknown operations type 4"),
        (
            change(("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
            error_codes.INVALID_REQUEST,
            "Error due to duplicate config keys",
        ),
        (
            change(("retention.ms", SET, "1"), name="nope"),
            error_codes.UNKNOWN_TOPIC_OR_PARTITION,
            "This server does not host this topic-partition.",
        ),
        (change(name=""), error_codes.INVALID_REQUEST, "Default topic resources are not allowed."),
        (change(name=".."), error_codes.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: '..' is not allowed"),
        (
            change(("log.retention.hours", SET, "1"), name="1", kind=BROKER),
            error_codes.INVALID_REQUEST,
            "Cannot update these configs dynamically: Set(log.retention.hours)",
        ),
        (
            change(("log.retention.ms", SET, "x"), name="1", kind=BROKER),
            error_codes.INVALID_REQUEST,
            "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
        ),
        (
            change(("message.max.bytes", SET, "-1"), name="", kind=BROKER),
            error_codes.INVALID_REQUEST,
            "Invalid value -1 for configuration message.max.bytes: Value must be at least 0",
        ),
        (
            change(("sasl.enabled.mechanisms", SET, "PLAIN"), name="1", kind=BROKER),
            error_codes.INVALID_REQUEST,
            "Cannot update these configs dynamically: Set(sasl.enabled.mechanisms)",
        ),
        (
            change(("min.insync.replicas", SET, "2"), name="1", kind=BROKER),
            error_codes.INVALID_CONFIG,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
        ),
        (
            change(("max.connections.per.ip", SET, "0"), name="1", kind=BROKER),
            error_codes.INVALID_REQUEST,
            NOBODY_IN,
        ),
        (
            change(("node.id", SET, "3"), ("log.retention.ms", DELETE, None), ("b", SET, "1"), name="", kind=BROKER),
            error_codes.INVALID_REQUEST,
            "Cannot update these configs dynamically: Set(node.id, b)",
        ),
        (
            replacement(("node.id", "3"), name="1", kind=BROKER),
            error_codes.INVALID_REQUEST,
            "Cannot update these configs dynamically: Set(node.id)",
        ),
        (
            change(("num.partitions", APPEND, "3"), name="1", kind=BROKER),
            error_codes.INVALID_CONFIG,
            "Can't APPEND to key num.partitions because its type is not LIST.",
        ),
        (
            change(name="x", kind=BROKER),
            error_codes.INVALID_REQUEST,
            "Broker id must be an integer, but it is: x",
        ),
        (
            change(name="2", kind=BROKER),
            error_codes.INVALID_REQUEST,
            "Unexpected broker id, expected 1, but received 2",
        ),
        (change(name="1", kind=BROKER_LOGGER), error_codes.INVALID_REQUEST, "Unsupported resource type 8"),
    ],
)
async def test_errors_have_kafkas_code_and_message(services: Any, resource: Any, code: int, message: str) -> None:
    (result,) = await alter(services, resource)
    assert (result.error_code, result.error_message) == (code, message)
    assert services.topics.get("a").overrides == {"retention.ms": "5", "cleanup.policy": "compact"}


async def test_configs_of_a_broker_and_of_all_brokers_are_set_changed_and_removed(services: Any) -> None:
    configs = services.broker_configs
    backoff, retention = "log.cleaner.backoff.ms", "log.retention.ms"
    both = change((backoff, SET, " +20000 "), ("log.cleanup.policy", APPEND, "compact"), name="+01", kind=BROKER)
    default = change((backoff, SET, "30000"), (retention, SET, "7777"), name="", kind=BROKER)
    results = await alter(services, both, default)
    assert [each.error_code for each in results] == [0, 0]
    assert configs.dynamic.own == {backoff: "20000", "log.cleanup.policy": "delete,compact"}
    assert configs.dynamic.default == {"min.insync.replicas": "1", backoff: "30000", retention: "7777"}
    (tried,) = await alter(services, change((backoff, SET, "1"), name="1", kind=BROKER), validate_only=True)
    assert tried.error_code == 0
    await alter(services, change((backoff, DELETE, None), (retention, DELETE, None), name="1", kind=BROKER))
    assert configs.dynamic.own == {"log.cleanup.policy": "delete,compact"}
    assert configs.dynamic.in_force()[backoff] == "30000"
    await alter(
        services, replacement(("num.io.threads", "9"), name="1", kind=BROKER), replacement(name="", kind=BROKER)
    )
    assert (configs.dynamic.own, configs.dynamic.default) == ({"num.io.threads": "9"}, {"min.insync.replicas": "1"})


@pytest.mark.parametrize("name", ["1", "+01", ""])
async def test_an_unset_config_of_a_broker_can_be_deleted(services: Any, name: str) -> None:
    throttle = change(("leader.replication.throttled.rate", DELETE, None), name=name, kind=BROKER)
    for resource in (throttle, change(name=name, kind=BROKER), replacement(name=name, kind=BROKER)):
        (result,) = await alter(services, resource)
        assert (result.error_code, result.error_message, result.resource_name) == (0, None, name)


async def test_a_duplicate_resource_is_refused_and_others_are_changed(services: Any) -> None:
    await services.topics.create([NewTopic(name="b")])
    twice = change(("retention.ms", SET, "1"))
    results = await alter(services, twice, change(("retention.ms", SET, "2"), name="b"), twice)
    assert [result.error_code for result in results] == [error_codes.INVALID_REQUEST, 0, error_codes.INVALID_REQUEST]
    assert results[0].error_message == "Each resource must appear at most once."
    assert services.topics.get("a").config.retention_ms == 5
    assert services.topics.get("b").config.retention_ms == 2


async def test_group_configs_are_altered_apart_from_topic_configs(services: Any) -> None:
    """The group need not exist, and may be named as a topic is."""
    results = await alter(
        services,
        change((SESSION, SET, "50000"), kind=GROUP),
        change(("retention.ms", SET, "7")),
        change((SESSION, SET, "1"), name="b", kind=GROUP),
        change((SESSION, APPEND, "1"), name="c", kind=GROUP),
        change(("retention.ms", SET, "7"), name="d", kind=GROUP),
        change((SESSION, SET, "50000"), name="", kind=GROUP),
        change((SESSION, SET, "50000"), name="x" * 2_000, kind=GROUP),
    )
    invalid, bad = error_codes.INVALID_CONFIG, error_codes.INVALID_REQUEST
    assert [each.error_code for each in results] == [0, 0, invalid, invalid, invalid, bad, bad]
    assert services.group_configs.overrides == {"a": GroupOverrides(session_timeout_ms=50_000)}
    assert services.topics.get("a").overrides["retention.ms"] == "7"
    await alter(services, change((HEARTBEAT, SET, "9000"), kind=GROUP))
    await alter(services, change((SESSION, DELETE, None), kind=GROUP))
    assert services.group_configs.overrides == {"a": GroupOverrides(heartbeat_interval_ms=9_000)}
    await alter(services, replacement((SESSION, "50000"), kind=GROUP))
    assert services.group_configs.overrides == {"a": GroupOverrides(session_timeout_ms=50_000)}


@pytest.mark.parametrize("kind", [TOPIC, BROKER, GROUP])
async def test_a_request_of_too_many_changes_is_refused_as_a_whole(services: Any, kind: int) -> None:
    many = 10_001
    names = ["1"] if kind == BROKER else ["a", "b"]
    long = [
        change(*((f"c{n}", SET, "1") for n in range(many // len(names) + 1)), name=name, kind=kind) for name in names
    ]
    for resources in (
        long,
        [change(name=f"n{n}", kind=kind) for n in range(many)],
        [replacement(name=f"n{n}", kind=kind) for n in range(many)],
    ):
        results = await alter(services, *resources)
        assert {(each.error_code, each.error_message) for each in results} == {
            (error_codes.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
        }
        assert len(results) == len(resources)
    assert services.topics.get("a").overrides == {"retention.ms": "5", "cleanup.policy": "compact"}


async def test_a_request_of_as_many_groups_as_are_allowed_is_taken(services: Any) -> None:
    results = await alter(services, *(change((SESSION, SET, "50000"), name=f"g{n}", kind=GROUP) for n in range(10_000)))
    assert {each.error_code for each in results} == {0}
    (refused,) = await alter(services, change((SESSION, SET, "50000"), name="more", kind=GROUP))
    assert refused.error_code == error_codes.POLICY_VIOLATION
    (nothing,) = await alter(services, change((SESSION, DELETE, None), name="more", kind=GROUP))
    assert nothing.error_code == 0
