"""Fetch and ListOffsets with isolation levels, asked of a whole broker in memory whose partition has transactions."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kafscale.client.connection import Connection
from kafscale.wire import error_codes
from kafscale.wire.batch_header import batches, parse_header
from kafscale.wire.messages.records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
)
from kafscale.wire.records import iterate_records
from tests.api.one_topic import TOPIC, first_partition, one_topic, request_in
from tests.devtools.fakes.memory_broker import memory_parts
from tests.devtools.fakes.memory_log import append_nowait
from tests.devtools.fakes.transactions import abort, commit, send

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
PLENTY_BYTES = 1 << 20
LONG_MS = 60_000
NEWEST_BY_NAME = 12


async def _fetch(
    client: Connection, isolation_level: int, offset: int = 0, *, min_bytes: int = 1, max_wait_ms: int = 0
) -> PartitionData:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=PLENTY_BYTES, current_leader_epoch=-1)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=PLENTY_BYTES,
        isolation_level=isolation_level,
        topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
    )
    response = await request_in(client, NEWEST_BY_NAME, request, FetchResponse)
    (data,) = response.responses[0].partitions
    assert data.error_code == error_codes.NONE
    return data


def _values(data: PartitionData) -> list[bytes | None]:
    records = data.records or memoryview(b"")
    assert isinstance(records, memoryview)
    plain = (batch for batch in batches(records) if not parse_header(batch).is_control)
    return [record.value for batch in plain for record in iterate_records(batch)]


async def _find(client: Connection, isolation_level: int, timestamp_ms: int) -> int:
    topic = ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)])
    request = ListOffsetsRequest(isolation_level=isolation_level, topics=[topic])
    response = await request_in(client, 7, request, ListOffsetsResponse)
    return response.topics[0].partitions[0].offset


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_read_committed_fetch_ends_at_the_last_stable_offset_and_lists_aborts(
    autojump_clock: trio.testing.MockClock, is_flushed: bool
) -> None:
    async with one_topic(memory_parts()) as (running, client):
        partition = first_partition(running)
        await send(partition, b"aborted", producer_id=1)
        await send(partition, b"committed", producer_id=2)
        await abort(partition, producer_id=1)
        await commit(partition, producer_id=2)
        await send(partition, b"open", producer_id=3)
        if is_flushed:
            await running.broker.services.log.flusher.flush_all()
        data = await _fetch(client, READ_UNCOMMITTED)
        assert (data.high_watermark, data.last_stable_offset, data.aborted_transactions) == (5, 4, None)
        assert _values(data) == [b"aborted", b"committed", b"open"]
        data = await _fetch(client, READ_COMMITTED)
        assert (data.high_watermark, data.last_stable_offset) == (5, 4)
        assert _values(data) == [b"aborted", b"committed"]
        assert [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()] == [(1, 0)]
        assert _values(await _fetch(client, READ_COMMITTED, 4)) == []
        assert (await _fetch(client, READ_COMMITTED, 1)).aborted_transactions
        assert (await _fetch(client, READ_COMMITTED, 3)).aborted_transactions == []


async def test_the_latest_offset_at_read_committed_is_the_last_stable_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with one_topic(memory_parts()) as (running, client):
        partition = first_partition(running)
        appended, round = append_nowait(partition, b"plain", timestamps_ms=[100])
        await round.wait()
        await send(partition, b"open")
        assert await _find(client, READ_UNCOMMITTED, -1) == 2
        assert await _find(client, READ_COMMITTED, -1) == 1
        late_ms = 1_000
        assert await _find(client, READ_UNCOMMITTED, late_ms) == 1
        assert await _find(client, READ_COMMITTED, late_ms) == -1, "a record that may yet be aborted is found"
        assert await _find(client, READ_COMMITTED, 100) == appended.base_offset
        await commit(partition)
        assert await _find(client, READ_COMMITTED, -1) == 3
        assert await _find(client, READ_COMMITTED, late_ms) == 1


async def test_a_waiting_read_committed_fetch_wakes_only_when_the_transaction_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """However few bytes the marker has, and however many the records before it."""
    async with one_topic(memory_parts()) as (running, client):
        partition = first_partition(running)
        found: list[PartitionData] = []

        async def wait() -> None:
            found.append(await _fetch(client, READ_COMMITTED, min_bytes=2_000, max_wait_ms=LONG_MS))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            await send(partition, bytes(4_000))
            await trio.sleep(1.0)
            assert not found
            await commit(partition)
            await trio.sleep(0.1)
            assert found
            assert trio.current_time() - began < 2.0
        assert _values(found[0]) == [bytes(4_000)]


async def test_records_can_be_deleted_past_an_open_transaction(autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        partition = first_partition(running)
        await send(partition, b"open")
        append_nowait(partition, b"plain")
        await send(partition, b"more", sequence=1)
        wanted = DeleteRecordsPartition(partition_index=0, offset=2)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=TOPIC, partitions=[wanted])], timeout_ms=LONG_MS)
        await client.request(request, DeleteRecordsResponse)
        assert (partition.log_start_offset, partition.last_stable_offset, partition.high_watermark) == (2, 2, 3)
        assert _values(await _fetch(client, READ_COMMITTED, 2)) == []
        await commit(partition)
        assert _values(await _fetch(client, READ_COMMITTED, 2)) == [b"more"]
