"""Whoever is told no is told so whichever way its Produces take, and nothing of them gets into the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import pytest
import trio.testing

from kafscale.api.handling.calls import Call
from kafscale.api.handling.gate import Gate
from kafscale.api.produce import ShortWay
from kafscale.api.produce.short_way import PlainProduces
from kafscale.client.connection import Connection
from kafscale.cluster.registries.client_quotas import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, QuotaChange, QuotaEntity
from kafscale.cluster.registries.topics import NewTopic
from kafscale.errors import BrokerUnavailable, KafkaError
from kafscale.wire import error_codes
from kafscale.wire.codec import encode
from kafscale.wire.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.records import Record, build_batch
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts

TOPICS = ("open", "closed")
VERSION = 9
WHY = "not for you"


@attrs.define(eq=False, kw_only=True)
class SomeGate(Gate):
    """Closed for a topic, and for one partition of any, which a way that does not name partitions can't be told."""

    closed_topic: str = "closed"
    closed_index: int | None = None
    asked: list[tuple[str, str]] = attrs.field(factory=list)

    def topic_refusal(self, call: Call, request: ProduceRequest, topic: str) -> KafkaError | None:
        if topic == self.closed_topic:
            return KafkaError(error_codes.TOPIC_AUTHORIZATION_FAILED, WHY)
        return super().topic_refusal(call, request, topic)

    def refusals(self, call: Call, request: ProduceRequest, topic: TopicProduceData) -> Mapping[int, KafkaError]:
        self.asked.append(("general", call.client_id))
        found = super().refusals(call, request, topic)
        if self.closed_index is None:
            return found
        return {**found, self.closed_index: KafkaError(error_codes.INVALID_TXN_STATE, WHY)}

    def takes_plain(self, call: Call, request: ProduceRequest, topic: str) -> bool:
        self.asked.append(("plain", call.client_id))
        return self.closed_index is None and super().takes_plain(call, request, topic)


@asynccontextmanager
async def broker() -> AsyncIterator[tuple[MemoryBroker, Connection, SomeGate]]:
    async with memory_broker(memory_parts()) as running:
        services = running.broker.services
        await services.topics.create([NewTopic(name=name, partition_count=2) for name in TOPICS])
        services.gate = gate = SomeGate(quotas=services.quotas)
        client = await running.connect()
        client.client_id = "somebody"
        yield running, client, gate


def produce(topic: str, index: int = 0, *, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=index, records=memoryview(build_batch([Record(value=b"v")])))
    return ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])


async def send(client: Connection, requests: Sequence[ProduceRequest]) -> list[PartitionProduceResponse]:
    """All in one write, so that the broker finds them in one read."""
    call = client.call(ProduceRequest, ProduceResponse, version=VERSION)
    replies = await client.send_many(call, [encode(each, VERSION) for each in requests])
    return [(await reply.wait()).responses[0].partition_responses[0] for reply in replies]


def end_offsets(running: MemoryBroker) -> list[int]:
    return [running.broker.services.log.by_name[name][index].next_offset for name in TOPICS for index in (0, 1)]


