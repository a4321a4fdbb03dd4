"""What fetches hold beside pool and cache: bounded, waited for in order, and given back once, come what may."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from kafscale.api.handling.calls import Peer
from kafscale.client.connection import Connection
from kafscale.cluster.registries.topics import NewTopic
from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.config import Durability, Limits
from kafscale.log.partition.partition import Partition
from kafscale.metrics import Metrics
from kafscale.store.memory import MemoryStore
from kafscale.store.opening.opening import wrap_store
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.wire import error_codes
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
from kafscale.wire.records import Record, build_batch
from tests.api.one_topic import request_in
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts, memory_settings
from tests.devtools.fakes.memory_log import append_nowait
from tests.devtools.fakes.simulated_store import SimulatedStore
from tests.devtools.fakes.stream_transport import StreamTransport

TOPIC = "orders"
BUFFER_BYTES = 1 << 20
VALUE_BYTES = 400_000  # so that two fit into the buffer
PEER = Peer(host="192.0.2.1", port=1024, listener_name="PLAINTEXT", reached_host="192.0.2.2", reached_port=9092)


@asynccontextmanager
async def filled_broker(**settings: object) -> AsyncIterator[MemoryBroker]:
    """Three partitions of three large batches each in the bucket, and no cache."""
    chosen = memory_settings(cache_bytes=0, fetch_buffer_bytes=BUFFER_BYTES, **settings)
    async with memory_broker(memory_parts(), chosen) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=3)])
        for index in range(3):
            for number in range(3):
                await append(partition_of(running, index), b"%d" % number + bytes(VALUE_BYTES))
            await running.broker.services.log.flusher.flush_all()
        yield running


async def append(partition: Partition, value: bytes) -> None:
    await append_nowait(partition, value)[1].wait()


def partition_of(running: MemoryBroker, index: int = 0) -> Partition:
    partition = running.broker.services.log.partition_named(TOPIC, index)
    assert partition is not None
    return partition


def budget_of(running: MemoryBroker) -> ByteBudget:
    return running.broker.services.log.reader.ranges.budget


def fetch(*partitions: int, offset: int = 0, max_wait_ms: int = 0, min_bytes: int = 1) -> FetchRequest:
    wanted = [FetchPartition(partition=each, fetch_offset=offset, partition_max_bytes=1) for each in partitions]
    topics = [FetchTopic(topic=TOPIC, partitions=wanted)]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=100 << 20, topics=topics)


class Consumer:
    """A client whose replies stay with the broker until it takes them."""

    def __init__(self, running: MemoryBroker) -> None:
        ours, theirs = trio.testing.lockstep_stream_pair()
        self.stream = ours
        running.nursery.start_soon(running.broker.acceptor.serve, StreamTransport(theirs), PEER)

    async def ask(self, request: FetchRequest) -> None:
        body = b"".join(encode(request, 11))
        head = (1).to_bytes(2, "big") + (11).to_bytes(2, "big") + bytes(4) + b"\xff\xff"
        await self.stream.send_all((len(head) + len(body)).to_bytes(4, "big") + head + body)

    async def take(self) -> int:
        """Take one reply; its size."""
        data = await self.stream.receive_some(4)
        left = size = int.from_bytes(data, "big")
        while left:
            left -= len(await self.stream.receive_some(left))
        return size


async def test_fetches_beyond_the_buffer_wait_until_earlier_responses_are_taken(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    async with filled_broker() as running:
        budget = budget_of(running)
        consumers = [Consumer(running) for _ in range(20)]
        for number, each in enumerate(consumers):
            await each.ask(fetch(number % 3, offset=number // 3 % 3))
        await wait_all_tasks_blocked()
        shared = budget.used_bytes
        assert VALUE_BYTES < shared <= BUFFER_BYTES
        assert budget.waiting_count > 0
        most = 0
        for each in consumers:
            assert await each.take() > VALUE_BYTES
            most = max(most, budget.used_bytes)
        await wait_all_tasks_blocked()
        assert most <= BUFFER_BYTES
        assert (budget.used_bytes, budget.waiting_count) == (0, 0)


@pytest.mark.parametrize("dies", ["while it is sent to", "while it waits"])
async def test_a_disconnected_consumer_releases_its_fetch_buffer(
    autojump_clock: trio.testing.MockClock, dies: str
) -> None:
    async with filled_broker() as running:
        budget = budget_of(running)
        holders = [Consumer(running), Consumer(running)]
        for offset, each in enumerate(holders):
            await each.ask(fetch(0, offset=offset))
        await wait_all_tasks_blocked()
        waiting, last = Consumer(running), Consumer(running)
        for offset, each in enumerate([waiting, last]):
            await each.ask(fetch(1, offset=offset))
            await wait_all_tasks_blocked()
        assert budget.waiting_count == 2
        if dies == "while it waits":
            await waiting.stream.aclose()
            await wait_all_tasks_blocked()
            await trio.sleep(2)  # what was asked before the end of a stream may still be answered for a moment
            assert budget.waiting_count == 1
        await holders[0].stream.aclose()
        assert await last.take() > VALUE_BYTES if dies == "while it waits" else await waiting.take() > VALUE_BYTES
        await holders[1].stream.aclose()
        if dies != "while it waits":
            assert await last.take() > VALUE_BYTES
        await wait_all_tasks_blocked()
        assert (budget.used_bytes, budget.waiting_count) == (0, 0)


async def test_a_consumer_that_never_takes_its_reply_is_closed_in_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It used to stay for ever, with what it held of the chunk pool, as long as it had another request waiting."""
    limits = Limits(connection_idle_timeout_seconds=60.0)
    async with filled_broker(limits=limits) as running:
        stuck = [Consumer(running), Consumer(running)]
        for offset, each in enumerate(stuck):
            await each.ask(fetch(0, offset=offset))
            await each.ask(fetch(0, offset=offset))
        await wait_all_tasks_blocked()
        other = Consumer(running)
        await other.ask(fetch(1))
        await wait_all_tasks_blocked()
        assert budget_of(running).waiting_count == 1
        began = trio.current_time()
        assert await other.take() > VALUE_BYTES
        assert trio.current_time() - began <= 2 * 60.0
        await wait_all_tasks_blocked()
        assert budget_of(running).used_bytes == 0
        assert len(running.broker.acceptor.connections) == 1


