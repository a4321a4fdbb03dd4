"""What lists leave out of answers that name more than was asked for: groups, transactions, topics, offsets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio.testing

from kafscale.client.connection import Connection
from kafscale.cluster.registries.topics import NewTopic
from kafscale.security.acls import AclOperation, ResourceType
from kafscale.wire.error_codes import NONE
from kafscale.wire.messages.groups import ListGroupsRequest, ListGroupsResponse
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from kafscale.wire.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tests.api.principals import acl_settings, binding, connect_as, grant
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts
from tests.devtools.fakes.transactional_producer import Producer

TOPICS = ("mine", "theirs")
IDS = ("my-work", "their-work")  # of groups, and of transactions


@pytest.fixture
async def running(autojump_clock: trio.testing.MockClock) -> AsyncIterator[MemoryBroker]:
    """A broker on which root has a group and an open transaction of each id, both with both topics."""
    async with memory_broker(memory_parts(), acl_settings()) as running:
        await running.broker.services.topics.create([NewTopic(name=name) for name in TOPICS])
        root = await connect_as(running, "root")
        for each in IDS:
            producer = Producer(root, transactional_id=each)
            assert await producer.init() == NONE
            for topic in TOPICS:
                assert await producer.add(0, topic=topic) == [NONE]
            assert await commit(root, each) == {NONE}
        yield running


@pytest.fixture
async def alice(running: MemoryBroker) -> Connection:
    """Somebody who may see one of each."""
    describe = AclOperation.DESCRIBE
    await grant(
        running.broker,
        binding("alice", describe, ResourceType.TOPIC, "mine"),
        binding("alice", describe, ResourceType.GROUP, "my-work"),
        binding("alice", describe, ResourceType.TRANSACTIONAL_ID, "my-work"),
    )
    return await connect_as(running, "alice")


async def commit(client: Connection, group_id: str) -> set[int]:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topics = [OffsetCommitRequestTopic(name=name, partitions=[partition]) for name in TOPICS]
    answer = await client.request(
        OffsetCommitRequest(group_id=group_id, member_id="", topics=topics), OffsetCommitResponse
    )
    return {partition.error_code for topic in answer.topics for partition in topic.partitions}


async def groups(client: Connection) -> set[str]:
    return {each.group_id for each in (await client.request(ListGroupsRequest(), ListGroupsResponse)).groups}


async def transactions(client: Connection) -> set[str]:
    answer = await client.request(ListTransactionsRequest(), ListTransactionsResponse)
    return {each.transactional_id for each in answer.transaction_states}


async def test_list_groups_leaves_out_groups_the_user_may_not_describe(
    running: MemoryBroker, alice: Connection
) -> None:
    assert await groups(await connect_as(running, "root")) == set(IDS)
    assert await groups(alice) == {"my-work"}
    cluster = binding("alice", AclOperation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster")
    await grant(running.broker, cluster)
    assert await groups(alice) == set(IDS)


async def test_list_transactions_leaves_out_ids_the_user_may_not_describe(
    running: MemoryBroker, alice: Connection
) -> None:
    assert await transactions(await connect_as(running, "root")) == set(IDS)
    assert await transactions(alice) == {"my-work"}


async def test_describe_transactions_leaves_out_topics_the_user_may_not_describe(
    running: MemoryBroker, alice: Connection
) -> None:
    async def seen_by(client: Connection) -> set[str]:
        request = DescribeTransactionsRequest(transactional_ids=["my-work"])
        (state,) = (await client.request(request, DescribeTransactionsResponse)).transaction_states
        assert state.error_code == NONE
        return {each.topic for each in state.topics}

    assert await seen_by(await connect_as(running, "root")) == set(TOPICS)
    assert await seen_by(alice) == {"mine"}


async def test_offset_fetch_leaves_out_topics_the_user_may_not_describe(
    running: MemoryBroker, alice: Connection
) -> None:
    async def seen_by(client: Connection) -> set[str]:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="my-work", topics=None)])
        (group,) = (await client.request(request, OffsetFetchResponse)).groups
        assert group.error_code == NONE
        return {each.name for each in group.topics}

    assert await seen_by(await connect_as(running, "root")) == set(TOPICS)
    assert await seen_by(alice) == {"mine"}
