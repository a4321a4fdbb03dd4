"""Quotas: who shares them, the memory they take, and what a whole broker does to clients above them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kafscale.api.handling import quotas
from kafscale.api.handling import quotas as rates
from kafscale.api.handling.quotas import FindLimit, Quotas, RateQuota
from kafscale.client.connection import Connection
from kafscale.cluster.registries.client_quotas import DEFAULT, ClientQuotas, Limit, QuotaChange, QuotaEntity
from kafscale.cluster.registries.topics import NewTopic
from kafscale.metrics import Histogram, Metrics
from kafscale.server.kafka.pauses import PauseReason
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.records import Record, build_batch
from tests.api.handlers import some_call
from tests.api.one_topic import TOPIC, request_in
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts, memory_settings

RATE = 10_000


# ---- who shares what ------------------------------------------------------------------------------------------------


def of_each(value: float) -> FindLimit:
    return lambda call: Limit(value=value, user=call.peer.principal.name, client_id=call.client_id)


async def test_the_clients_that_are_remembered_are_bounded(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(rates, "REMEMBERED_MAX_COUNT", 3)
    quota = RateQuota(limit=of_each(RATE), throttled_seconds=Histogram())
    busy = some_call("busy")
    assert quota.throttle_ms(busy, 11 * RATE) == 1000
    for number in range(10):
        assert quota.throttle_ms(some_call(f"client {number}"), 1) == 0
        assert quota.throttle_ms(some_call("test", f"user {number}"), 1) == 0
        assert quota.throttle_ms(busy, 0) == 1000
    for user, client_id in (("u", "x" * 1000), ("x" * 1000, "c")):
        assert quota.throttle_ms(some_call(client_id, user), 11 * RATE) == 1000
        assert quota.throttle_ms(some_call(client_id * 2, user * 2), 0) == (1000 if user == "u" * 2 else 0)
    assert len(quota._rates) == 3
    assert max(len(user or "") for user, _ in quota._rates._measures) <= quotas.NAME_MAX_LENGTH


async def test_a_nearly_zero_quota_throttles_for_the_maximum_time(autojump_clock: MockClock) -> None:
    """The time was infinite, which is no number of milliseconds: each request of its clients ended its connection."""
    nearly_nothing = 5e-324
    quota = RateQuota(limit=of_each(nearly_nothing), throttled_seconds=Histogram(), throttle_max_ms=1_000)
    assert quota.throttle_ms(some_call(), 1) == 1_000
    found = await quotas_of(QuotaEntity(user=DEFAULT, client_id=DEFAULT), controller_mutation_rate=nearly_nothing)
    charges = found.charges(some_call(), strict_since=1)
    charges.charge("t", 1)
    assert charges.throttle_ms() == quotas.THROTTLE_MAX_MS


async def test_the_buckets_that_are_remembered_are_bounded(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(rates, "REMEMBERED_MAX_COUNT", 3)
    quotas = await quotas_of(QuotaEntity(user=DEFAULT, client_id=DEFAULT), controller_mutation_rate=1)
    for number in range(100):
        charges = quotas.charges(some_call(f"client {number}", f"user {number}"), strict_since=0)
        charges.charge("topic", 1)
    assert len(quotas._mutations) == 3


async def quotas_of(*entities: QuotaEntity, **values: float) -> Quotas:
    client_quotas = ClientQuotas(MemoryMetadataStore())
    found = Quotas(settings=memory_settings(), client_quotas=client_quotas, metrics=Metrics())
    await client_quotas.alter([QuotaChange(entity=entity, values=values) for entity in entities])
    return found


@pytest.mark.parametrize(
    ("entity", "sharing"),
    [
        (QuotaEntity(user="alice"), {("alice", "a"), ("alice", "b")}),
        (QuotaEntity(user=DEFAULT), {("alice", "a"), ("alice", "b")}),
        (QuotaEntity(client_id="a"), {("alice", "a"), ("bob", "a")}),
        (QuotaEntity(client_id=DEFAULT), {("alice", "a"), ("bob", "a")}),
        (QuotaEntity(user="alice", client_id="a"), {("alice", "a")}),
        (QuotaEntity(user=DEFAULT, client_id=DEFAULT), {("alice", "a")}),
    ],
)
async def test_clients_matching_one_quota_entity_share_it(
    entity: QuotaEntity, sharing: set[tuple[str, str]], autojump_clock: MockClock
) -> None:
    producer = (await quotas_of(entity, producer_byte_rate=RATE)).producer
    assert producer is not None
    assert producer.throttle_ms(some_call("a", "alice"), 11 * RATE) == 1000
    everybody = {(user, client_id) for user in ("alice", "bob") for client_id in ("a", "b")}
    assert {each for each in everybody if producer.throttle_ms(some_call(each[1], each[0]), 0)} == sharing


# ---- a broker -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def broker_with(**options: Any) -> AsyncIterator[MemoryBroker]:
    async with memory_broker(memory_parts(), memory_settings(**options)) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        yield running


def produce_request(size_bytes: int) -> ProduceRequest:
    records = memoryview(build_batch([Record(value=bytes(size_bytes))]))
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=records)])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])


async def produce(client: Connection, size_bytes: int) -> int:
    """The time for which the client is to hold back, in milliseconds."""
    return (await client.request(produce_request(size_bytes), ProduceResponse)).throttle_time_ms


async def fetch(client: Connection, offset: int, *, max_bytes: int = 1 << 20) -> FetchResponse:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=[FetchTopic(topic=TOPIC, partitions=[wanted])]
    )
    return await request_in(client, 12, request, FetchResponse)


async def end_offset(client: Connection) -> int:
    wanted = ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    response = await client.request(ListOffsetsRequest(topics=[wanted]), ListOffsetsResponse)
    return response.topics[0].partitions[0].offset


async def test_a_producer_above_its_rate_is_answered_at_once_and_then_not_read_from(autojump_clock: MockClock) -> None:
    async with broker_with(producer_byte_rate=RATE) as running:
        client = await running.connect()
        started = trio.current_time()
        assert await produce(client, 9 * RATE) == 0
        throttle_ms = await produce(client, 4 * RATE)
        assert throttle_ms == pytest.approx(3000, abs=100)
        assert trio.current_time() - started < 0.1
        muted_at = trio.current_time()
        await end_offset(client)
        assert trio.current_time() - muted_at == pytest.approx(throttle_ms / 1000, abs=0.1)
        assert running.broker.acceptor.metrics.pauses[PauseReason.QUOTA].value == 1
        text = running.broker.metrics.expose()
        assert 'kafscale_throttle_seconds_count{quota="producer"} 1' in text
        assert 'kafscale_throttle_seconds_count{quota="consumer"}' not in text


async def test_requests_that_were_sent_together_wait_for_their_turn(autojump_clock: MockClock) -> None:
    async with broker_with(producer_byte_rate=RATE) as running:
        client = await running.connect()
        replies = [await client.send(produce_request(8_000), ProduceResponse) for _ in range(30)]
        started = trio.current_time()
        times = []
        for reply in replies:
            await reply.wait()
            times.append(trio.current_time() - started)
        assert times[11] < 0.1  # ten seconds' worth
        assert times[-1] == pytest.approx(30 * 8_000 / RATE - 11, abs=2.5)
        assert await end_offset(client) == 30


async def test_the_connections_of_a_client_id_share_its_rate_and_others_have_their_own(
    autojump_clock: MockClock,
) -> None:
    async with broker_with(producer_byte_rate=RATE) as running:
        first, second, other = [await running.connect() for _ in range(3)]
        other.client_id = "other"
        assert await produce(first, 9 * RATE) == 0
        assert await produce(second, 4 * RATE) > 0
        assert await produce(other, 9 * RATE) == 0


async def test_a_consumer_above_its_quota_gets_its_records_and_is_throttled_afterwards(
    autojump_clock: MockClock,
) -> None:
    async with broker_with(consumer_byte_rate=RATE) as running:
        client = await running.connect()
        for _ in range(6):
            assert await produce(client, 4 * RATE) == 0
        offset, throttled_ms, started = 0, 0, trio.current_time()
        while offset < 6:
            response = await fetch(client, offset, max_bytes=4 * RATE + 200)
            assert response.responses[0].partitions[0].records
            throttled_ms += response.throttle_time_ms
            offset += 1
        assert throttled_ms >= 14_000 - 1_500
        assert trio.current_time() - started >= 9


async def test_a_fetch_size_is_capped_so_that_it_does_not_exceed_the_quota_alone(autojump_clock: MockClock) -> None:
    async with broker_with(consumer_byte_rate=RATE) as running:
        client = await running.connect()
        for _ in range(30):
            await produce(client, RATE)
        response = await fetch(client, 0)
        records = response.responses[0].partitions[0].records
        assert records is not None
        assert 8 * RATE < len(records) <= 10 * RATE
        assert response.throttle_time_ms == 0


@pytest.mark.parametrize("pool_waits_seconds", [1, 9])
async def test_a_connection_paused_by_pool_and_quota_resumes_after_both_end(
    pool_waits_seconds: float, autojump_clock: MockClock
) -> None:
    async with broker_with(producer_byte_rate=RATE) as running:
        client = await running.connect()
        await produce(client, 9 * RATE)
        await running.broker.services.log.flusher.flush_all()
        pool = running.broker.services.log.pool
        held = await pool.acquire(pool.size_bytes)
        started = trio.current_time()
        throttled = await client.send(produce_request(4 * RATE), ProduceResponse)
        await trio.sleep(pool_waits_seconds)
        (connection,) = running.broker.acceptor.connections
        assert connection.pauses.reasons == {PauseReason.POOL, PauseReason.QUOTA}
        held.release()
        throttle_ms = (await throttled.wait()).throttle_time_ms
        assert trio.current_time() - started == pytest.approx(pool_waits_seconds, abs=0.1)
        await end_offset(client)
        longest_seconds = max(throttle_ms / 1000, pool_waits_seconds)
        assert trio.current_time() - started == pytest.approx(longest_seconds, abs=0.1)
        assert not connection.pauses.reasons
