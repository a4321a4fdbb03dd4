"""A write-ahead log at `--wal-max-bytes`, or on a full disk: produces wait, are refused in the end, and go on later."""

import pytest
import trio

from kafscale.log.wal.local_wal import NO_SPACE_MAX_SECONDS
from kafscale.server.kafka.connection import ROOM_MAX_SECONDS
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kafscale.wire.records import Record, build_batch
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings
from tests.devtools.fakes.memory_log import memory_log

FILE_BYTES = 256 << 10


def produce_request(size_bytes: int) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=memoryview(build_batch([Record(value=bytes(size_bytes))])))
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=[data])])


@pytest.mark.parametrize("size_bytes", [3_000, 30_000])
@pytest.mark.parametrize("limit", ["wal-max-bytes", "disk"])
async def test_produces_wait_then_are_refused_and_go_on_when_there_is_room(autojump_clock, limit, size_bytes):
    store = FaultyStore(MemoryStore())
    parts = memory_parts()
    parts = type(parts)(store=store, metadata=parts.metadata, disk=MemoryDisk())
    settings = memory_settings(wal_segment_bytes=FILE_BYTES, wal_max_bytes=4 * FILE_BYTES)
    if limit == "disk":
        settings = memory_settings(wal_segment_bytes=FILE_BYTES)
        parts.disk.free_bytes = 4 * FILE_BYTES
    async with memory_broker(parts, settings) as broker:
        connection = await broker.connect()
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        await connection.request(CreateTopicsRequest(topics=[topic], timeout_ms=1000), CreateTopicsResponse)
        store.fail(On("put*"))

        async def produce() -> tuple[int, float]:
            began = trio.current_time()
            response = await connection.request(produce_request(size_bytes), ProduceResponse)
            code = response.responses[0].partition_responses[0].error_code
            return code, trio.current_time() - began

        accepted = 0
        while (result := await produce())[0] == error_codes.NONE:
            accepted += 1
        assert result[0] == error_codes.REQUEST_TIMED_OUT  # the one that was on its way when the log got full
        assert result[1] < NO_SPACE_MAX_SECONDS + 2
        assert 3 * FILE_BYTES <= accepted * size_bytes <= 4 * FILE_BYTES
        assert await produce() == (error_codes.KAFKA_STORAGE_ERROR, pytest.approx(ROOM_MAX_SECONDS, abs=0.1))
        assert (await produce())[1] < 1.0
        partition = broker.broker.services.log.partition_named("t", 0)
        offset = partition.next_offset
        store.heal()
        await broker.broker.services.log.flusher.flush_all()
        await trio.sleep(2)
        assert (await produce())[0] == error_codes.NONE
        assert partition.high_watermark == offset + 1 == accepted + 2


async def test_a_start_with_a_log_above_the_limit_does_not_wait_for_room(autojump_clock):
    disk, store = MemoryDisk(), FaultyStore(MemoryStore())
    store.fail(On("put*"))
    async with memory_log(store, disk, wal_segment_bytes=FILE_BYTES) as log:
        for _ in range(50):
            await log.append(log.partition(), bytes(30_000))
    store.heal()
    async with memory_log(store, disk.crash(), wal_segment_bytes=FILE_BYTES, wal_max_bytes=FILE_BYTES) as log:
        with trio.fail_after(120):
            for _ in range(20):
                await log.append(log.partition(), bytes(30_000))
        offset = log.partition().high_watermark
        assert offset == 70
