"""ListOffsets, asked of a whole broker in memory."""

from __future__ import annotations

import pytest
import trio.testing

from kafscale.client.connection import Connection
from kafscale.wire import compression, error_codes
from kafscale.wire.messages.records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.api.one_topic import TOPIC, first_partition, one_topic, produce_batch, request_in
from tests.devtools.fakes.memory_broker import memory_parts

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
ALL_VERSIONS = range(1, 11)


async def _ask(
    client: Connection, wanted: ListOffsetsPartition, *, topic: str = TOPIC, version: int = 7, isolation_level: int = 0
) -> ListOffsetsPartitionResponse:
    topics = [ListOffsetsTopic(name=topic, partitions=[wanted])]
    request = ListOffsetsRequest(isolation_level=isolation_level, topics=topics)
    response = await request_in(client, version, request, ListOffsetsResponse)
    (answered,) = response.topics
    (answer,) = answered.partitions
    assert (answered.name, answer.partition_index) == (topic, wanted.partition_index)
    return answer


async def _find(client: Connection, timestamp_ms: int, *, version: int = 7) -> tuple[int, int]:
    """The offset and timestamp that a look-up in partition 0 gives."""
    answer = await _ask(client, ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms), version=version)
    assert answer.error_code == error_codes.NONE
    return answer.offset, answer.timestamp


async def _delete_before(client: Connection, offset: int) -> None:
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=TOPIC, partitions=[wanted])], timeout_ms=1_000)
    response = await client.request(request, DeleteRecordsResponse)
    assert response.topics[0].partitions[0].error_code == error_codes.NONE


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_both_ends_and_a_time_in_every_version(version: int, autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        await produce_batch(client, [100, 200, 300])
        epoch = first_partition(running).leader_epoch
        for timestamp_ms, offset, found_ms in ((LATEST, 3, -1), (EARLIEST, 0, -1), (150, 1, 200), (301, -1, -1)):
            wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)
            answer = await _ask(client, wanted, version=version)
            assert (answer.error_code, answer.offset, answer.timestamp) == (error_codes.NONE, offset, found_ms)
            assert answer.leader_epoch == (epoch if version >= 4 and offset >= 0 else -1)


