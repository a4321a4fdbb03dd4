"""Consumer groups: who is in them, where they have got to, and moving them there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from kafscale.client.client import Client
from kafscale.client.failures import check
from kafscale.errors import DecodeError
from kafscale.wire import codec, error_codes
from kafscale.wire.messages.consumer_protocol import ConsumerProtocolAssignment
from kafscale.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kafscale.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kafscale.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kafscale.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kafscale.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse

DEAD = "Dead"  # what Kafka calls a group that it does not know


@attrs.frozen(order=True)
class TopicPartition:
    """One partition of one topic."""

    topic: str
    partition: int


async def list_groups(client: Client) -> list[ListedGroup]:
    """The groups of all brokers, by name. Raises KafkaError, BrokerUnavailable."""
    await client.metadata([])
    groups = []
    for connection in await client.all_connections():
        response = await connection.request(ListGroupsRequest(), ListGroupsResponse)
        check(response.error_code, f"groups of {connection.address}")
        groups += response.groups
    return sorted(groups, key=lambda group: group.group_id)


async def describe_group(client: Client, group: str) -> DescribedGroup:
    """State and members. Raises KafkaError (GROUP_ID_NOT_FOUND too), BrokerUnavailable."""
    connection = await client.coordinator(group)
    response = await connection.request(DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse)
    described = response.groups[0]
    check(described.error_code, f"group '{group}'")
    if described.group_state == DEAD:
        check(error_codes.GROUP_ID_NOT_FOUND, f"group '{group}'")
    return described


async def committed_offsets(client: Client, group: str) -> dict[TopicPartition, int]:
    """Every committed offset of a group. Raises KafkaError, BrokerUnavailable."""
    connection = await client.coordinator(group)
    request = OffsetFetchRequest(
        group_id=group, topics=None, groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]
    )
    response = await connection.request(request, OffsetFetchResponse)
    # Version 8 answers in `groups`, earlier ones outside of it, with the same fields.
    found = response.groups[0] if response.groups else response
    check(found.error_code, f"offsets of group '{group}'")
    offsets = {}
    for topic in found.topics:
        for each in topic.partitions:
            check(each.error_code, f"offset of group '{group}' for '{topic.name}' {each.partition_index}")
            if each.committed_offset >= 0:
                offsets[TopicPartition(topic.name, each.partition_index)] = each.committed_offset
    return dict(sorted(offsets.items()))


async def commit_offsets(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit as a simple consumer, which a group with members refuses. Raises KafkaError, BrokerUnavailable."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for position, offset in offsets.items():
        partition = OffsetCommitRequestPartition(partition_index=position.partition, committed_offset=offset)
        topics.setdefault(position.topic, []).append(partition)
    request = OffsetCommitRequest(
        group_id=group,
        member_id="",
        topics=[OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
    )
    response = await (await client.coordinator(group)).request(request, OffsetCommitResponse)
    for topic in response.topics:
        for each in topic.partitions:
            check(each.error_code, f"offset of group '{group}' for '{topic.name}' {each.partition_index}")


async def delete_group(client: Client, group: str) -> None:
    """Delete a group without members, and its offsets. Raises KafkaError, BrokerUnavailable."""
    connection = await client.coordinator(group)
    response = await connection.request(DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse)
    for result in response.results:
        check(result.error_code, f"group '{group}'")


def assigned_partitions(members: Iterable[DescribedGroupMember]) -> dict[TopicPartition, DescribedGroupMember]:
    """Return which member has which partition. Members that do not speak the consumer protocol are left out."""
    owners = {}
    for member in members:
        for topic in _assignment(member.member_assignment).assigned_partitions:
            for partition in topic.partitions:
                owners[TopicPartition(topic.topic, partition)] = member
    return owners


def _assignment(data: bytes) -> ConsumerProtocolAssignment:
    version = min(int.from_bytes(data[:2], "big"), ConsumerProtocolAssignment.MAX_VERSION)
    try:
        return codec.decoder(ConsumerProtocolAssignment, version)(memoryview(data), 2)[0]
    except DecodeError:
        return ConsumerProtocolAssignment()
