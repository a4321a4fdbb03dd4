"""DescribeConfigs (32): the configs of topics, groups and this broker, with where each value comes from.

v1  (lowest version) source and synonyms (KIP-226)
v2  throttled by the client
v3  types and documentation (KIP-569)
v4  flexible

A topic has every config of Kafka, with or without an effect here. The broker has its settings in effect under Kafka's
names; `kafscale config` shows those without such a name, too. Configs that can be set at run time are not read-only. A
broker resource without a name has the configs set for all brokers. With several brokers, the id of another broker has
its known state and whether it is drained (`kafscale.draining`). A group, which need not exist, has the configs of Kafka
4's consumer groups (KIP-848), but not those of share and Streams groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from kafscale.api.configs.config_resources import (
    BROKER,
    GROUP,
    TO_DESCRIBE,
    TOPIC,
    check_access,
    check_broker_id,
    check_group_name,
    member_entries,
)
from kafscale.api.handling.calls import Api, Call, Peer
from kafscale.api.handling.partitions import know_topics
from kafscale.api.handling.services import Services
from kafscale.cluster.registries.config_entries import ConfigEntry, broker_entries, default_entries, topic_entries
from kafscale.cluster.registries.topic_names import check_topic_name
from kafscale.concurrency.turns import distinct
from kafscale.config import Listener
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION
from kafscale.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kafscale.wire.schema import mapped


async def handle(services: Services, call: Call, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    resources = await distinct(request.resources, lambda resource: (resource.resource_type, resource.resource_name))
    await know_topics(services, (resource.resource_name for resource in resources if resource.resource_type == TOPIC))
    return DescribeConfigsResponse(results=mapped(partial(_result, services, call, request), resources))


def _result(
    services: Services, call: Call, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        check_access(services, call, TO_DESCRIBE, resource)
        entries = _entries(services, call.peer, resource)
    except KafkaError as exc:
        result.error_code, result.error_message = exc.code, exc.message
        return result
    wanted = set(resource.configuration_keys or ())
    result.configs = [_config(entry, request) for entry in entries if not wanted or entry.definition.name in wanted]
    return result


def _entries(services: Services, peer: Peer, resource: DescribeConfigsResource) -> Sequence[ConfigEntry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        check_topic_name(name)
        topic = services.topics.get(name)
        if topic is None:
            raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return topic_entries(topic.overrides, services.topics.defaults)
    if resource.resource_type == BROKER:
        if not name:
            return default_entries(services.broker_configs.dynamic)
        return _broker_entries(services, peer, name)
    if resource.resource_type == GROUP:
        check_group_name(name, "Group name must not be empty")
        return services.group_configs.entries(name)
    raise KafkaError(INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")


def _broker_entries(services: Services, peer: Peer, name: str) -> Sequence[ConfigEntry]:
    broker_id = check_broker_id(services, name, expected=f"{services.node.node_id} or empty string")
    entries = []
    if broker_id == services.node.node_id:
        dynamic = services.broker_configs.dynamic
        entries += broker_entries(services.settings, _advertised(services, peer), dynamic)
    if (record := services.membership.records.get(broker_id)) is not None:
        entries += member_entries(record)
    return sorted(entries, key=lambda entry: entry.definition.name)


def _advertised(services: Services, peer: Peer) -> Iterable[Listener]:
    """Yield the advertised address of each listener; of a wildcard that this client did not use, the wildcard."""
    for listener in services.settings.listeners:
        advertised = services.node.advertised.get(listener.name)
        if advertised is None and listener.name == peer.listener_name:
            advertised = services.node.endpoint(peer)
        yield listener if advertised is None else Listener(listener.name, advertised.host, advertised.port)


def _config(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    definition = entry.definition
    return DescribeConfigsResourceResult(
        name=definition.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        config_type=definition.type,
        documentation=definition.documentation if request.include_documentation else None,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if request.include_synonyms else ())
        ],
    )


API = Api(32, "DescribeConfigs", 1, 4, DescribeConfigsRequest, DescribeConfigsResponse, handle)
