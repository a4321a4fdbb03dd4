"""Have partitions led by others (KIP-460)."""

from __future__ import annotations

from collections.abc import Collection

from kafscale.client.admin import TIMEOUT_MS
from kafscale.client.client import Client
from kafscale.client.reassignments import At
from kafscale.login.failures import check
from kafscale.wire.error_codes import ELECTION_NOT_NEEDED, REQUEST_TIMED_OUT
from kafscale.wire.messages.replicas import ElectedTopicPartitions, ElectLeadersRequest, ElectLeadersResponse

UNCLEAN = 1
_FINE = frozenset({ELECTION_NOT_NEEDED, REQUEST_TIMED_OUT})  # it is led already, or it is decided that it will be


async def elect_any_leader(client: Client, partitions: Collection[At]) -> None:
    """Have partitions that nobody leads led by any broker, though that may lose records.

    Returns when that is decided at least. Raises KafkaError, BrokerUnavailable.
    """
    topics: dict[str, ElectedTopicPartitions] = {}
    for name, index in partitions:
        topics.setdefault(name, ElectedTopicPartitions(topic=name)).partitions.append(index)
    request = ElectLeadersRequest(
        election_type=UNCLEAN, topic_partitions=list(topics.values()), timeout_ms=TIMEOUT_MS // 3
    )
    response = await client.request(request, ElectLeadersResponse)
    check(response.error_code, "elections")
    for topic in response.replica_election_results:
        for each in topic.partition_result:
            if each.error_code not in _FINE:
                check(each.error_code, f"{topic.topic}-{each.partition_id}", each.error_message)
