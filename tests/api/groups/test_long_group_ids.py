"""A group's id may be as long as a string of the protocol, as in Kafka."""

from __future__ import annotations

from uuid import uuid4

import attrs
import pytest
from trio.testing import MockClock

from kafscale.cluster.registries.topics import NewTopic
from kafscale.wire import error_codes
from kafscale.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from kafscale.wire.messages.groups import JoinGroupResponse
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kafscale.wire.schema import STRING_MAX_BYTES
from tests.api.groups.test_abandoned_joins import REQUEST
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts

TOPIC = "orders"


@pytest.mark.parametrize("group_id", ["g" * 1025, "g" * STRING_MAX_BYTES, "\N{EURO SIGN}" * (STRING_MAX_BYTES // 3)])
async def test_offsets_of_a_group_with_a_long_id_are_kept(autojump_clock: MockClock, group_id: str) -> None:
    """It was refused above 1,024 characters, with INVALID_GROUP_ID."""
    parts = memory_parts()
    async with memory_broker(parts) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        client = await running.connect()
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
        request = OffsetCommitRequest(group_id=group_id, member_id="", topics=topics)
        answer = await client.request(request, OffsetCommitResponse)
        assert answer.topics[0].partitions[0].error_code == error_codes.NONE
    async with memory_broker(parts) as running:
        assert running.broker.services.groups.offsets(group_id)[TOPIC][0].offset == 7


async def test_members_of_either_protocol_join_a_group_with_a_long_id(autojump_clock: MockClock) -> None:
    async with memory_broker(memory_parts()) as running:
        client = await running.connect()
        join = attrs.evolve(REQUEST, group_id="c" * STRING_MAX_BYTES)
        assert (await client.request(join, JoinGroupResponse)).error_code == error_codes.NONE
        heartbeat = ConsumerGroupHeartbeatRequest(
            group_id="k" * STRING_MAX_BYTES,
            member_id=str(uuid4()),
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=[],
            topic_partitions=[],
        )
        assert (await client.request(heartbeat, ConsumerGroupHeartbeatResponse)).error_code == error_codes.NONE