@pytest.fixture
def took_short_way(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request has taken the short way."""
    found: list[bool] = []
    take = ShortWay.take

    def spy(self: ShortWay, frame: memoryview):  # type: ignore[no-untyped-def]
        group = take(self, frame)
        found.append(group is not None)
        return group

    monkeypatch.setattr(ShortWay, "take", spy)
    return found


async def test_a_refused_topic_is_refused_on_both_ways_with_the_same_error(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, took_short_way: list[bool]
) -> None:
    requests = [produce(topic, number % 2) for number in range(8) for topic in TOPICS]
    outcomes = []
    for has_short_way in (True, False):
        if not has_short_way:
            monkeypatch.setattr(PlainProduces, "match", lambda self, frame: None)
        took_short_way.clear()
        async with broker() as (running, client, gate):
            gate.closed_topic = "none yet"  # so that requests for either topic are known as plain
            for topic in TOPICS:
                await send(client, [produce(topic)] * 9)
            assert any(took_short_way) == has_short_way
            before = end_offsets(running)
            gate.closed_topic = "closed"
            took_short_way.clear()
            answers = await send(client, requests)
            assert any(took_short_way) == has_short_way
            outcomes.append((answers, [end - begin for end, begin in zip(end_offsets(running), before, strict=True)]))
    assert outcomes[0] == outcomes[1]
    answers, written = outcomes[0]
    assert written == [4, 4, 0, 0]
    refused = (error_codes.TOPIC_AUTHORIZATION_FAILED, WHY, -1)
    assert [(each.error_code, each.error_message, each.base_offset) for each in answers[1::2]] == [refused] * 8
    assert [each.error_code for each in answers[0::2]] == [error_codes.NONE] * 8


async def test_the_short_way_asks_once_for_all_of_a_read_that_are_alike(
    autojump_clock: trio.testing.MockClock, took_short_way: list[bool]
) -> None:
    async with broker() as (_, client, gate):
        await send(client, [produce("open")] * 2)
        for _ in range(3):
            gate.asked.clear()
            took_short_way.clear()
            await send(client, [produce("open", number % 2) for number in range(30)])
            assert took_short_way == [True] * 30
            assert gate.asked == [("plain", "somebody")]


async def test_a_gate_that_refuses_single_partitions_disables_the_short_way(
    autojump_clock: trio.testing.MockClock, took_short_way: list[bool]
) -> None:
    async with broker() as (running, client, gate):
        await send(client, [produce("open")] * 2)
        gate.closed_index = 1
        took_short_way.clear()
        answers = await send(client, [produce("open", 0), produce("open", 1), produce("open", 0)])
        assert [each.error_code for each in answers] == [0, error_codes.INVALID_TXN_STATE, 0]
        assert took_short_way == [False] * 3
        assert end_offsets(running) == [4, 0, 0, 0]


async def test_the_other_partitions_of_a_request_are_written(autojump_clock: trio.testing.MockClock) -> None:
    async with broker() as (running, client, gate):
        gate.closed_index = 1
        request = produce("open", 0)
        request.topic_data[0].partition_data += produce("open", 1).topic_data[0].partition_data
        request.topic_data += produce("closed", 0).topic_data
        response = await client.request(request, ProduceResponse)
        found = [[each.error_code for each in topic.partition_responses] for topic in response.responses]
        assert found == [[0, error_codes.INVALID_TXN_STATE], [error_codes.TOPIC_AUTHORIZATION_FAILED]]
        assert end_offsets(running) == [1, 0, 0, 0]


async def test_a_refused_client_without_replies_is_disconnected(autojump_clock: trio.testing.MockClock) -> None:
    async with broker() as (running, client, _):
        call = client.call(ProduceRequest, ProduceResponse, version=VERSION)
        await client.send_encoded(call, encode(produce("closed", acks=0), VERSION), has_reply=False)
        with pytest.raises(BrokerUnavailable):
            await send(client, [produce("open")])
        assert end_offsets(running) == [0] * 4


@pytest.mark.parametrize("key", [PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE])
async def test_clients_with_a_quota_do_not_use_the_short_way(
    key: str, autojump_clock: trio.testing.MockClock, took_short_way: list[bool]
) -> None:
    async with broker() as (running, client, _):

        async def ways() -> list[bool]:
            took_short_way.clear()
            await send(client, [produce("open")] * 4)
            return took_short_way

        async def have(client_id: str) -> None:
            change = QuotaChange(entity=QuotaEntity(client_id=client_id), values={key: 1e9})
            await running.broker.services.client_quotas.alter([change])

        await send(client, [produce("open")])
        assert await ways() == [True] * 4
        await have("another")
        assert await ways() == [True] * 4
        await have(client.client_id)
        assert await ways() == [False] * 4