async def test_a_client_that_does_not_read_is_disconnected_if_others_wait_for_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two consumers that did not read made a cold fetch of somebody else wait for 10 minutes."""
    async with filled_broker() as running:
        stuck = [Consumer(running), Consumer(running)]
        for offset, each in enumerate(stuck):
            await each.ask(fetch(0, offset=offset))
        await wait_all_tasks_blocked()
        await trio.sleep(60)  # nobody waits, so they may take their time
        assert len(running.broker.acceptor.connections) == 2
        other = Consumer(running)
        await other.ask(fetch(1))
        began = trio.current_time()
        assert await other.take() > VALUE_BYTES
        assert trio.current_time() - began < 10
        await wait_all_tasks_blocked()
        assert budget_of(running).used_bytes == 0


async def test_a_fetch_that_waits_for_more_holds_nothing_meanwhile(autojump_clock: trio.testing.MockClock) -> None:
    """A fetch of min_bytes that never come kept the chunks of what there was for as long as it asked, up to 24 days."""
    async with filled_broker(flush_interval_seconds=3600.0) as running:
        log = running.broker.services.log
        consumer = Consumer(running)
        await append(partition_of(running), b"too little")
        await consumer.ask(fetch(0, offset=3, max_wait_ms=600_000, min_bytes=1_000_000))
        await wait_all_tasks_blocked()
        await log.flusher.flush_all()
        await wait_all_tasks_blocked()
        assert log.pool.used_bytes == 0
        assert await consumer.take() > len(b"too little")


async def test_a_fetch_returns_the_partitions_that_fit_instead_of_waiting_for_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """If it waited for more while it held some, two such fetches could wait for each other for ever."""
    async with filled_broker() as running:
        client = await running.connect()
        request = fetch(0, 1, 2, max_wait_ms=60_000, min_bytes=3 * VALUE_BYTES)
        for topic in request.topics:
            for each in topic.partitions:
                each.partition_max_bytes = 1 << 20
        began = trio.current_time()
        response = await request_in(client, 11, request, FetchResponse)
        sizes = [len(each.records or b"") for each in response.responses[0].partitions]
        assert sizes[0] > 2 * VALUE_BYTES
        assert sizes[1:] == [0, 0]
        assert trio.current_time() == began
        assert budget_of(running).used_bytes == 0


async def test_reads_from_the_write_ahead_log_count(autojump_clock: trio.testing.MockClock) -> None:
    async with filled_broker(flush_interval_seconds=3600.0) as running:
        partition = partition_of(running)
        for _ in range(3):
            await append(partition, bytes(VALUE_BYTES))
        partition.spill()
        consumers = [Consumer(running) for _ in range(3)]
        for number, each in enumerate(consumers):
            await each.ask(fetch(0, offset=3 + number))
        await wait_all_tasks_blocked()
        assert budget_of(running).used_bytes > 2 * VALUE_BYTES
        assert budget_of(running).waiting_count == 1
        for each in consumers:
            assert await each.take() > VALUE_BYTES
        await wait_all_tasks_blocked()
        assert budget_of(running).used_bytes == 0


async def test_a_client_that_leaves_during_a_fetch_frees_its_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The chunks of what had been read already used to be lost for good."""
    async with filled_broker(flush_interval_seconds=3600.0) as running:
        log = running.broker.services.log
        await append(partition_of(running), b"too little")
        consumer = Consumer(running)
        await consumer.ask(fetch(0, offset=3, max_wait_ms=600_000, min_bytes=1_000_000))
        await wait_all_tasks_blocked()
        await consumer.stream.aclose()
        await trio.sleep(10)
        await log.flusher.flush_all()
        assert log.pool.used_bytes == 0


