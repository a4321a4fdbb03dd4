"""The brokers of a cluster, their configs and partitions, reassignments, elections and balance."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from kafscale.client.admin import TIMEOUT_MS, configs_of, list_topics
from kafscale.client.client import Client
from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, KafkaError
from kafscale.login.failures import check, failure
from kafscale.wire.error_codes import ELECTION_NOT_NEEDED, NO_REASSIGNMENT_IN_PROGRESS, NONE, REQUEST_TIMED_OUT
from kafscale.wire.messages.brokers import UnregisterBrokerRequest, UnregisterBrokerResponse
from kafscale.wire.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
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
from kafscale.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    BalancedBroker,
    BalanceRequest,
    BalanceResponse,
    ElectedTopicPartitions,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

BROKER_RESOURCE = 4
SET = 0
DRAINING, DURABILITY, STATE, VERSION = (f"kafscale.{name}" for name in ("draining", "durability", "state", "version"))
NO_BROKER = -1


@attrs.frozen(kw_only=True)
class DescribedBroker:
    """One broker, at the listener of the client's connection. A fenced one does not serve."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool
    is_controller: bool


@attrs.frozen(kw_only=True)
class PartitionPlace:
    """A partition and its leader. Without one (NO_BROKER), `waits_for` is the last leader, if known."""

    topic: str
    partition: int
    leader: int
    waits_for: int = NO_BROKER
    replicas: Sequence[int] = ()

    @property
    def at(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def broker_id(self) -> int:
        return self.waits_for if self.leader == NO_BROKER else self.leader


async def list_brokers(client: Client) -> list[DescribedBroker]:
    """List the known brokers by id. Raises KafkaError, BrokerUnavailable."""
    response = await client.request(DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse)
    check(response.error_code, "the cluster", response.error_message)
    return [
        DescribedBroker(
            broker_id=broker.broker_id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
            is_fenced=broker.is_fenced,
            is_controller=broker.broker_id == response.controller_id,
        )
        for broker in sorted(response.brokers, key=lambda broker: broker.broker_id)
    ]


async def cluster_operations(client: Client) -> int:
    """Return what the user may do with the cluster, a bit field of operations. Raises KafkaError, BrokerUnavailable."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = await client.request(request, DescribeClusterResponse)
    check(response.error_code, "the cluster", response.error_message)
    return response.cluster_authorized_operations


async def described_configs(client: Client, broker_id: int) -> list[DescribeConfigsResourceResult]:
    """Return the configs of one broker by name, with their sources. Raises KafkaError, BrokerUnavailable."""
    resource = DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(broker_id), configuration_keys=None
    )
    return sorted(await configs_of(client, resource, f"broker {broker_id}"), key=lambda config: config.name)


async def broker_configs(client: Client, broker_ids: Collection[int]) -> Mapping[int, Mapping[str, str | None]]:
    """Return the configs of each broker that the asked one knows. Raises KafkaError, BrokerUnavailable."""
    resources = [
        DescribeConfigsResource(resource_type=BROKER_RESOURCE, resource_name=str(broker_id), configuration_keys=None)
        for broker_id in broker_ids
    ]
    response = await client.request(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
    return {
        int(result.resource_name): {config.name: config.value for config in result.configs}
        for result in response.results
        if result.error_code == NONE
    }


async def set_draining(client: Client, broker_id: int, is_draining: bool) -> None:
    """Set a broker's draining flag. Raises KafkaError, BrokerUnavailable."""
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


async def list_places(client: Client, topics: Collection[str] = ()) -> list[PartitionPlace]:
    """List the partitions of all or of some topics, in order. Raises KafkaError, BrokerUnavailable."""
    return [
        PartitionPlace(
            topic=topic.name or "",
            partition=partition.partition_index,
            leader=partition.leader_id,
            waits_for=next(iter(partition.offline_replicas), NO_BROKER),
            replicas=partition.replica_nodes,
        )
        for topic in await list_topics(client)
        if not topics or topic.name in topics
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
    ]


def known(bytes_per_second: int) -> int | None:
    return None if bytes_per_second < 0 else bytes_per_second


@attrs.frozen(kw_only=True)
class Balance:
    """Loads by broker id, the busiest partitions, and moves to even it; `is_waiting` while loads are measured."""

    is_waiting: bool
    moving_count: int
    brokers: Mapping[int, BalancedBroker]
    busiest: Mapping[At, int]
    moves: Mapping[At, int]


async def find_balance(client: Client, released: Collection[str] | None = ()) -> Balance | None:
    """Ask for the balance as if these topics (None: all) were not assigned by hand; None if no controller tells it."""
    controller = next((broker for broker in await list_brokers(client) if broker.is_controller), None)
    if controller is None:
        return None
    request = BalanceRequest(
        timeout_ms=TIMEOUT_MS,
        wants_balance=True,
        releases_all=released is None,
        released=sorted(released or ()),
    )
    try:
        connection = await client.connection_to(Address(controller.host, controller.port))
        response = await connection.request(request, BalanceResponse)
    except BrokerUnavailable:
        return None
    check(response.error_code, "balance", response.error_message)
    told = response.balance
    if told is None:
        return None
    return Balance(
        is_waiting=told.is_waiting,
        moving_count=sum(len(topic.partitions) for topic in response.topics),
        brokers={broker.broker_id: broker for broker in told.brokers},
        busiest={(busy.topic, busy.partition_index): busy.bytes_per_second for busy in told.busiest},
        moves={(move.topic, move.partition_index): move.target for move in told.moves},
    )


At = tuple[str, int]  # a topic's name and a partition


async def list_reassignments(client: Client) -> Mapping[At, int]:
    """Return the moving partitions and their targets. Raises KafkaError, BrokerUnavailable."""
    response = await client.request(
        ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS), ListPartitionReassignmentsResponse
    )
    check(response.error_code, "reassignments", response.error_message)
    return {
        (topic.name, partition.partition_index): partition.replicas[0]
        for topic in response.topics
        for partition in topic.partitions
        if partition.replicas
    }


