"""What the fault suites have found, each pinned down by a test of its own."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.broker_storage import StorageParts
from kafscale.client.connection import Connection
from kafscale.cluster.metadata.checkpoint import INTERVAL_SECONDS
from kafscale.config import Settings
from kafscale.formats.footer_reading import read_footer, read_index
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.messages.topics import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafscale.wire.records import ProducerStamp, Record, build_batch
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings

STEPS_MAX_COUNT = 20_000  # without the fault it takes a few thousand


@attrs.define(eq=False)
class StepLimit(trio.abc.Instrument):
    """Ends a run in which tasks are busy without end, which an autojump clock would never leave."""

    cancel_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    steps_count: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps_count += 1
        if self.steps_count > STEPS_MAX_COUNT:
            self.cancel_scope.cancel()


@attrs.define(eq=False)
class Client:
    """Writes to partition 0 of one topic."""

    connection: Connection

    async def topic(self) -> bytes:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
        return (await self.connection.request(request, MetadataResponse)).topics[0].topic_id

    async def producer_id(self) -> int:
        request = InitProducerIdRequest(transaction_timeout_ms=1000)
        return (await self.connection.request(request, InitProducerIdResponse)).producer_id

    async def produce(self, data: bytearray) -> int:
        """The batch's offset."""
        partition = PartitionProduceData(index=0, records=memoryview(data))
        topic = TopicProduceData(name="orders", partition_data=[partition])
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
        answer = (await self.connection.request(request, ProduceResponse)).responses[0].partition_responses[0]
        assert answer.error_code == 0
        return answer.base_offset


@pytest.mark.parametrize("flush_interval_seconds", [0.01, 0.1, 1.0])
async def test_a_flush_that_is_due_but_for_the_rounding_of_a_sum_is_waited_for_without_end(
    autojump_clock: MockClock, flush_interval_seconds: float
) -> None:
    await _produce_within_steps(memory_settings(flush_interval_seconds=flush_interval_seconds))


async def test_a_full_tail_that_is_not_durable_yet_is_flushed_again_and_again(autojump_clock: MockClock) -> None:
    await _produce_within_steps(memory_settings(segment_bytes=1024))


async def _produce_within_steps(settings: Settings) -> None:
    limit = StepLimit()
    parts = StorageParts(store=MemoryStore(), metadata=MemoryMetadataStore(), disk=MemoryDisk(sync_seconds=0.03))
    trio.lowlevel.add_instrument(limit)
    with limit.cancel_scope:
        async with memory_broker(parts, settings) as broker:
            client = Client(await broker.connect())
            await client.topic()
            for _ in range(100):
                await client.produce(build_batch([Record(value=bytes(2000))]))
                await trio.sleep(0.1 + settings.flush_interval_seconds)
    trio.lowlevel.remove_instrument(limit)
    assert limit.steps_count < STEPS_MAX_COUNT


async def test_an_index_without_its_segment_outlives_the_flush_that_reuses_its_name(autojump_clock: MockClock) -> None:
    # Killed between `.index` and `.kfs`, then between `.kfs` and `.index`, which left halves of two flushes as a pair.
    parts = memory_parts()
    store = FaultyStore(parts.store)
    parts = attrs.evolve(parts, store=store)
    store.hold(On("put*", "*.kfs"))
    async with memory_broker(parts, memory_settings(flush_interval_seconds=0.01, shutdown_timeout_seconds=1)) as broker:
        client = Client(await broker.connect())
        topic_id = await client.topic()
        await client.produce(build_batch([Record(value=b"a")]))
        await trio.sleep(1)
    kfs = SegmentKey(topic="orders", topic_id=topic_id, partition=0, base_offset=0, epoch=0)
    assert await read_index(store, kfs) is not None
    store.heal()
    store.hold(On("put*", "*.index"))
    async with memory_broker(parts, memory_settings(shutdown_timeout_seconds=1)) as broker:
        await Client(await broker.connect()).produce(build_batch([Record(value=b"b")]))
    kfs = attrs.evolve(kfs, epoch=1)  # names have the epoch of the start since then, so none is used again
    assert (await read_footer(store, kfs)).last_offset == 1
    store.heal()
    async with memory_broker(parts):
        assert await read_index(store, kfs) == await read_footer(store, kfs)


async def test_a_producer_gets_an_id_that_segments_remember_after_the_disk_was_lost(autojump_clock: MockClock) -> None:
    # Its first batch was then taken for a duplicate: acknowledged, and never written.
    parts = memory_parts()
    with trio.CancelScope() as crash:
        async with memory_broker(parts) as broker:
            client = Client(await broker.connect())
            await client.topic()
            await trio.sleep(2 * INTERVAL_SECONDS)  # so that a checkpoint knows the topic, and not the producer
            for number in range(3):
                stamp = ProducerStamp(await client.producer_id(), 0, 0)
                assert await client.produce(build_batch([Record(value=b"a")], producer=stamp)) == number
            await broker.broker.services.log.flusher.flush_all()
            crash.cancel()
            await trio.lowlevel.checkpoint()
    async with memory_broker(attrs.evolve(memory_parts(), store=parts.store)) as broker:
        client = Client(await broker.connect())
        stamp = ProducerStamp(await client.producer_id(), 0, 0)
        assert await client.produce(build_batch([Record(value=b"b")], producer=stamp)) == 3
