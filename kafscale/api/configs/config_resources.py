"""Resources of DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: topics, groups and brokers.

The two that change configs share `change_configs`; they differ only in how new configs follow from old ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

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
from kafscale.wire.schema import mapped

DRAINING: Final = ConfigDefinition(
    name="kafscale.draining",
    type=ConfigType.BOOLEAN,
    default="false",
    documentation="Whether the broker is to lead nothing: its partitions move to others.",
)
_DURABILITY = ConfigDefinition(
    name="kafscale.durability",
    type=ConfigType.STRING,
    default=None,
    documentation="The broker's --durability, which says whether others can lead what it led when it is lost.",
)
FULL: Final = "full"
_STATE = ConfigDefinition(
    name="kafscale.state",
    type=ConfigType.STRING,
    default=None,
    documentation="Whether the broker serves, as the others know; full if it does, and its disk takes no more.",
)
_VERSION = ConfigDefinition(
    name="kafscale.version",
    type=ConfigType.STRING,
    default=None,
    documentation="The version that it runs, or ran last.",
)


def member_entries(record: BrokerRecord) -> list[ConfigEntry]:
    """Return them in order of name."""
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
Outcome = TypeVar("Outcome")


class ConfigChange(Protocol):
    """One config of a request."""

    @property
    def name(self) -> str: ...


class NamedResource(Protocol):
    """One resource of a request, in any of the APIs."""

    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


class ConfigResource(NamedResource, Protocol):
    """One resource of a request that changes configs."""

    @property
    def configs(self) -> Sequence[ConfigChange]: ...


Resource = TypeVar("Resource", bound=ConfigResource)


def check_access(services: Services, call: Call, by_type: Mapping[int, Right], resource: NamedResource) -> None:
    """Raises KafkaError where the client lacks the right of `by_type` to a resource. Other types are not known here."""
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
) -> list[KafkaError | None]:
    """Change the configs of each resource; what became of each.

    `plan` checks a resource and returns how its new configs follow from those it has; both may raise KafkaError. To
    delete a config that is not set succeeds, as in Kafka, whose tools do that. A request of more than 10,000 configs or
    resources changes nothing.
    """
    try:
        check_batch_size(sum(max(1, len(resource.configs)) for resource in resources))
    except KafkaError as exc:
        return [exc] * len(resources)
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
    return errors


def check_broker_id(services: Services, name: str, *, expected: str = "") -> int:
    """Return the id of the broker that a resource is: this one, or one of those beside it.

    Raises KafkaError INVALID_REQUEST if it is neither; the message names what was `expected`.
    """
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
    """Set other configs on a broker, or on all brokers where there is no name. Raises KafkaError."""
    membership, configs = services.membership, services.broker_configs
    if not name:
        await configs.alter(ALL_BROKERS, overrides, validate_only=validate_only)
        return
    broker_id = check_broker_id(services, name)
    record = membership.records.get(broker_id)
    if record is None:  # the draining flag is in its registration, which a lone broker does not have
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


def _check(services: Services, resource: ConfigResource) -> None:
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
    """Raises KafkaError INVALID_REQUEST: no group can have this id, or it is empty, which has a message of its own."""
    if not name:
        raise KafkaError(INVALID_REQUEST, if_empty)
    if len(name) > GROUP_NAME_MAX_LENGTH:
        raise KafkaError(
            INVALID_REQUEST, f"A group with configs has an id of at most {GROUP_NAME_MAX_LENGTH} characters."
        )


def outcomes(
    make: Callable[..., Outcome], resources: Sequence[ConfigResource], errors: Sequence[KafkaError | None]
) -> list[Outcome]:
    """Return what became of each resource, in the class that the API has for it; made while it is encoded."""

    def outcome(of: tuple[ConfigResource, KafkaError | None]) -> Outcome:
        resource, error = of
        return make(
            error_code=error.code if error else NONE,
            error_message=error.message if error else None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    return mapped(outcome, list(zip(resources, errors, strict=True)))
