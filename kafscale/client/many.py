"""Facts about many topics and groups at once, for lists.

Requests go to all brokers before the first answer is waited for. What fails is left out: a list shows what it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import attrs

from kafscale.client.brokers import At
from kafscale.client.client import GROUP, Client
from kafscale.client.connection import Connection, Reply
from kafscale.client.consumer import REMOTE_TIMEOUT_MS
from kafscale.client.groups import CLASSIC, CONSUMER
from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, KafkaError
from kafscale.wire.error_codes import NONE
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from kafscale.wire.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse
from kafscale.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from kafscale.wire.messages.records import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kafscale.wire.messages.replicas import DescribableLogDirTopic, DescribeLogDirsRequest, DescribeLogDirsResponse
from kafscale.wire.messages.topics import MetadataResponseTopic

R = TypeVar("R")
PARTITIONS_OF_REQUEST_MAX_COUNT = 5_000
GROUPS_OF_REQUEST_MAX_COUNT = 100
FIRST_WITH_GROUPS = 8  # version of OffsetFetch


async def offsets_of_topics(client: Client, topics: Iterable[MetadataResponseTopic], timestamp: int) -> dict[At, int]:
    """Return an end of each partition: `timestamp` is LATEST or EARLIEST of `kafscale.client.consumer`."""
    by_leader: dict[int, list[At]] = {}
    for topic in topics:
        for partition in topic.partitions:
            if partition.leader_id >= 0:
                by_leader.setdefault(partition.leader_id, []).append((topic.name or "", partition.partition_index))
    asked = [
        (leader, offsets_request(places[start : start + PARTITIONS_OF_REQUEST_MAX_COUNT], timestamp))
        for leader, places in by_leader.items()
        for start in range(0, len(places), PARTITIONS_OF_REQUEST_MAX_COUNT)
    ]
    return {
        (topic.name, partition.partition_index): partition.offset
        async for response in _answers(client, asked, ListOffsetsResponse)
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code == NONE and partition.offset >= 0
    }


def offsets_request(places: Iterable[At], timestamp: int, *, timeout_ms: int = REMOTE_TIMEOUT_MS) -> ListOffsetsRequest:
    """Return the request for an end of each partition."""
    topics: dict[str, ListOffsetsTopic] = {}
    for name, index in places:
        partition = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        topics.setdefault(name, ListOffsetsTopic(name=name)).partitions.append(partition)
    return ListOffsetsRequest(topics=list(topics.values()), timeout_ms=timeout_ms)


@attrs.frozen(kw_only=True)
class LogSizes:
    """Bytes of each partition, and the directories that have them: of KafScale the URL of the store."""

    bytes: Mapping[At, int]
    directories: frozenset[str]


async def log_sizes(client: Client, topics: Collection[MetadataResponseTopic] | None = None) -> LogSizes:
    """Return the sizes of some topics, or of all. A partition with several replicas has its largest one's."""
    wanted = None
    if topics is not None:
        wanted = [
            DescribableLogDirTopic(
                topic=topic.name or "", partitions=[partition.partition_index for partition in topic.partitions]
            )
            for topic in topics
        ]
    sizes: dict[At, int] = {}
    directories = set()
    asked = [(node_id, DescribeLogDirsRequest(topics=wanted)) for node_id in client.node_ids]
    async for response in _answers(client, asked, DescribeLogDirsResponse):
        for directory in response.results:
            directories.add(directory.log_dir)
            for topic in directory.topics:
                for partition in topic.partitions:
                    at = topic.name, partition.partition_index
                    sizes[at] = max(sizes.get(at, 0), partition.partition_size)
    return LogSizes(bytes=sizes, directories=frozenset(directories))


async def offsets_of_groups(client: Client, group_ids: Sequence[str]) -> dict[str, dict[At, int]]:
    """Return the committed offsets of groups, of brokers that take many groups in a request (Kafka 3.0)."""
    committed: dict[str, dict[At, int]] = {}
    for start in range(0, len(group_ids), GROUPS_OF_REQUEST_MAX_COUNT):
        coordinators = await _coordinators(client, group_ids[start : start + GROUPS_OF_REQUEST_MAX_COUNT])
        asked = [(address, _fetch_offsets(groups)) for address, groups in coordinators.items()]
        async for response in _answers(client, asked, OffsetFetchResponse):
            committed |= {group.group_id: _committed(group) for group in response.groups if group.error_code == NONE}
    return committed


async def _coordinators(client: Client, group_ids: Sequence[str]) -> dict[Address, list[str]]:
    connection = await client.connection_to(client.bootstrap)
    if connection.call(OffsetFetchRequest, OffsetFetchResponse).version < FIRST_WITH_GROUPS:
        return {}
    found = await connection.request(
        FindCoordinatorRequest(key_type=GROUP, coordinator_keys=list(group_ids)), FindCoordinatorResponse
    )
    coordinators: dict[Address, list[str]] = {}
    for coordinator in found.coordinators:
        if coordinator.error_code == NONE:
            coordinators.setdefault(Address(coordinator.host, coordinator.port), []).append(coordinator.key)
    return coordinators


async def member_counts(client: Client, types: Mapping[str, str]) -> dict[str, int]:
    """Return the number of members of each classic and consumer group, by its type, where the broker tells it."""
    counts: dict[str, int] = {}
    coordinators = await _coordinators(client, list(types))
    classic = [
        (address, DescribeGroupsRequest(groups=[group for group in groups if types[group] == CLASSIC]))
        for address, groups in coordinators.items()
    ]
    async for response in _answers(client, classic, DescribeGroupsResponse):
        counts |= {group.group_id: len(group.members) for group in response.groups if group.error_code == NONE}
    consumer = [
        (address, ConsumerGroupDescribeRequest(group_ids=[group for group in groups if types[group] == CONSUMER]))
        for address, groups in coordinators.items()
        if CONSUMER in {types[group] for group in groups}
    ]
    async for answer in _answers(client, consumer, ConsumerGroupDescribeResponse):
        counts |= {group.group_id: len(group.members) for group in answer.groups if group.error_code == NONE}
    return counts


def _fetch_offsets(group_ids: Sequence[str]) -> OffsetFetchRequest:
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in group_ids])


def _committed(group: OffsetFetchResponseGroup) -> dict[At, int]:
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in group.topics
        for partition in topic.partitions
        if partition.error_code == NONE and partition.committed_offset >= 0
    }


async def _answers(
    client: Client, asked: Iterable[tuple[int | Address, object]], response_class: type[R]
) -> AsyncIterator[R]:
    """Send each request to its broker, a node's id or an address; yield the answers of those that answer."""
    replies: list[Reply[R]] = []
    for broker, request in asked:
        try:
            connection: Connection
            connection = await (client.connection_to(broker) if isinstance(broker, Address) else client.node(broker))
            replies.append(await connection.send(request, response_class))
        except (BrokerUnavailable, KafkaError):
            continue
    for reply in replies:
        try:
            yield await reply.wait()
        except (BrokerUnavailable, KafkaError):
            continue
