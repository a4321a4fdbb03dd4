"""request_percentage: the time that requests take of the event loop and of threads is counted, and held back for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.api.handling.quotas import RateQuota
from kafscale.client.connection import Connection
from kafscale.cluster.registries.client_quotas import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, QuotaChange, QuotaEntity
from kafscale.cluster.registries.topics import NewTopic
from kafscale.concurrency import metering
from kafscale.config import SecurityProtocol
from kafscale.log.read import unpacking
from kafscale.log.read.unpacking import unpack_at_most
from kafscale.wire import compression
from kafscale.wire.messages.cluster import DescribeQuorumRequest, DescribeQuorumResponse
from kafscale.wire.messages.groups import ListGroupsRequest, ListGroupsResponse
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
from tests.api.one_topic import TOPIC, one_topic, request_in
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_parts
from tests.devtools.fakes.stream_transport import StreamTransport
from tests.devtools.processes.sasl import ALICE
from tests.hostile.hostile import next_answer, request_bytes
from tests.server.kafka.test_sasl import log_in, sasl_broker

PERCENT = 1.0  # of a core: 0.1 s may be taken at once, and then 10 ms a second


@attrs.define
class SteppingClock:
    """Each look at it is so much later than the one before: each step of metered work takes so long."""

    step_seconds: float = 0.0
    now: float = 0.0

    def __call__(self) -> float:
        self.now += self.step_seconds
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SteppingClock:
    clock = SteppingClock()
    monkeypatch.setattr(metering, "perf_counter", clock)
    return clock


@asynccontextmanager
async def broker(**values: float) -> AsyncIterator[tuple[MemoryBroker, Connection]]:
    """One on which the client has a quota."""
    async with one_topic(memory_parts()) as (running, client):
        entity = QuotaEntity(client_id=client.client_id)
        change = QuotaChange(entity=entity, values={REQUEST_PERCENTAGE: PERCENT, **values})
        await running.broker.services.client_quotas.alter([change])
        yield running, client


def produce_request(size_bytes: int = 10, *, codec: int = compression.NONE, acks: int = -1) -> ProduceRequest:
    records = memoryview(build_batch([Record(value=bytes(size_bytes))], codec=codec))
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=records)])
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])


def fetch_request(max_wait_ms: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=TOPIC, partitions=[wanted])]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics)


async def seconds_until_answered(client: Connection) -> float:
    """How long the connection is not read from."""
    began = trio.current_time()
    await client.request(ListGroupsRequest(), ListGroupsResponse)
    return trio.current_time() - began


async def test_every_api_counts_against_the_quota_and_throttles_at_most_a_second(
    clock: SteppingClock, autojump_clock: MockClock
) -> None:
    async with broker() as (running, client):
        for request, response_class in (
            (ListGroupsRequest(), ListGroupsResponse),
            (produce_request(), ProduceResponse),
            (fetch_request(), FetchResponse),
        ):
            assert (await request_in(client, 4, request, response_class)).throttle_time_ms == 0
            clock.step_seconds = 1.0
            assert (await request_in(client, 4, request, response_class)).throttle_time_ms == 1000
            clock.step_seconds = 0.0
            assert await seconds_until_answered(client) == pytest.approx(1, abs=0.1)
            await trio.sleep(20)  # all is forgotten
        assert 'kafscale_throttle_seconds_count{quota="request"}' in running.broker.metrics.expose()


async def test_requests_that_were_sent_ahead_are_held_back_one_by_one(
    clock: SteppingClock, autojump_clock: MockClock
) -> None:
    """All that was queued when the first was throttled ran on: 30 of them took 8 s of the event loop."""
    async with broker() as (_, client):
        clock.step_seconds = 1.0
        began = trio.current_time()
        replies = [await client.send(ListGroupsRequest(), ListGroupsResponse) for _ in range(5)]
        answered = []
        for reply in replies:
            assert (await reply.wait()).throttle_time_ms == 1000
            answered.append(trio.current_time() - began)
        assert answered == pytest.approx([0, 1, 2, 3, 4], abs=0.1)


async def test_a_drain_answers_throttled_requests_at_once(clock: SteppingClock, autojump_clock: MockClock) -> None:
    async with broker() as (running, client):
        clock.step_seconds = 1.0
        stream = running.open_stream()
        request = request_bytes(ListGroupsRequest(), 3, client_id=client.client_id)
        await stream.send_all(5 * request)  # of one read
        answer = await next_answer(stream)
        assert answer is not None
        (connection,) = [each for each in running.broker.acceptor.connections if not each.idle]
        began = trio.current_time()
        connection.drain()
        received = 0
        while data := await stream.receive_some():
            received += len(data)
        assert received == 4 * (4 + len(answer))
        assert trio.current_time() - began < 0.1


async def test_a_response_without_a_throttle_time_field_is_throttled_too(
    clock: SteppingClock, autojump_clock: MockClock
) -> None:
    async with broker() as (_, client):
        clock.step_seconds = 1.0
        await client.request(DescribeQuorumRequest(topics=[]), DescribeQuorumResponse)
        clock.step_seconds = 0.0
        assert await seconds_until_answered(client) == pytest.approx(1, abs=0.1)


async def test_the_time_for_which_a_fetch_waits_is_free(clock: SteppingClock, autojump_clock: MockClock) -> None:
    async with broker() as (_, client):
        clock.step_seconds = 0.005  # real time would go on while it waits; this clock goes on by steps alone
        began = trio.current_time()
        response = await request_in(client, 12, fetch_request(max_wait_ms=5000), FetchResponse)
        assert trio.current_time() - began >= 5
        assert response.throttle_time_ms == 0


async def test_a_response_carries_the_longer_throttle_time_of_two_quotas(
    clock: SteppingClock, autojump_clock: MockClock
) -> None:
    async with broker(**{PRODUCER_BYTE_RATE: 10_000}) as (_, client):
        clock.step_seconds = 1.0
        response = await request_in(client, 9, produce_request(200_000), ProduceResponse)
        assert response.throttle_time_ms > 9000
        await trio.sleep(30)
        assert (await request_in(client, 9, produce_request(10), ProduceResponse)).throttle_time_ms == 1000


async def test_decompression_in_a_thread_and_response_encoding_are_counted(
    clock: SteppingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of the real time, as there is a thread."""
    counted: list[float] = []
    monkeypatch.setattr(RateQuota, "count", lambda self, call, amount: counted.append(amount))

    def unpack_long(*args: Any) -> Any:
        clock.now += 5
        return unpack_at_most(*args)

    monkeypatch.setattr(unpacking, "unpack_at_most", unpack_long)
    async with broker() as (_, client):
        clock.step_seconds = 0.01
        await request_in(client, 9, produce_request(2 << 20, codec=compression.GZIP), ProduceResponse)
        completed, encoded, *_ = counted
        assert 500 < completed < 600
        assert 0 < encoded < 100


