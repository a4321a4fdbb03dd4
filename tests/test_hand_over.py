"""Producers and consumers go on while the partition that they use is closed and opened again, over and over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import attrs
import pytest
import trio
import trio.testing

from kafscale.client.connection import Connection
from kafscale.cluster.membership.assignment import Leader
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Durability
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes
from kafscale.wire.batch_header import batches
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
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records
from tests.api.assignments import OTHER_ID, TwoBrokers, hand_over, take_over
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts, memory_settings

TOPIC = "orders"
MOVES, STAYS = 0, 1
MOVES_COUNT = 6
STEP_SECONDS = 0.02
NOT_YET = (error_codes.NOT_LEADER_OR_FOLLOWER,)

T = TypeVar("T")


@attrs.define(eq=False)
class Load:
    """Numbers that are produced to a partition one by one, and read back meanwhile."""

    running: MemoryBroker
    index: int
    is_over: bool = False
    has_ended: bool = False  # nothing is on its way any more
    acknowledged: list[int] = attrs.field(factory=list)  # offsets, by number
    read: list[tuple[int, int]] = attrs.field(factory=list)  # offsets and numbers
    refused_count: int = 0

    async def produce(self, *, idempotent: bool) -> None:
        client = await self.running.connect()
        producer_id = -1
        if idempotent:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            producer_id = (await client.request(request, InitProducerIdResponse)).producer_id
        while not self.is_over:
            number = len(self.acknowledged)
            stamp = ProducerStamp(producer_id, 0, number) if idempotent else ProducerStamp()
            offset = await self._until_led(lambda stamp=stamp, number=number: self._send(client, number, stamp))
            self.acknowledged.append(offset)
            await trio.sleep(STEP_SECONDS)
        self.has_ended = True

    async def _send(self, client: Connection, number: int, stamp: ProducerStamp) -> tuple[int, int]:
        batch = build_batch([Record(value=b"%d" % number, timestamp_ms=1_000)], producer=stamp)
        data = PartitionProduceData(index=self.index, records=memoryview(batch))
        topic = TopicProduceData(name=TOPIC, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[topic])
        (answer,) = (await client.request(request, ProduceResponse)).responses[0].partition_responses
        return answer.error_code, answer.base_offset

    async def fetch(self) -> None:
        client = await self.running.connect()
        while not (self.has_ended and len(self.read) == len(self.acknowledged)):
            records = await self._until_led(lambda: self._fetch(client))
            for batch in batches(memoryview(records)):
                self.read += [(each.offset, int(each.value or b"")) for each in iterate_records(batch)]

    async def _fetch(self, client: Connection) -> tuple[int, bytes]:
        wanted = FetchPartition(partition=self.index, fetch_offset=len(self.read), partition_max_bytes=200)
        topic_id = self.running.broker.services.topics.get(TOPIC).topic_id  # type: ignore[union-attr]
        topic = FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic])
        (answer,) = (await client.request(request, FetchResponse)).responses[0].partitions
        return answer.error_code, bytes(answer.records or b"")  # type: ignore[arg-type]

    async def _until_led(self, ask: Callable[[], Awaitable[tuple[int, T]]]) -> T:
        while True:
            error_code, answer = await ask()
            if error_code == error_codes.NONE:
                return answer
            assert error_code in NOT_YET, error_codes.name(error_code)
            self.refused_count += 1
            await trio.sleep(STEP_SECONDS)


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("durability", list(Durability))
async def test_nothing_is_lost_or_stored_twice_while_a_partition_moves_under_load(
    autojump_clock: trio.testing.MockClock, durability: Durability, idempotent: bool
) -> None:
    random = Random(f"{durability} {idempotent}")
    parts = memory_parts()
    store = FaultyStore(parts.store)
    store.delay(On(), 0.03, jitter_seconds=0.03)
    settings = memory_settings(durability=durability, flush_interval_seconds=0.5, segment_merge_bytes=1 << 20)
    async with memory_broker(attrs.evolve(parts, store=store), settings) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=2)])
        assignment = TwoBrokers.of(running.broker)
        moves, stays = Load(running, MOVES), Load(running, STAYS)
        async with trio.open_nursery() as nursery:
            for load in (moves, stays):
                nursery.start_soon(lambda load=load: load.produce(idempotent=idempotent))
                nursery.start_soon(load.fetch)
            for epoch in range(10, 10 + MOVES_COUNT):
                await trio.sleep(random.uniform(0.2, 1.5))
                await hand_over(running.broker, TOPIC, MOVES)
                assignment.others[TOPIC, MOVES] = Leader(OTHER_ID, epoch)
                await trio.sleep(random.uniform(0, 0.1))
                await take_over(running.broker, TOPIC, MOVES, epoch=epoch)
            await trio.sleep(1)
            moves.is_over = stays.is_over = True
        for load in (moves, stays):
            count = len(load.acknowledged)
            assert count > 20
            assert load.acknowledged == list(range(count))
            assert load.read == [(number, number) for number in range(count)]
        assert moves.refused_count > 0
        assert stays.refused_count == 0
        partition = running.broker.services.log.partition_named(TOPIC, MOVES)
        assert partition is not None
        assert [each.epoch for each in partition.epochs][1:] == list(range(10, 10 + MOVES_COUNT))
