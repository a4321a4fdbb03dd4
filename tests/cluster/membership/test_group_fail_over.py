"""Groups whose coordinator dies: clients find the next one, which knows what was committed."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kafscale.client.connection import Connection
from kafscale.config import Durability
from kafscale.wire import error_codes
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from tests.cluster.membership.test_fail_over import MODES, Cluster, cluster, topic_of
from tests.cluster.membership.test_several import SOON_SECONDS, TOPIC, until

COORDINATOR_ERRORS = {
    error_codes.NOT_COORDINATOR,
    error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.COORDINATOR_LOAD_IN_PROGRESS,
}


@pytest.mark.parametrize("durability", MODES)
async def test_groups_find_their_offsets_at_their_next_coordinator(
    autojump_clock: MockClock, durability: Durability
) -> None:
    async with cluster(3, durability, offsets_topic_partitions_count=6) as running:
        await topic_of(running, 3)
        groups = [f"group-{number}" for number in range(6)]
        for number, group in enumerate(groups):
            assert await commit_offset(running, group, number) == error_codes.NONE
        dead = running.others(running.controller())[0]
        running.brokers[dead].kill()
        await until(lambda: len(running.state(running.controller()).live()) == 2)
        for number, group in enumerate(groups):
            with trio.fail_after(SOON_SECONDS):
                while (found := await committed_offset(running, group)) is None:
                    await trio.sleep(0.1)
            assert found == number


async def coordinator_of(running: Cluster, group: str) -> Connection:
    """Return a connection to the broker that coordinates a group, as any of those that run says."""
    client = await next(each for each in running.brokers.values() if not each.ended.is_set()).connect()
    while True:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        (found,) = (await client.request(request, FindCoordinatorResponse)).coordinators
        if found.error_code == error_codes.NONE:
            return await running.brokers[found.node_id].connect()
        await trio.sleep(0.1)


async def commit_offset(running: Cluster, group: str, offset: int) -> int:
    with trio.fail_after(SOON_SECONDS):
        while True:
            client = await coordinator_of(running, group)
            partition = OffsetCommitRequestPartition(
                partition_index=0, committed_offset=offset, committed_metadata=None
            )
            topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
            request = OffsetCommitRequest(group_id=group, member_id="", topics=[topic])
            (answer,) = (await client.request(request, OffsetCommitResponse)).topics[0].partitions
            if answer.error_code not in COORDINATOR_ERRORS:
                return answer.error_code
            await trio.sleep(0.1)


async def committed_offset(running: Cluster, group: str) -> int | None:
    client = await coordinator_of(running, group)
    wanted = OffsetFetchRequestGroup(group_id=group, topics=None)
    (answer,) = (await client.request(OffsetFetchRequest(groups=[wanted]), OffsetFetchResponse)).groups
    if answer.error_code in COORDINATOR_ERRORS:
        return None
    assert answer.error_code == error_codes.NONE
    return answer.topics[0].partitions[0].committed_offset
