"""Partitions on their way to other brokers (KIP-455)."""

from __future__ import annotations

from collections.abc import Mapping

from kafscale.client.admin import TIMEOUT_MS
from kafscale.client.client import Client
from kafscale.login.failures import check
from kafscale.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def list_reassignments(client: Client) -> Mapping[tuple[str, int], int]:
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
