"""Consumer groups, their members and offsets."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio

from kafscale.client.client import Client
from kafscale.client.retrying import retried
from kafscale.errors import DecodeError, KafkaError
from kafscale.login.failures import check, failure
from kafscale.wire import codec, error_codes
from kafscale.wire.error_codes import GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP
from kafscale.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerProtocolAssignment,
)
from kafscale.wire.messages.consumer_groups import DescribedConsumer as ConsumerMember
from kafscale.wire.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

DEAD = "Dead"  # what Kafka calls a group that it does not know
CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"  # the types of groups
NOT_TOLD = -(2**31)  # in place of authorized operations


@attrs.frozen(order=True)
class TopicPartition:
    topic: str
    partition: int


@attrs.frozen
class GroupMember:
    """One member, without partitions if it does not speak the consumer protocol."""

    member_id: str
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]


@attrs.frozen(kw_only=True)
class GroupDescription:
    state: str
    type: str
    members: tuple[GroupMember, ...]
    operations: int = NOT_TOLD  # the allowed ones, a bit field

    @property
    def owners(self) -> dict[TopicPartition, GroupMember]:
        return {partition: member for member in self.members for partition in member.partitions}


@retried
async def list_groups(client: Client) -> list[ListedGroup]:
    """List the groups of all brokers by name. Raises KafkaError, BrokerUnavailable."""
    await client.metadata([])
    groups = []
    for connection in await client.all_connections():
        response = await connection.request(ListGroupsRequest(), ListGroupsResponse)
        check(response.error_code, f"groups of {connection.address}")
        groups += response.groups
    return sorted(groups, key=lambda group: group.group_id)


@retried
async def describe_group(client: Client, group: str) -> GroupDescription:
    """Return state and members, of either protocol. Raises KafkaError (GROUP_ID_NOT_FOUND too), BrokerUnavailable."""
    connection = await client.coordinator(group)
    try:
        answer = await connection.request(
            ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=True),
            ConsumerGroupDescribeResponse,
        )
    except KafkaError as exc:
        if exc.code != error_codes.UNSUPPORTED_VERSION:  # of a broker that does not know such groups
            raise
    else:
        (found,) = answer.groups
        if found.error_code != error_codes.GROUP_ID_NOT_FOUND:
            check(found.error_code, f"group '{group}'")
            members = tuple(map(_consumer_member, found.members))
            return GroupDescription(
                state=found.group_state, type=CONSUMER, members=members, operations=found.authorized_operations
            )
    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=True)
    response = await connection.request(request, DescribeGroupsResponse)
    described = response.groups[0]
    check(described.error_code, f"group '{group}'")
    if described.group_state == DEAD:
        check(error_codes.GROUP_ID_NOT_FOUND, f"group '{group}'")
    members = tuple(map(_classic_member, described.members))
    return GroupDescription(
        state=described.group_state, type=CLASSIC, members=members, operations=described.authorized_operations
    )


def _consumer_member(member: ConsumerMember) -> GroupMember:
    partitions = tuple(
        TopicPartition(topic.topic_name, partition)
        for topic in member.assignment.topic_partitions
        for partition in topic.partitions
    )
    return GroupMember(member.member_id, member.client_id, member.client_host, partitions)


def _classic_member(member: DescribedGroupMember) -> GroupMember:
    partitions = tuple(
        TopicPartition(topic.topic, partition)
        for topic in _assignment(member.member_assignment).assigned_partitions
        for partition in topic.partitions
    )
    return GroupMember(member.member_id, member.client_id, member.client_host, partitions)


@retried
async def committed_offsets(client: Client, group: str) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group. Raises KafkaError, BrokerUnavailable."""
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
        for partition in topic.partitions:
            check(partition.error_code, f"offset of group '{group}' for '{topic.name}' {partition.partition_index}")
            if partition.committed_offset >= 0:
                offsets[TopicPartition(topic.name, partition.partition_index)] = partition.committed_offset
    return dict(sorted(offsets.items()))


@retried
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
        for answer in topic.partitions:
            check(answer.error_code, f"offset of group '{group}' for '{topic.name}' {answer.partition_index}")


@retried
async def delete_group(client: Client, group: str) -> None:
    """Delete a group without members, and its offsets. Raises KafkaError, BrokerUnavailable."""
    connection = await client.coordinator(group)
    response = await connection.request(DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse)
    for result in response.results:
        check(result.error_code, f"group '{group}'")


def _assignment(data: bytes) -> ConsumerProtocolAssignment:
    version = min(int.from_bytes(data[:2], "big"), ConsumerProtocolAssignment.MAX_VERSION)
    try:
        return codec.decoder(ConsumerProtocolAssignment, version)(memoryview(data), 2)[0]
    except DecodeError:
        return ConsumerProtocolAssignment()


COMMIT_INTERVAL_SECONDS = 5.0  # Kafka's consumer: auto.commit.interval.ms


@attrs.define(eq=False, kw_only=True, repr=False)
class GroupReader:
    """Reads one topic from a group's committed offsets, without joining. Only offsets of records that `used` names are
    committed, so a failure repeats records and loses none. Call `commit` at the end.
    """

    client: Client
    group: str
    topic: str
    _committed: dict[int, int] = attrs.field(factory=dict, init=False)
    _used: dict[int, int] = attrs.field(factory=dict, init=False)
    _commit_at: float = attrs.field(default=0.0, init=False)

    async def positions(
        self, otherwise: Mapping[int, int], *, least: Mapping[int, int], most: Mapping[int, int]
    ) -> dict[int, int]:
        """Return each committed offset between the log's ends, `least` and `most`, else that of `otherwise`. Raises
        KafkaError (NON_EMPTY_GROUP for a group with members), BrokerUnavailable.
        """
        await self._check_no_members()
        committed = await committed_offsets(self.client, self.group)
        found = {place.partition: offset for place, offset in committed.items() if place.topic == self.topic}
        self._committed = {partition: found[partition] for partition in otherwise if partition in found}
        self._used = {
            partition: self._committed[partition]
            if least[partition] <= self._committed.get(partition, -1) <= most[partition]
            else fallback
            for partition, fallback in otherwise.items()
        }
        self._commit_at = trio.current_time() + COMMIT_INTERVAL_SECONDS
        return dict(self._used)

    async def _check_no_members(self) -> None:
        try:
            described = await describe_group(self.client, self.group)
        except KafkaError as exc:
            if exc.code != GROUP_ID_NOT_FOUND:
                raise
            return
        if described.members:
            raise failure(NON_EMPTY_GROUP, f"group '{self.group}'", f"members: {len(described.members)}")

    async def used(self, positions: Mapping[int, int]) -> None:
        """Note that all records below these offsets were used, and commit now and then. Raises as `commit`."""
        self._used.update(positions)
        if trio.current_time() >= self._commit_at:
            await self.commit()

    async def commit(self) -> None:
        """Commit the moved offsets. Raises KafkaError (UNKNOWN_MEMBER_ID if the group has members now)."""
        self._commit_at = trio.current_time() + COMMIT_INTERVAL_SECONDS
        news = {
            partition: offset for partition, offset in self._used.items() if self._committed.get(partition) != offset
        }
        if news:
            offsets = {TopicPartition(self.topic, partition): offset for partition, offset in news.items()}
            await commit_offsets(self.client, self.group, offsets)
            self._committed.update(news)
