"""controller_mutation_rate (KIP-599): what is made and deleted is paid for by the partition, and waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from kafscale.api.handling.quotas import EXCEEDED
from kafscale.client.connection import Connection
from kafscale.cluster.registries.client_quotas import CONTROLLER_MUTATION_RATE, QuotaChange, QuotaEntity
from kafscale.cluster.registries.topics import NewTopic
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_PARTITIONS, LEADER_NOT_AVAILABLE, NONE, THROTTLING_QUOTA_EXCEEDED
from kafscale.wire.messages.groups import ListGroupsRequest, ListGroupsResponse
from kafscale.wire.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tests.api.handlers import some_call, some_quotas
from tests.api.one_topic import request_in
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts

RATE = 2.0  # so that 22 partitions may be made at once
BURST = 22


@asynccontextmanager
async def broker() -> AsyncIterator[tuple[MemoryBroker, Connection]]:
    """One on which the client has a quota."""
    async with memory_broker(memory_parts()) as running:
        client = await running.connect()
        change = QuotaChange(entity=QuotaEntity(client_id=client.client_id), values={CONTROLLER_MUTATION_RATE: RATE})
        await running.broker.services.client_quotas.alter([change])
        yield running, client


async def create(
    client: Connection, *counts: int, version: int = 7, begin: int = 0, validate_only: bool = False
) -> tuple[Sequence[int], int]:
    """Create a topic of each of these numbers of partitions. Returns the errors and the time to hold back."""
    wanted = [
        CreatableTopic(name=f"t{number}", num_partitions=count, replication_factor=1)
        for number, count in enumerate(counts, start=begin)
    ]
    request = CreateTopicsRequest(topics=wanted, timeout_ms=1000, validate_only=validate_only)
    response = await request_in(client, version, request, CreateTopicsResponse)
    assert all(topic.error_message == (EXCEEDED if topic.error_code else None) for topic in response.topics)
    return [topic.error_code for topic in response.topics], response.throttle_time_ms


async def delete(client: Connection, *names: str, version: int = 6) -> tuple[Sequence[int], int]:
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names], topic_names=list(names), timeout_ms=1000
    )
    response = await request_in(client, version, request, DeleteTopicsResponse)
    return [each.error_code for each in response.responses], response.throttle_time_ms


async def add(client: Connection, name: str, count: int, *, version: int = 3) -> tuple[int, int]:
    wanted = [CreatePartitionsTopic(name=name, count=count, assignments=None)]
    request = CreatePartitionsRequest(topics=wanted, timeout_ms=1000)
    response = await request_in(client, version, request, CreatePartitionsResponse)
    return response.results[0].error_code, response.throttle_time_ms


async def seconds_until_answered(client: Connection) -> float:
    """How long the connection is not read from."""
    began = trio.current_time()
    await client.request(ListGroupsRequest(), ListGroupsResponse)
    return trio.current_time() - began


async def test_a_burst_of_partitions_is_created_and_later_topics_are_refused_for_a_while(
    autojump_clock: MockClock,
) -> None:
    async with broker() as (running, client):
        assert await create(client, BURST + 10) == ([NONE], 0)
        assert await create(client, 1, 1, begin=1) == ([THROTTLING_QUOTA_EXCEEDED] * 2, pytest.approx(5000, abs=10))
        assert running.broker.services.topics.get("t1") is None
        assert await seconds_until_answered(client) == pytest.approx(5, abs=0.1)
        assert await create(client, 1, 1, begin=1) == ([NONE, THROTTLING_QUOTA_EXCEEDED], pytest.approx(500, abs=110))
        assert 'kafscale_throttle_seconds_count{quota="controller_mutation"} 2' in running.broker.metrics.expose()


async def test_older_versions_apply_the_change_and_throttle_instead_of_refusing(
    autojump_clock: MockClock,
) -> None:
    async with broker() as (_, client):
        assert await create(client, BURST + 10, version=5) == ([NONE], pytest.approx(5000, abs=10))
        assert await seconds_until_answered(client) == pytest.approx(5, abs=0.1)
        assert await add(client, "t0", BURST + 12, version=2) == (NONE, pytest.approx(1000, abs=110))
        assert await seconds_until_answered(client) == pytest.approx(1, abs=0.2)
        assert await delete(client, "t0", version=4) == ([NONE], pytest.approx(17_000, abs=300))


async def test_partitions_that_are_added_and_deleted_are_paid_for_as_well(autojump_clock: MockClock) -> None:
    async with broker() as (running, client):
        names = ["big", "small"]
        await running.broker.services.topics.create([NewTopic(name=name, partition_count=1) for name in names])
        assert await add(client, "big", 1 + BURST + 4) == (NONE, 0)
        assert await add(client, "small", 2) == (THROTTLING_QUOTA_EXCEEDED, pytest.approx(2000, abs=10))
        assert await delete(client, "small") == ([NONE], 0)  # 2 s later
        assert await delete(client, "big", "none") == ([THROTTLING_QUOTA_EXCEEDED, 3], pytest.approx(500, abs=110))
        assert running.broker.services.topics.get("big") is not None


async def test_invalid_requests_cost_no_quota_and_validated_ones_cost_the_full_amount(
    autojump_clock: MockClock,
) -> None:
    async with broker() as (running, client):
        await running.broker.services.topics.create([NewTopic(name="there", partition_count=50)])
        assert await add(client, "there", 49) == (INVALID_PARTITIONS, 0)
        assert await create(client, BURST + 1, validate_only=True) == ([NONE], 0)
        assert await create(client, 1) == ([THROTTLING_QUOTA_EXCEEDED], pytest.approx(500, abs=10))


async def test_another_client_has_a_separate_mutation_quota(autojump_clock: MockClock) -> None:
    async with broker() as (running, client):
        await create(client, 100)
        other = await running.connect()
        other.client_id = "other"
        assert await create(other, 100, 100, begin=1) == ([NONE, NONE], 0)


async def test_auto_created_topics_count_against_the_quota_and_are_created_on_retry(
    autojump_clock: MockClock,
) -> None:
    async with broker() as (running, client):

        async def ask() -> int:
            request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
            response = await client.request(request, MetadataResponse)
            (topic,) = response.topics
            return topic.error_code

        await create(client, BURST + 2)
        assert await ask() == LEADER_NOT_AVAILABLE
        assert running.broker.services.topics.get("new") is None
        await trio.sleep(1.1)
        assert await ask() == NONE


async def test_a_topic_planned_repeatedly_is_charged_once(autojump_clock: MockClock) -> None:
    quotas = some_quotas()
    change = QuotaChange(entity=QuotaEntity(user="ANONYMOUS"), values={CONTROLLER_MUTATION_RATE: RATE})
    await quotas.client_quotas.alter([change])
    charges = quotas.charges(some_call(), strict_since=0)
    for _ in range(5):
        charges.charge("a", BURST)
        charges.charge("b", 2)
        with pytest.raises(KafkaError, match="quota has been exceeded"):
            charges.charge("c", 1)
    assert charges.throttle_ms() == 1000
