"""The brokers of a cluster: which there are, whether they are drained, and which partitions each leads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from kafscale.client.admin import list_topics
from kafscale.client.client import Client
from kafscale.login.failures import check
from kafscale.wire.error_codes import NONE
from kafscale.wire.messages.brokers import UnregisterBrokerRequest, UnregisterBrokerResponse
from kafscale.wire.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from kafscale.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)

BROKER_RESOURCE = 4
SET = 0
DRAINING, DURABILITY, STATE, VERSION = (f"kafscale.{each}" for each in ("draining", "durability", "state", "version"))
NOBODY = -1


@attrs.frozen(kw_only=True)
class Broker:
    """One broker, by the listener that the client came by. A fenced one serves nobody just now."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool
    is_controller: bool


@attrs.frozen(kw_only=True)
class Place:
    """A partition and who leads it; where `leader` is NOBODY, `waits_for` is the broker that led it, if it is known."""

    topic: str
    partition: int
    leader: int
    waits_for: int = NOBODY
    replicas: Sequence[int] = ()

    @property
    def at(self) -> tuple[str, int]:
        """Return its topic and number, by which reassignments have it."""
        return self.topic, self.partition

    @property
    def broker_id(self) -> int:
        """Return whose it is: who leads it, or whom it waits for."""
        return self.waits_for if self.leader == NOBODY else self.leader


async def list_brokers(client: Client) -> list[Broker]:
    """All brokers that are known, by id. Raises KafkaError, BrokerUnavailable."""
    response = await client.request(DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse)
    check(response.error_code, "the cluster", response.error_message)
    return [
        Broker(
            broker_id=each.broker_id,
            host=each.host,
            port=each.port,
            rack=each.rack,
            is_fenced=each.is_fenced,
            is_controller=each.broker_id == response.controller_id,
        )
        for each in sorted(response.brokers, key=lambda each: each.broker_id)
    ]


async def broker_configs(client: Client, broker_ids: Collection[int]) -> Mapping[int, Mapping[str, str | None]]:
    """Return the configs of each broker, as far as the one that is asked knows them.

    Raises KafkaError, BrokerUnavailable.
    """
    resources = [
        DescribeConfigsResource(resource_type=BROKER_RESOURCE, resource_name=str(each), configuration_keys=None)
        for each in broker_ids
    ]
    response = await client.request(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
    return {
        int(result.resource_name): {config.name: config.value for config in result.configs}
        for result in response.results
        if result.error_code == NONE
    }


async def set_draining(client: Client, broker_id: int, is_draining: bool) -> None:
    """Say whether a broker is to lead nothing. Raises KafkaError, BrokerUnavailable."""
    config = IncrementalAlterableConfig(name=DRAINING, config_operation=SET, value=str(is_draining).lower())
    resource = IncrementalAlterConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(broker_id), configs=[config]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    for result in (await client.request(request, IncrementalAlterConfigsResponse)).responses:
        check(result.error_code, f"broker {broker_id}", result.error_message)


async def unregister_broker(client: Client, broker_id: int) -> None:
    """Forget a broker that does not come back. Raises KafkaError, BrokerUnavailable."""
    response = await client.request(UnregisterBrokerRequest(broker_id=broker_id), UnregisterBrokerResponse)
    check(response.error_code, f"broker {broker_id}", response.error_message)


async def list_places(client: Client, topics: Collection[str] = ()) -> list[Place]:
    """All partitions, or those of some topics, in order. Raises KafkaError, BrokerUnavailable."""
    return [
        Place(
            topic=topic.name or "",
            partition=each.partition_index,
            leader=each.leader_id,
            waits_for=next(iter(each.offline_replicas), NOBODY),
            replicas=each.replica_nodes,
        )
        for topic in await list_topics(client)
        if not topics or topic.name in topics
        for each in sorted(topic.partitions, key=lambda each: each.partition_index)
    ]