async def test_others_are_not_counted(clock: SteppingClock, autojump_clock: MockClock) -> None:
    async with broker() as (running, _):
        other = await running.connect()
        other.client_id = "other"  # from its next request on
        await other.request(ListGroupsRequest(), ListGroupsResponse)
        clock.step_seconds = 1.0
        for _ in range(3):
            assert (await other.request(ListGroupsRequest(), ListGroupsResponse)).throttle_time_ms == 0
        assert clock.now == 0


async def test_receiving_the_first_large_frame_after_a_login_is_counted(
    clock: SteppingClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes before a request of the user's is known: on each new connection another one was free."""
    counted: list[float] = []
    monkeypatch.setattr(RateQuota, "count", lambda self, call, amount: counted.append(amount))
    seconds = {"receive": 0.01, "receive_into": 5.0}

    def taking(name: str) -> Any:
        received = getattr(StreamTransport, name)

        async def take(self: StreamTransport, room: Any) -> Any:
            found = await received(self, room)
            clock.now += seconds[name]
            return found

        return take

    for name in seconds:
        monkeypatch.setattr(StreamTransport, name, taking(name))
    async with sasl_broker(tmp_path) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        change = QuotaChange(entity=QuotaEntity(user=ALICE), values={REQUEST_PERCENTAGE: PERCENT})
        await running.broker.services.client_quotas.alter([change])
        client = await running.connect(SecurityProtocol.SASL_PLAINTEXT)
        await log_in(client)
        assert counted == []
        seconds["receive"] = 0.0
        await client.request(produce_request(500_000), ProduceResponse)
        assert counted[0] >= 500
        assert counted[0] % 500 == 0  # without the login's
