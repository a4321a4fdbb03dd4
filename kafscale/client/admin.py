"""Topics and their configs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from kafscale.client.client import Client
from kafscale.login.failures import check
from kafscale.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from kafscale.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    MetadataResponseTopic,
)

TIMEOUT_MS = 30_000
TOPIC_RESOURCE = 2
BROKER_DEFAULT = -1
SET, DELETE = 0, 1


@attrs.frozen(kw_only=True)
class TopicToCreate:
    """A topic to create; -1 leaves a number to the broker."""

    name: str
    partition_count: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = attrs.field(factory=dict)


async def list_topics(client: Client) -> list[MetadataResponseTopic]:
    """List the topics by name. Raises KafkaError, BrokerUnavailable."""
    topics = (await client.metadata()).topics
    return sorted(topics, key=lambda topic: topic.name or "")


async def describe_topics(client: Client, names: Iterable[str]) -> list[MetadataResponseTopic]:
    """Return topics in the order of these names. Raises KafkaError for the first unknown one."""
    topics = (await client.metadata(names)).topics
    for topic in topics:
        check(topic.error_code, f"topic '{topic.name}'")
    return topics


async def create_topic(client: Client, new: TopicToCreate, *, validate_only: bool = False) -> None:
    """Create a topic. Raises KafkaError, BrokerUnavailable."""
    topic = CreatableTopic(
        name=new.name,
        num_partitions=new.partition_count,
        replication_factor=new.replication_factor,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in new.configs.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=validate_only)
    for result in (await client.request(request, CreateTopicsResponse)).topics:
        check(result.error_code, f"topic '{result.name}'", result.error_message)


async def delete_topic(client: Client, name: str) -> None:
    """Delete a topic. Raises KafkaError, BrokerUnavailable."""
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=TIMEOUT_MS)
    for result in (await client.request(request, DeleteTopicsResponse)).responses:
        check(result.error_code, f"topic '{name}'", result.error_message)
    client.forget(name)


async def add_partitions(client: Client, name: str, partition_count: int) -> None:
    """Raise the number of partitions. Raises KafkaError, BrokerUnavailable."""
    topic = CreatePartitionsTopic(name=name, count=partition_count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
    for result in (await client.request(request, CreatePartitionsResponse)).results:
        check(result.error_code, f"topic '{name}'", result.error_message)
    client.forget(name)


async def topic_configs(
    client: Client, name: str, *, with_documentation: bool = False
) -> list[DescribeConfigsResourceResult]:
    """Return the configs of a topic, with their sources. Raises KafkaError, BrokerUnavailable.

    With `with_documentation`, also their texts and the values of further sources.
    """
    resource = DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
    return await configs_of(client, resource, f"topic '{name}'", with_documentation=with_documentation)


async def configs_of(
    client: Client, resource: DescribeConfigsResource, what: str, *, with_documentation: bool = False
) -> list[DescribeConfigsResourceResult]:
    """Return the configs of one resource; `what` names it in errors. Raises KafkaError, BrokerUnavailable."""
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=with_documentation, include_documentation=with_documentation
    )
    response = await client.request(request, DescribeConfigsResponse)
    for result in response.results:
        check(result.error_code, f"configs of {what}", result.error_message)
    return [config for result in response.results for config in result.configs]


async def alter_topic_configs(client: Client, name: str, changes: Mapping[str, str | None]) -> None:
    """Set configs of a topic; None restores a default. Raises KafkaError, BrokerUnavailable."""
    configs = [
        IncrementalAlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
        for key, value in changes.items()
    ]
    resource = IncrementalAlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    for result in (await client.request(request, IncrementalAlterConfigsResponse)).responses:
        check(result.error_code, f"configs of topic '{name}'", result.error_message)
