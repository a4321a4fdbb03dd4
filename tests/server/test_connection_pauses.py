"""A connection that is not read from, over a whole broker: it goes on when the last of its reasons has gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.client.connection import Connection as Client
from kafscale.client.connection import Reply
from kafscale.config import Limits
from kafscale.server.kafka.connection import ServedConnection
from kafscale.server.kafka.pauses import PauseReason
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
from tests.api.one_topic import TOPIC, one_topic
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_parts, memory_settings

REQUESTS, BYTES, POOL = PauseReason.IN_FLIGHT_REQUESTS, PauseReason.IN_FLIGHT_BYTES, PauseReason.POOL
FETCH_VERSION = 12  # the last one that names topics
LARGE_BYTES = 40_000  # more than what is received with others, so straight into the pool
SETTINGS = memory_settings(
    limits=Limits(max_in_flight_requests_count=3, max_in_flight_bytes=LARGE_BYTES, max_message_bytes=900_000),
    chunk_pool_bytes=1 << 20,
)


@attrs.define(eq=False, repr=False)
class Pipelined:
    """A client whose requests are answered when it says so: each waits behind fetches that find nothing for a while."""

    running: MemoryBroker
    client: Client
    replies: list[Reply[ProduceResponse]] = attrs.field(factory=list)

    @property
    def connection(self) -> ServedConnection:
        (found,) = self.running.broker.acceptor.connections
        return found

    async def send_fetch(self, seconds: float) -> None:
        """One that holds back whatever comes behind it for so long, once it is at its turn."""
        wanted = FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=TOPIC, partitions=[wanted])]
        request = FetchRequest(max_wait_ms=int(1000 * seconds), min_bytes=1, max_bytes=1 << 20, topics=topics)
        call = self.client.call(FetchRequest, FetchResponse, version=FETCH_VERSION)
        await self.client.send_encoded(call, encode(request, FETCH_VERSION))

    async def send_produce(self, size_bytes: int) -> None:
        data = PartitionProduceData(index=0, records=memoryview(build_batch([Record(value=bytes(size_bytes))])))
        topics = [TopicProduceData(name=TOPIC, partition_data=[data])]
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)
        self.replies.append(await self.client.send(request, ProduceResponse))

    async def offsets(self) -> list[int]:
        """Of all produces."""
        answers = [await reply.wait() for reply in self.replies]
        await wait_all_tasks_blocked()  # the reader has seen it too
        return [answer.responses[0].partition_responses[0].base_offset for answer in answers]


@asynccontextmanager
async def pipelined() -> AsyncIterator[Pipelined]:
    async with one_topic(memory_parts(), SETTINGS) as (running, client):
        yield Pipelined(running, client)


async def test_a_connection_that_is_paused_for_two_reasons_reads_on_when_both_are_gone(autojump_clock):
    async with pipelined() as rig:
        await rig.send_fetch(5)
        await rig.send_fetch(5)
        await rig.send_produce(LARGE_BYTES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.send_produce, 10)
            await wait_all_tasks_blocked()
            assert rig.connection.pauses.reasons == {REQUESTS, BYTES}
            await trio.sleep(7)  # the first fetch is answered, so there are fewer requests now
            assert rig.connection.pauses.reasons == {BYTES}
            assert rig.connection.metrics.bytes_in.value < 2 * LARGE_BYTES
        assert await rig.offsets() == [0, 1]
        assert rig.connection.pauses.reasons == set()


@pytest.mark.parametrize(
    ("reason", "sizes"),
    [(REQUESTS, [10, 10]), (BYTES, [LARGE_BYTES])],
)
async def test_reaching_one_in_flight_limit_pauses_for_that_reason_only(autojump_clock, reason, sizes):
    async with pipelined() as rig:
        await rig.send_fetch(5)
        for size in sizes:
            await rig.send_produce(size)
        await wait_all_tasks_blocked()
        assert rig.connection.pauses.reasons == {reason}
        assert await rig.offsets() == list(range(len(sizes)))
        assert rig.connection.pauses.reasons == set()


async def test_a_connection_that_waits_for_memory_reads_on_when_there_is_some(autojump_clock):
    async with pipelined() as rig:
        pool = rig.running.broker.services.log.pool
        held = pool.acquire_nowait(pool.size_bytes - (64 << 10))
        assert held is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.send_produce, 100_000)
            await wait_all_tasks_blocked()
            assert rig.connection.pauses.reasons == {POOL}
            held.release()
        assert await rig.offsets() == [0]
        assert rig.connection.pauses.reasons == set()


async def test_one_request_in_flight_is_kafkas_serial_model(autojump_clock):
    """A produce is not in the log before the one before it is answered; by default it is."""
    found = {}
    for limit in (1, Limits().max_in_flight_requests_count):
        parts = memory_parts()
        async with one_topic(parts, memory_settings(limits=Limits(max_in_flight_requests_count=limit))) as (
            running,
            client,
        ):
            parts.disk.sync_seconds = 1.0
            rig = Pipelined(running, client)
            for _ in range(5):
                await rig.send_produce(10)
            await wait_all_tasks_blocked()
            partition = running.broker.services.log.partition_named(TOPIC, 0)
            assert partition is not None
            found[limit] = partition.next_offset
            assert await rig.offsets() == list(range(5))
    assert list(found.values()) == [1, 5]
