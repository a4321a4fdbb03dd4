"""A whole broker starts on what a version before it has left: its groups are there, and stay there."""

from __future__ import annotations

import time

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.broker import StorageParts
from kafscale.client.connection import Connection
from kafscale.cluster.groups.former_metadata import MOVED_KEY, PREFIX
from kafscale.cluster.metadata.base import Transaction
from kafscale.config import Durability, Settings
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kafscale.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kafscale.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts, memory_settings

OFFSET = b'{"offset":%d,"leader_epoch":3,"metadata":"m","commit_timestamp_ms":1700000000000,"expire_timestamp_ms":null}'
EMPTY = b'{"generation_id":4,"protocol_type":"consumer","protocol_name":null,"leader_id":null,"state_timestamp_ms":%d}'
GROUPS = 20


def former(now_ms: int) -> dict[str, bytes]:
    """Return some groups as a version before this one had them in its metadata."""
    offsets = {f"groups/g{number}/offsets/t/0": OFFSET % number for number in range(GROUPS)}
    # it was empty a moment ago, so nothing of it expires
    return offsets | {f"groups/g{number}/group": EMPTY % now_ms for number in range(GROUPS)}


async def create_topic(client: Connection) -> None:
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    created = await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=1000), CreateTopicsResponse)
    assert created.topics[0].error_code == error_codes.NONE


async def committed(running: MemoryBroker) -> list[int]:
    client = await running.connect()
    topic = running.broker.services.topics.get("t")
    assert topic is not None
    topics = [OffsetFetchRequestTopic(name="t", topic_id=topic.topic_id, partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group_id=f"g{number}", topics=topics) for number in range(GROUPS)]
    request = OffsetFetchRequest(groups=groups)
    response = await client.request(request, OffsetFetchResponse)
    assert {group.error_code for group in response.groups} == {error_codes.NONE}
    return [group.topics[0].partitions[0].committed_offset for group in response.groups]


async def states(client: Connection) -> set[str]:
    names = [f"g{number}" for number in range(GROUPS)]
    described = await client.request(DescribeGroupsRequest(groups=names), DescribeGroupsResponse)
    return {group.group_state for group in described.groups}


async def begin(parts: StorageParts, settings: Settings) -> None:
    """Have the parts be as a version before this one leaves them: with the topic, and groups in the metadata."""
    async with memory_broker(parts, settings) as running:
        await create_topic(await running.connect())
        metadata = running.broker.services.topics.store
        await metadata.commit(Transaction(puts=former(time.time_ns() // 1_000_000), deletes=[MOVED_KEY]))


@pytest.mark.parametrize("durability", [*Durability])
async def test_groups_of_a_version_before_are_there_after_its_metadata_has_none(
    autojump_clock: MockClock, durability: Durability
) -> None:
    settings = memory_settings(durability=durability)
    parts = memory_parts()
    await begin(parts, settings)

    for _ in range(2):
        async with memory_broker(parts, settings) as running:
            assert await committed(running) == list(range(GROUPS))
            assert await states(await running.connect()) == {"Empty"}
        assert [entry.key for entry in await parts.metadata.list(PREFIX)] == [MOVED_KEY]

    bucket_only = attrs.evolve(parts, metadata=MemoryMetadataStore(), disk=MemoryDisk())
    async with memory_broker(bucket_only, settings) as running:
        assert await committed(running) == list(range(GROUPS))


async def test_a_lost_disk_right_after_the_move_takes_no_group_along(autojump_clock: MockClock) -> None:
    """In `wal` what had been in a checkpoint in the bucket was in the write-ahead log alone."""
    settings = memory_settings(durability=Durability.WAL, flush_interval_seconds=3600.0)
    parts = memory_parts()
    await begin(parts, settings)
    with trio.CancelScope() as power:
        async with memory_broker(parts, settings):
            power.cancel()
    bucket_only = attrs.evolve(parts, metadata=MemoryMetadataStore(), disk=MemoryDisk())
    async with memory_broker(bucket_only, settings) as running:
        assert await committed(running) == list(range(GROUPS))