async def reassign(client: Client, wanted: Mapping[At, Sequence[int] | None]) -> Mapping[At, KafkaError]:
    """Decide to assign partitions to brokers, or with None cancel that; return the refused. Raises KafkaError."""
    topics: dict[str, ReassignableTopic] = {}
    for (name, index), replicas in wanted.items():
        topic = topics.setdefault(name, ReassignableTopic(name=name))
        partition = ReassignablePartition(partition_index=index, replicas=None if replicas is None else list(replicas))
        topic.partitions.append(partition)
    request = AlterPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=list(topics.values()))
    response = await client.request(request, AlterPartitionReassignmentsResponse)
    check(response.error_code, "reassignments", response.error_message)
    return {
        (topic.name, partition.partition_index): failure(
            partition.error_code, f"{topic.name}-{partition.partition_index}", partition.error_message
        )
        for topic in response.responses
        for partition in topic.partitions
        if partition.error_code != NONE
    }


async def release_moved(client: Client, places: Collection[PartitionPlace]) -> int:
    """Undo moves by hand, of partitions that don't move just now; return how many. Raises KafkaError."""
    moving = await list_reassignments(client)
    wanted: dict[At, None] = {place.at: None for place in places if place.at not in moving}
    refused = await reassign(client, wanted)
    for error in refused.values():
        if error.code != NO_REASSIGNMENT_IN_PROGRESS:  # the answer for a partition that was not moved by hand
            raise error
    return len(wanted) - len(refused)


UNCLEAN = 1
_FINE = frozenset({ELECTION_NOT_NEEDED, REQUEST_TIMED_OUT})  # it is led already, or it is decided that it will be


async def elect_any_leader(client: Client, partitions: Collection[At]) -> None:
    """Decide that any broker may lead partitions without a leader, which may lose records. Raises KafkaError."""
    topics: dict[str, ElectedTopicPartitions] = {}
    for name, index in partitions:
        topics.setdefault(name, ElectedTopicPartitions(topic=name)).partitions.append(index)
    request = ElectLeadersRequest(
        election_type=UNCLEAN, topic_partitions=list(topics.values()), timeout_ms=TIMEOUT_MS // 3
    )
    response = await client.request(request, ElectLeadersResponse)
    check(response.error_code, "elections")
    for topic in response.replica_election_results:
        for partition in topic.partition_result:
            if partition.error_code not in _FINE:
                check(partition.error_code, f"{topic.topic}-{partition.partition_id}", partition.error_message)
