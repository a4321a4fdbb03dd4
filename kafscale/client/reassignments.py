"""Partitions on their way to other brokers (KIP-455)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafscale.client.admin import TIMEOUT_MS
from kafscale.client.client import Client
from kafscale.errors import KafkaError
from kafscale.login.failures import check, failure
from kafscale.wire.error_codes import NONE
from kafscale.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

At = tuple[str, int]  # a topic's name and a partition


async def list_reassignments(client: Client) -> Mapping[At, int]:
    """Return the partitions that are on their way, and to which broker. Raises KafkaError, BrokerUnavailable."""
    response = await client.request(
        ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS), ListPartitionReassignmentsResponse
    )
    check(response.error_code, "reassignments", response.error_message)
    return {
        (topic.name, each.partition_index): each.replicas[0]
        for topic in response.topics
        for each in topic.partitions
        if each.replicas
    }


async def reassign(client: Client, wanted: Mapping[At, Sequence[int] | None]) -> Mapping[At, KafkaError]:
    """Assign partitions to brokers, or with None take back what was assigned; why some could not be.

    Returns when that is decided, which is before they have moved. Raises KafkaError, BrokerUnavailable.
    """
    topics: dict[str, ReassignableTopic] = {}
    for (name, index), replicas in wanted.items():
        topic = topics.setdefault(name, ReassignableTopic(name=name))
        partition = ReassignablePartition(partition_index=index, replicas=None if replicas is None else list(replicas))
        topic.partitions.append(partition)
    request = AlterPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=list(topics.values()))
    response = await client.request(request, AlterPartitionReassignmentsResponse)
    check(response.error_code, "reassignments", response.error_message)
    return {
        (topic.name, each.partition_index): failure(
            each.error_code, f"{topic.name}-{each.partition_index}", each.error_message
        )
        for topic in response.responses
        for each in topic.partitions
        if each.error_code != NONE
    }
