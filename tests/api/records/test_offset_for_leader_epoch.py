"""OffsetForLeaderEpoch, asked of a whole broker in memory; its leader epoch grows with each start."""

from __future__ import annotations

import pytest
import trio.testing

from kafscale.client.connection import Connection
from kafscale.wire import error_codes
from kafscale.wire.messages.records import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.api.one_topic import TOPIC, first_partition, one_topic, produce_batch, request_in
from tests.devtools.fakes.memory_broker import memory_parts

NOT_CHECKED = -1
UNDEFINED = (error_codes.NONE, -1, -1)


async def _ask(client: Connection, epoch: int, *, current: int = NOT_CHECKED, version: int = 4) -> tuple[int, int, int]:
    """The error code, the epoch and its end for partition 0."""
    wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[wanted])])
    response = await request_in(client, version, request, OffsetForLeaderEpochResponse)
    (topic,) = response.topics
    (answer,) = topic.partitions
    assert (topic.topic, answer.partition) == (TOPIC, 0)
    return answer.error_code, answer.leader_epoch, answer.end_offset


@pytest.mark.parametrize("version", range(2, 5))
async def test_the_current_epoch_ends_at_the_high_watermark(
    version: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with one_topic(memory_parts()) as (running, client):
        epoch = first_partition(running).leader_epoch
        assert await _ask(client, epoch, version=version) == (error_codes.NONE, epoch, 0)
        await produce_batch(client, [100, 200])
        assert await _ask(client, epoch, version=version) == (error_codes.NONE, epoch, 2)


@pytest.mark.parametrize("flushed", [False, True])
async def test_an_older_epoch_ends_where_the_next_one_with_records_began(
    flushed: bool, autojump_clock: trio.testing.MockClock
) -> None:
    parts, epochs = memory_parts(), []
    for count in (2, 0, 3, 0):  # records written under each epoch
        async with one_topic(parts) as (running, client):
            epochs.append(first_partition(running).leader_epoch)
            if count:
                await produce_batch(client, [100] * count)
            if flushed:
                await running.broker.services.log.flusher.flush_all()
            ends = [await _ask(client, epoch) for epoch in epochs]
    first, silent, third, current = epochs
    assert first < silent < third < current
    assert ends == [(0, first, 2), (0, first, 2), (0, third, 5), (0, current, 5)]


async def test_an_epoch_without_records_ends_where_the_first_epoch_with_records_starts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    parts = memory_parts()
    async with one_topic(parts) as (running, _):
        silent = first_partition(running).leader_epoch
    async with one_topic(parts) as (running, client):
        await produce_batch(client, [100, 200])
        assert first_partition(running).leader_epoch > silent
        assert await _ask(client, silent) == (error_codes.NONE, silent, 0)


async def test_a_future_epoch_and_epoch_minus_1_get_an_undefined_end_offset(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with one_topic(memory_parts()) as (running, client):
        await produce_batch(client, [100, 200])
        assert await _ask(client, first_partition(running).leader_epoch + 1) == UNDEFINED
        assert await _ask(client, -1) == UNDEFINED


@pytest.mark.parametrize("version", range(2, 5))
@pytest.mark.parametrize(
    ("difference", "error_code"),
    [(-1, error_codes.FENCED_LEADER_EPOCH), (1, error_codes.UNKNOWN_LEADER_EPOCH)],
)
async def test_a_wrong_current_epoch_is_refused(
    difference: int, error_code: int, version: int, autojump_clock: trio.testing.MockClock
) -> None:
    parts = memory_parts()
    async with one_topic(parts):
        pass
    async with one_topic(parts) as (running, client):
        epoch = first_partition(running).leader_epoch
        answer = await _ask(client, epoch, current=epoch + difference, version=version)
        assert answer == (error_code, -1, -1)
        assert await _ask(client, epoch, current=epoch, version=version) == (error_codes.NONE, epoch, 0)


async def test_an_unknown_partition_fails_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        epoch = first_partition(running).leader_epoch
        wanted = [OffsetForLeaderPartition(partition=index, leader_epoch=epoch) for index in (2, 1)]
        topics = [OffsetForLeaderTopic(topic=name, partitions=wanted) for name in ("unknown", TOPIC)]
        response = await client.request(OffsetForLeaderEpochRequest(topics=topics), OffsetForLeaderEpochResponse)
        found = [[(each.error_code, each.end_offset) for each in topic.partitions] for topic in response.topics]
        unknown = (error_codes.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert found == [[unknown, unknown], [unknown, (error_codes.NONE, 0)]]