async def test_an_empty_partition(autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (_, client):
        assert await _find(client, LATEST) == await _find(client, EARLIEST) == (0, -1)
        assert await _find(client, 0) == await _find(client, MAX_TIMESTAMP) == (-1, -1)


@pytest.mark.parametrize("codec", [compression.NONE, compression.GZIP])
async def test_the_first_record_late_enough_in_the_bucket_and_in_the_tail(
    codec: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with one_topic(memory_parts()) as (running, client):
        await produce_batch(client, [100, 110, 120], codec=codec)
        await produce_batch(client, [200, 230, 210], codec=codec)
        await running.broker.services.log.flusher.flush_all()
        assert first_partition(running).flushed_offset == 6
        await produce_batch(client, [300, 310, 320], codec=codec)
        await produce_batch(client, [400, 410], codec=codec)
        assert first_partition(running).flushed_offset == 6
        expected = {
            0: (0, 100),
            100: (0, 100),
            101: (1, 110),
            120: (2, 120),
            121: (3, 200),
            205: (4, 230),
            231: (6, 300),
            311: (8, 320),
            401: (10, 410),
            411: (-1, -1),
        }
        assert {timestamp_ms: await _find(client, timestamp_ms) for timestamp_ms in expected} == expected


@pytest.mark.parametrize("flushed", [False, True])
async def test_deleted_records_are_not_found(flushed: bool, autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        await produce_batch(client, [100, 200, 300, 400])
        if flushed:
            await running.broker.services.log.flusher.flush_all()
        await _delete_before(client, 2)
        assert await _find(client, EARLIEST) == (2, -1)
        assert await _find(client, LATEST) == (4, -1)
        assert await _find(client, 100) == (2, 300)


@pytest.mark.parametrize("flushed", [False, True])
async def test_the_greatest_timestamp(flushed: bool, autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        await produce_batch(client, [100, 900, 900, 200])
        await produce_batch(client, [300])
        if flushed:
            await running.broker.services.log.flusher.flush_all()
        assert await _find(client, MAX_TIMESTAMP) == (1, 900)
        await produce_batch(client, [800, 901])
        assert await _find(client, MAX_TIMESTAMP) == (6, 901)


async def test_a_log_has_no_part_that_is_stored_remotely(autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        await produce_batch(client, [100, 200, 300])
        await _delete_before(client, 1)
        epoch = first_partition(running).leader_epoch
        for timestamp_ms, version, found in (
            *((EARLIEST_LOCAL, version, (1, -1, epoch)) for version in (8, 9, 10)),
            *((LATEST_TIERED, version, (-1, -1, -1)) for version in (9, 10)),
        ):
            answer = await _ask(
                client, ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms), version=version
            )
            assert answer.error_code == error_codes.NONE
            assert (answer.offset, answer.timestamp, answer.leader_epoch) == found


@pytest.mark.parametrize(
    ("timestamp_ms", "version"),
    [
        *((MAX_TIMESTAMP, each) for each in range(1, 7)),
        (EARLIEST_LOCAL, 7),
        (LATEST_TIERED, 7),
        (LATEST_TIERED, 8),
        *((-6, each) for each in ALL_VERSIONS),
        (-(1 << 63), 1),
    ],
)
async def test_special_timestamps_that_a_version_does_not_have_are_refused(
    timestamp_ms: int, version: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with one_topic(memory_parts()) as (_, client):
        await produce_batch(client, [100])
        answer = await _ask(client, ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms), version=version)
        assert (answer.error_code, answer.offset) == (error_codes.UNSUPPORTED_VERSION, -1)


async def test_an_unknown_partition_fails_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (_, client):
        wanted = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in (2, 1, -1)]
        topics = [ListOffsetsTopic(name=name, partitions=wanted) for name in (TOPIC, "unknown")]
        response = await request_in(client, 7, ListOffsetsRequest(topics=topics), ListOffsetsResponse)
        unknown = error_codes.UNKNOWN_TOPIC_OR_PARTITION
        found = [[(each.error_code, each.offset) for each in topic.partitions] for topic in response.topics]
        assert found == [[(unknown, -1), (error_codes.NONE, 0), (unknown, -1)], [(unknown, -1)] * 3]


@pytest.mark.parametrize(
    ("difference", "error_code"),
    [(-1, error_codes.FENCED_LEADER_EPOCH), (0, error_codes.NONE), (1, error_codes.UNKNOWN_LEADER_EPOCH)],
)
async def test_the_leader_epoch_is_checked(
    difference: int, error_code: int, autojump_clock: trio.testing.MockClock
) -> None:
    parts = memory_parts()
    async with one_topic(parts):
        pass
    async with one_topic(parts) as (running, client):  # epochs grow with each start, so that there is one below
        epoch = first_partition(running).leader_epoch + difference
        for timestamp_ms in (LATEST, EARLIEST, 0):
            wanted = ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=timestamp_ms)
            assert (await _ask(client, wanted, version=4)).error_code == error_code


async def test_earliest_tells_the_epoch_of_its_record(autojump_clock: trio.testing.MockClock) -> None:
    parts = memory_parts()
    async with one_topic(parts) as (running, client):
        await produce_batch(client, [100, 200])
        older = first_partition(running).leader_epoch
    async with one_topic(parts) as (running, client):
        newer = first_partition(running).leader_epoch
        await produce_batch(client, [300])
        found = {}
        for timestamp_ms in (EARLIEST, 200, 300, LATEST):
            answer = await _ask(client, ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms))
            found[timestamp_ms] = (answer.offset, answer.leader_epoch)
        assert newer > older
        assert found == {EARLIEST: (0, older), 200: (1, older), 300: (2, newer), LATEST: (3, newer)}


@pytest.mark.parametrize("version", range(2, 8))
async def test_read_committed_gets_the_log_end_offset_without_transactions(
    version: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with one_topic(memory_parts()) as (_, client):
        await produce_batch(client, [100, 200])
        wanted = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
        answer = await _ask(client, wanted, version=version, isolation_level=1)
        assert (answer.error_code, answer.offset) == (error_codes.NONE, 2)
