"""A whole broker on a disk that is full or broken: what goes on, what is refused, and how it ends."""

from __future__ import annotations

import attrs
import pytest
import trio

from kafscale.cli.main import expected_error
from kafscale.client.connection import Connection
from kafscale.errors import BrokerUnavailable, StorageFailed
from kafscale.log.wal.local_wal import Wal
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes
from kafscale.wire.batch_header import batches
from kafscale.wire.codec import encode
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kafscale.wire.records import Record, build_batch, iterate_records
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings

FILE_BYTES = 256 << 10
FETCH_VERSION = 12  # the last one that names topics


async def create_topic(connection: Connection) -> None:
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    await connection.request(CreateTopicsRequest(topics=[topic], timeout_ms=1000), CreateTopicsResponse)


async def produce(connection: Connection, value: bytes) -> int:
    """Returns the error code."""
    data = PartitionProduceData(index=0, records=memoryview(build_batch([Record(value=value)])))
    topics = [TopicProduceData(name="t", partition_data=[data])]
    response = await connection.request(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics), ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


async def fetch(connection: Connection, offset: int) -> list[bytes | None]:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic="t", partitions=[wanted])]
    )
    call = connection.call(FetchRequest, FetchResponse, version=FETCH_VERSION)
    response = await (await connection.send_encoded(call, encode(request, FETCH_VERSION))).wait()
    records = response.responses[0].partitions[0].records
    return [each.value for batch in batches(memoryview(records or b"")) for each in iterate_records(batch)]


async def test_on_a_full_disk_fetches_go_on_and_flushes_make_room(autojump_clock):
    store = FaultyStore(MemoryStore())
    disk = MemoryDisk(free_bytes=3 * FILE_BYTES)
    parts = attrs.evolve(memory_parts(), store=store, disk=disk)
    settings = memory_settings(wal_segment_bytes=FILE_BYTES, flush_interval_seconds=1e9)
    async with memory_broker(parts, settings) as running, trio.open_nursery() as nursery:
        producer, consumer = await running.connect(), await running.connect()
        await create_topic(producer)
        wal = running.broker.services.log.journal
        assert isinstance(wal, Wal)
        store.fail(On("put*", "*.kfs"))
        codes: list[int] = []

        async def keep_producing() -> None:
            while True:
                codes.append(await produce(producer, bytes(50_000)))
                await trio.sleep(0.1)

        nursery.start_soon(keep_producing)
        await trio.sleep(60)
        accepted, full = codes.count(error_codes.NONE), wal.is_full
        with trio.fail_after(1):
            fetched = await fetch(consumer, accepted - 1)
        refused = codes[accepted:]
        store.heal()
        await trio.sleep(30)
        assert full
        assert fetched == [bytes(50_000)]
        assert set(refused) == {error_codes.REQUEST_TIMED_OUT, error_codes.KAFKA_STORAGE_ERROR}
        assert set(codes[-50:]) == {error_codes.NONE}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_failed_write_or_fsync_ends_the_broker_and_keeps_acknowledged_records(autojump_clock, operation):
    parts = memory_parts()
    assert isinstance(parts.disk, MemoryDisk)
    refused: list[BaseException] = []
    with pytest.RaisesGroup(StorageFailed, flatten_subgroups=True) as caught:
        async with memory_broker(parts) as running:
            client = await running.connect()
            await create_topic(client)
            for number in range(5):
                assert await produce(client, b"%d" % number) == error_codes.NONE
            parts.disk.fail(operation)
            try:
                refused.append(AssertionError(await produce(client, b"lost")))
            except BrokerUnavailable as exc:
                refused.append(exc)
            await trio.sleep_forever()
    told = str(expected_error(caught.value))
    assert "the WAL in memory failed: cannot write wal-00000000000000000001.log: " in told
    assert "(errno 5)" in told
    if isinstance(refused[0], AssertionError):
        assert refused[0].args == (error_codes.KAFKA_STORAGE_ERROR,)
    async with memory_broker(attrs.evolve(parts, disk=parts.disk.crash())) as running:
        client = await running.connect()
        assert await fetch(client, 0) == [b"%d" % number for number in range(5)]
        assert await produce(client, b"5") == error_codes.NONE
        assert await fetch(client, 5) == [b"5"]
