"""DeleteRecords, asked of a whole broker in memory."""

from __future__ import annotations

import pytest
import trio.testing

from kafscale.client.connection import Connection
from kafscale.cluster.registries.topics import NewTopic
from kafscale.wire import error_codes
from kafscale.wire.codec import encode
from kafscale.wire.messages.records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from tests.api.one_topic import TOPIC, first_partition, one_topic, produce_batch, request_in
from tests.devtools.fakes.memory_broker import memory_parts

HIGH_WATERMARK = -1
FETCH_VERSION = 12  # the last one that names topics


async def _delete(
    client: Connection, offset: int, *, topic: str = TOPIC, partition: int = 0, version: int = 2
) -> tuple[int, int]:
    """The error code and the low watermark of the answer."""
    wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=1_000)
    response = await request_in(client, version, request, DeleteRecordsResponse)
    (answered,) = response.topics
    (result,) = answered.partitions
    assert (answered.name, result.partition_index) == (topic, partition)
    return result.error_code, result.low_watermark


def _fetch(offset: int, *, max_wait_ms: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=TOPIC, partitions=[wanted])]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1 << 19, max_bytes=1 << 20, topics=topics)


async def _fetch_error(client: Connection, offset: int) -> int:
    response = await request_in(client, FETCH_VERSION, _fetch(offset), FetchResponse)
    return response.responses[0].partitions[0].error_code


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(("offset", "log_start"), [(2, 2), (4, 4), (HIGH_WATERMARK, 4)])
async def test_records_below_an_offset_are_gone_in_every_version(
    offset: int, log_start: int, version: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with one_topic(memory_parts()) as (_, client):
        await produce_batch(client, [100, 200, 300, 400])
        assert await _delete(client, offset, version=version) == (error_codes.NONE, log_start)
        assert await _fetch_error(client, log_start - 1) == error_codes.OFFSET_OUT_OF_RANGE
        assert await _fetch_error(client, log_start) == error_codes.NONE


@pytest.mark.parametrize("offset", [5, 1 << 62, -2])
async def test_an_offset_outside_of_the_log_is_refused(offset: int, autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        await produce_batch(client, [100, 200, 300, 400])
        assert await _delete(client, offset) == (error_codes.OFFSET_OUT_OF_RANGE, -1)
        assert first_partition(running).log_start_offset == 0


async def test_an_offset_below_the_log_start_changes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        await produce_batch(client, [100, 200, 300, 400])
        assert await _delete(client, 3) == (error_codes.NONE, 3)
        for offset in (0, 2, 3):
            assert await _delete(client, offset) == (error_codes.NONE, 3)
        assert first_partition(running).log_start_offset == 3


async def test_an_unknown_partition_fails_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (_, client):
        await produce_batch(client, [100, 200])
        wanted = [DeleteRecordsPartition(partition_index=index, offset=1) for index in (2, 0)]
        topics = [DeleteRecordsTopic(name=name, partitions=wanted) for name in ("unknown", TOPIC)]
        response = await client.request(DeleteRecordsRequest(topics=topics, timeout_ms=1_000), DeleteRecordsResponse)
        results = [[(each.error_code, each.low_watermark) for each in topic.partitions] for topic in response.topics]
        unknown = (error_codes.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert results == [[unknown, unknown], [unknown, (error_codes.NONE, 1)]]


@pytest.mark.parametrize(
    ("policy", "answer"),
    [("compact", (error_codes.POLICY_VIOLATION, -1)), ("compact,delete", (error_codes.NONE, 0))],
)
async def test_a_topic_that_is_only_compacted_keeps_its_records(
    policy: str, answer: tuple[int, int], autojump_clock: trio.testing.MockClock
) -> None:
    async with one_topic(memory_parts()) as (running, client):
        topic = NewTopic(name="kept", partition_count=1, overrides={"cleanup.policy": policy})
        await running.broker.services.topics.create([topic])
        assert await _delete(client, HIGH_WATERMARK, topic="kept") == answer


@pytest.mark.parametrize("flushed", [False, True])
async def test_deleted_records_stay_deleted_over_a_restart(
    flushed: bool, autojump_clock: trio.testing.MockClock
) -> None:
    parts = memory_parts()
    async with one_topic(parts) as (running, client):
        await produce_batch(client, [100, 200, 300, 400])
        if flushed:
            await running.broker.services.log.flusher.flush_all()
        assert await _delete(client, 3) == (error_codes.NONE, 3)
    async with one_topic(parts) as (running, client):
        partition = first_partition(running)
        assert (partition.log_start_offset, partition.high_watermark) == (3, 4)
        assert await _fetch_error(client, 2) == error_codes.OFFSET_OUT_OF_RANGE
        assert await _fetch_error(client, 3) == error_codes.NONE


async def test_a_waiting_fetch_learns_that_its_records_are_gone(autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        await produce_batch(client, [100, 200, 300])
        consumer = await running.connect()
        call = consumer.call(FetchRequest, FetchResponse, version=FETCH_VERSION)
        waiting = await consumer.send_encoded(call, encode(_fetch(1, max_wait_ms=20_000), FETCH_VERSION))
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        assert await _delete(client, HIGH_WATERMARK) == (error_codes.NONE, 3)
        (answer,) = (await waiting.wait()).responses[0].partitions
        assert answer.error_code == error_codes.OFFSET_OUT_OF_RANGE
        assert trio.current_time() - started < 1