# ---- beside a producer ----------------------------------------------------------------------------------------------


async def _produce_latencies(running: MemoryBroker, count: int) -> Sequence[float]:
    client = await running.connect()
    latencies = []
    for _ in range(count):
        data = PartitionProduceData(index=0, records=memoryview(build_batch([Record(value=bytes(1000))])))
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
        )
        began = trio.current_time()
        response = await client.request(request, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == error_codes.NONE
        latencies.append(trio.current_time() - began)
    return sorted(latencies)


async def _consume(client: Connection, partition: int, taken: list[int]) -> None:
    """A backlog, from its beginning to its end, again and again."""
    while True:
        offset = 0
        while offset < 60:
            request = fetch(partition, offset=offset)
            request.topics[0].partitions[0].partition_max_bytes = 100_000
            response = await request_in(client, 11, request, FetchResponse)
            taken.append(len(response.responses[0].partitions[0].records or b""))
            offset += taken[-1] // 50_000


async def test_lagging_consumers_move_no_producers_p99(autojump_clock: trio.testing.MockClock) -> None:
    """A store 20 ms away, and each produce waits for its segment there, while consumers read behind and ahead."""
    latencies, taken = {}, list[int]()
    for consumers_count in (0, 6):
        settings = memory_settings(durability=Durability.SEGMENT, cache_bytes=4 << 20, s3_concurrency=16)
        store = SimulatedStore(MemoryStore(), latency_seconds=0.02)
        views = wrap_store(store, settings, StoreMetrics.register(Metrics()))
        parts = memory_parts()
        parts = attrs.evolve(parts, store=views.background, views=views)
        async with memory_broker(parts, settings) as running:
            await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=7)])
            for index in range(1, 7):
                appended = [append_nowait(partition_of(running, index), bytes(50_000))[1] for _ in range(60)]
                await appended[-1].wait()
            async with trio.open_nursery() as consumers:
                for index in range(1, 1 + consumers_count):
                    consumers.start_soon(_consume, await running.connect(), index, taken)
                latencies[consumers_count] = await _produce_latencies(running, 100)
                consumers.cancel_scope.cancel()
            ahead = running.broker.services.log.reader.read_ahead
            assert (ahead.statistics.used_bytes > 0) == (consumers_count > 0)
    assert sum(taken) > 20 << 20
    assert latencies[6][-1] <= 1.05 * latencies[0][-1]  # not even the slowest of all
    assert sum(latencies[6]) <= 1.05 * sum(latencies[0])
