"""Topics, groups and brokers as resources of DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from kafscale.api.handling.calls import Call, check_batch_size
from kafscale.api.handling.partitions import know_topics
from kafscale.api.handling.services import Services
from kafscale.cluster.membership.records import BrokerRecord, BrokerState
from kafscale.cluster.registries.config_definitions import ConfigDefinition, ConfigSource, ConfigType
from kafscale.cluster.registries.config_entries import ConfigEntry
from kafscale.cluster.registries.dynamic_configs import ALL_BROKERS
from kafscale.cluster.registries.topic_names import check_topic_name
from kafscale.cluster.registries.topics import NewConfigs
from kafscale.concurrency.turns import in_turns
from kafscale.config import Durability
from kafscale.errors import KafkaError
from kafscale.security import acls as rights
from kafscale.security.acls import CLUSTER_NAME, Right
from kafscale.wire.error_codes import INVALID_REQUEST, NONE
from kafscale.wire.messages.configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    DescribeConfigsResource,
    IncrementalAlterConfigsResource,
)
from kafscale.wire.schema import mapped

# fmt: off
DRAINING: Final = ConfigDefinition("kafscale.draining", ConfigType.BOOLEAN, "false",
    documentation="Whether the broker is to lead nothing: its partitions move to others.")
_DURABILITY = ConfigDefinition("kafscale.durability", ConfigType.STRING, None,
    documentation="The broker's --durability, which says whether others can lead what it led when it is lost.")
_STATE = ConfigDefinition("kafscale.state", ConfigType.STRING, None,
    documentation="Whether the broker serves, as the others know; full if it does, and its disk takes no more.")
_VERSION = ConfigDefinition("kafscale.version", ConfigType.STRING, None,
    documentation="The version that it runs, or ran last.")
# fmt: on
FULL: Final = "full"


def member_entries(record: BrokerRecord) -> list[ConfigEntry]:
    source = ConfigSource.DYNAMIC_BROKER_CONFIG if record.is_draining else ConfigSource.DEFAULT_CONFIG
    return [
        ConfigEntry(definition=DRAINING, value=str(record.is_draining).lower(), source=source),
        _read_only(_DURABILITY, _durability(record).value),
        _read_only(_STATE, FULL if record.state is BrokerState.LIVE and record.has_no_room else record.state.value),
        _read_only(_VERSION, record.version),
    ]


def _durability(record: BrokerRecord) -> Durability:
    if record.acknowledges_locally:
        return Durability.WAL
    return Durability.S3_WAL if record.has_stream else Durability.SEGMENT


def _read_only(definition: ConfigDefinition, value: str) -> ConfigEntry:
    return ConfigEntry(definition=definition, value=value, source=ConfigSource.STATIC_BROKER_CONFIG, read_only=True)


TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32
GROUP_NAME_MAX_LENGTH: Final = 1024  # a key of the metadata; groups without configs have any id that a string can be

TO_DESCRIBE: Final[Mapping[int, Right]] = {
    TOPIC: rights.DESCRIBE_TOPIC_CONFIGS,
    BROKER: rights.DESCRIBE_CLUSTER_CONFIGS,
    GROUP: rights.DESCRIBE_GROUP_CONFIGS,
}
_TO_ALTER: Final[Mapping[int, Right]] = {
    TOPIC: rights.ALTER_TOPIC_CONFIGS,
    BROKER: rights.ALTER_CLUSTER_CONFIGS,
    GROUP: rights.ALTER_GROUP_CONFIGS,
}

Configs = Mapping[str, str]


Resource = TypeVar("Resource", AlterConfigsResource, IncrementalAlterConfigsResource)
AnyResource = AlterConfigsResource | IncrementalAlterConfigsResource


def check_access(
    services: Services, call: Call, by_type: Mapping[int, Right], resource: AnyResource | DescribeConfigsResource
) -> None:
    right = by_type.get(resource.resource_type)
    if right is not None:
        services.access.check(call, right, CLUSTER_NAME if resource.resource_type == BROKER else resource.resource_name)


async def change_configs(
    services: Services,
    call: Call,
    resources: Sequence[Resource],
    plan: Callable[[Resource], Callable[[Configs], Configs]],
    *,
    validate_only: bool,
) -> list[AlterConfigsResourceResponse]:
    """Change the configs of each resource; return the answers, in order.

    `plan` checks a resource and returns a function from its present to its new configs; both may raise KafkaError.
    """
    try:
        check_batch_size(sum(max(1, len(resource.configs)) for resource in resources))
    except KafkaError as exc:
        return _answers(resources, [exc] * len(resources))
    errors: list[KafkaError | None] = [None] * len(resources)
    topics: dict[int, NewConfigs] = {}
    groups: dict[int, NewConfigs] = {}
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    await know_topics(services, (name for resource_type, name in counts if resource_type == TOPIC))
    async for index, resource in in_turns(enumerate(resources)):
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(INVALID_REQUEST, "Each resource must appear at most once.")
            check_access(services, call, _TO_ALTER, resource)
            _check(services, resource)
            overrides = plan(resource)
            if resource.resource_type == BROKER:
                await _change_broker(services, resource.resource_name, overrides, validate_only=validate_only)
                continue
            wanted = groups if resource.resource_type == GROUP else topics
            wanted[index] = NewConfigs(name=resource.resource_name, overrides=overrides)
        except KafkaError as exc:
            errors[index] = exc.kept()
    outcomes = await services.topics.alter(topics.values(), validate_only=validate_only)
    for index, outcome in zip(topics, outcomes, strict=True):
        errors[index] = outcome if isinstance(outcome, KafkaError) else None
    if groups:
        refusals = await services.group_configs.alter(list(groups.values()), validate_only=validate_only)
        for index, refusal in zip(groups, refusals, strict=True):
            errors[index] = refusal
    return _answers(resources, errors)


def check_broker_id(services: Services, name: str, *, expected: str = "") -> int:
    """Return the id of a known broker. Raises KafkaError INVALID_REQUEST, whose message names the `expected` id."""
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", name):
        raise KafkaError(INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    own_id = services.node.node_id
    if int(name) != own_id and int(name) not in services.membership.records:
        expected = expected or str(own_id)
        raise KafkaError(INVALID_REQUEST, f"Unexpected broker id, expected {expected}, but received {name}")
    return int(name)


async def _change_broker(
    services: Services, name: str, overrides: Callable[[Configs], Configs], *, validate_only: bool
) -> None:
    membership, configs = services.membership, services.broker_configs
    if not name:
        await configs.alter(ALL_BROKERS, overrides, validate_only=validate_only)
        return
    broker_id = check_broker_id(services, name)
    record = membership.records.get(broker_id)
    if record is None:  # a lone broker has no registration, which contains the draining flag
        await configs.alter(broker_id, overrides, validate_only=validate_only)
        return
    was_draining = record.is_draining
    draining = {DRAINING.name: "true"} if was_draining else {}
    wanted = overrides(draining).get(DRAINING.name, str(DRAINING.default))
    is_draining = bool(DRAINING.parse(wanted))

    def change(old: Configs) -> Configs:
        return {key: value for key, value in overrides({**old, **draining}).items() if key != DRAINING.name}

    await configs.alter(broker_id, change, validate_only=validate_only)
    if is_draining != was_draining and not validate_only:
        await membership.set_draining(broker_id, is_draining)


def _check(services: Services, resource: AnyResource) -> None:
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        raise KafkaError(INVALID_REQUEST, "Error due to duplicate config keys")
    if resource.resource_type == BROKER:
        if resource.resource_name:
            check_broker_id(services, resource.resource_name)
        return
    if resource.resource_type == GROUP:
        check_group_name(resource.resource_name, "Default group resources are not allowed.")
        return
    if resource.resource_type != TOPIC:
        raise KafkaError(INVALID_REQUEST, f"Unsupported resource type {resource.resource_type}")
    if not resource.resource_name:
        raise KafkaError(INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(resource.resource_name)


def check_group_name(name: str, if_empty: str) -> None:
    """Raise KafkaError INVALID_REQUEST for an invalid group id; `if_empty` is the message for an empty one."""
    if not name:
        raise KafkaError(INVALID_REQUEST, if_empty)
    if len(name) > GROUP_NAME_MAX_LENGTH:
        raise KafkaError(
            INVALID_REQUEST, f"A group with configs has an id of at most {GROUP_NAME_MAX_LENGTH} characters."
        )


def _answers(
    resources: Sequence[AnyResource], errors: Sequence[KafkaError | None]
) -> list[AlterConfigsResourceResponse]:
    def answer(of: tuple[AnyResource, KafkaError | None]) -> AlterConfigsResourceResponse:
        resource, error = of
        return AlterConfigsResourceResponse(
            error_code=error.code if error else NONE,
            error_message=error.message if error else None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    return mapped(answer, list(zip(resources, errors, strict=True)))
