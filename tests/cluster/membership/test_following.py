"""Consumers that say their rack read what is in the bucket from a broker in it, whoever leads (KIP-392)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.api.records import fetch
from kafscale.config import Durability
from kafscale.log.partition.partition import Partition
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes as e
from kafscale.wire.batch_header import batches
from kafscale.wire.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafscale.wire.records import ProducerStamp, iterate_records
from tests.cluster.membership.test_several import TOPIC, Machine, create, led_by, produce, until
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_parts
from tests.devtools.fakes.transactional_producer import Producer

HERE, THERE = "zone-a", "zone-b"
COUNT = 3
NEVER_SECONDS = 3600.0


@attrs.define(eq=False)
class Pair:
    """Broker 1 in the one rack leads the only partition; broker 2 is in the other."""

    leader: MemoryBroker
    other: MemoryBroker
    store: FaultyStore
    topic_id: bytes

    async def fetch(
        self,
        running: MemoryBroker,
        offset: int,
        rack: str = THERE,
        epoch: int = -1,
        *,
        committed: bool = False,
        max_wait_ms: int = 10,
    ) -> PartitionData:
        client = await running.connect()
        wanted = FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch
        )
        fetched = FetchTopic(topic=TOPIC, topic_id=self.topic_id, partitions=[wanted])
        request = FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=1, topics=[fetched], rack_id=rack, isolation_level=int(committed)
        )
        (answer,) = (await client.request(request, FetchResponse)).responses[0].partitions
        return answer

    async def produce(self, count: int = COUNT) -> None:
        for number in range(count):
            assert await produce(self.leader, 0, b"%d" % number) == e.NONE

    async def flush(self) -> None:
        await self.leader.broker.services.log.flusher.flush_all()


def values(data: PartitionData) -> list[bytes | None]:
    return [each.value for batch in batches(memoryview(data.records)) for each in iterate_records(batch)]


@asynccontextmanager
async def a_pair(
    durability: Durability, *, partition_count: int = 1, flush_seconds: float = NEVER_SECONDS
) -> AsyncIterator[Pair]:
    store = FaultyStore(memory_parts().store)
    changes = {"flush_interval_seconds": flush_seconds}
    async with (
        Machine(store, 1).run(durability, rack=HERE, **changes) as leader,
        Machine(store, 2).run(durability, rack=THERE, **changes) as other,
    ):
        topic = await create(leader.broker, partition_count)
        await until(lambda: led_by(leader.broker) and other.broker.services.topics.get(TOPIC) is not None)
        yield Pair(leader, other, store, topic.topic_id)


@pytest.fixture
async def pair(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr(fetch, "NEARBY_LEAST_BYTES", 1)
    async with a_pair(Durability.WAL) as made:
        yield made


async def test_a_consumer_is_sent_to_its_rack_for_records_in_the_bucket(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce()
    assert (await pair.fetch(pair.leader, 0)).preferred_read_replica == -1  # it is in no segment yet
    await pair.flush()
    told = await pair.fetch(pair.leader, 0)
    assert (told.error_code, told.preferred_read_replica, told.records or b"") == (e.NONE, 2, b"")
    read = await pair.fetch(pair.other, 0)
    assert values(read) == [b"%d" % number for number in range(COUNT)]
    assert (read.high_watermark, read.last_stable_offset, read.log_start_offset) == (COUNT, COUNT, 0)
    for rack in (HERE, "", "zone-of-nobody"):
        answer = await pair.fetch(pair.leader, 0, rack)
        assert (answer.preferred_read_replica, len(values(answer))) == (-1, COUNT)


async def test_a_follower_sends_consumers_to_the_leader_past_the_end_of_the_bucket(
    autojump_clock: MockClock, pair: Pair
) -> None:
    await pair.produce()
    await pair.flush()
    await pair.fetch(pair.other, 0)
    await pair.produce(1)
    told = await pair.fetch(pair.other, COUNT)
    assert told.error_code == e.NOT_LEADER_OR_FOLLOWER
    assert told.current_leader.leader_id == 1
    assert values(await pair.fetch(pair.leader, COUNT)) == [b"0"]
    await pair.flush()
    assert (await pair.fetch(pair.leader, COUNT)).preferred_read_replica == 2
    assert values(await pair.fetch(pair.other, COUNT)) == [b"0"]


async def test_a_follower_answers_not_leader_to_fetches_without_its_rack(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce()
    await pair.flush()
    for rack in ("", HERE):
        assert (await pair.fetch(pair.other, 0, rack)).error_code == e.NOT_LEADER_OR_FOLLOWER
    epoch = pair.leader.broker.services.log.partitions[pair.topic_id, 0].leader_epoch
    assert (await pair.fetch(pair.other, 0, epoch=epoch)).error_code == e.NONE
    assert (await pair.fetch(pair.other, 0, epoch=epoch - 1)).error_code == e.NOT_LEADER_OR_FOLLOWER


async def test_reading_as_a_follower_tracks_no_producers(autojump_clock: MockClock, pair: Pair) -> None:
    client = await pair.leader.connect()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    producer_id = (await client.request(request, InitProducerIdResponse)).producer_id
    assert await produce(pair.leader, 0, b"x", ProducerStamp(producer_id, 0, 0)) == e.NONE
    await pair.flush()
    assert values(await pair.fetch(pair.other, 0)) == [b"x"]
    counts = [each.broker.services.log.producer_budget.count for each in (pair.leader, pair.other)]
    assert counts == [1, 0]


async def test_looks_at_the_bucket_are_bounded_in_number(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce()
    await pair.flush()
    await pair.fetch(pair.other, 0)
    before_count, began = len(pair.store.calls), trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(pair.fetch, pair.other, COUNT)
    listings = [call for call in pair.store.calls[before_count:] if call.operation == "list" and TOPIC in str(call)]
    assert len(listings) <= 2  # of one look
    assert trio.current_time() - began <= 1.5


async def test_the_start_of_the_log_moves_here_too(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce()
    await pair.flush()
    await pair.fetch(pair.other, 0)
    await pair.leader.broker.services.topics.set_log_start_offset(pair.topic_id, 0, 2)
    await pair.other.broker.services.catch_up()
    assert (await pair.fetch(pair.other, 1)).error_code == e.NOT_LEADER_OR_FOLLOWER
    read = await pair.fetch(pair.other, 2)
    assert (read.error_code, read.log_start_offset) == (e.NONE, 2)


async def test_a_follower_does_not_read_a_segment_without_index(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce(1)
    await pair.flush()
    await pair.produce(1)
    await pair.flush()
    indexes = [info.key async for page in pair.store.list("default/") for info in page if info.key.endswith(".index")]
    await pair.store.delete([max(indexes)])
    assert values(await pair.fetch(pair.other, 0)) == [b"0"]
    assert (await pair.fetch(pair.other, 1)).error_code == e.NOT_LEADER_OR_FOLLOWER
    assert max(indexes) not in [info.key async for page in pair.store.list("default/") for info in page]  # not written


async def test_after_a_move_nothing_of_before_is_served(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce()
    await pair.flush()
    await pair.fetch(pair.other, 0)
    topic = pair.other.broker.services.topics.get(TOPIC)
    mover = pair.other.broker.services.mover
    assert topic is not None
    assert mover is not None
    await mover.move(topic, 0, [2])
    await until(lambda: led_by(pair.other.broker) == [0])
    assert len(values(await pair.fetch(pair.other, 0))) == COUNT  # as the leader now
    told = await pair.fetch(pair.other, 0, HERE)
    assert told.preferred_read_replica == 1
    assert len(values(await pair.fetch(pair.leader, 0, HERE))) == COUNT


async def test_a_store_that_fails_sends_consumers_to_the_leader(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce()
    await pair.flush()
    pair.store.fail(On("list", "*"))
    assert (await pair.fetch(pair.other, 0)).error_code == e.NOT_LEADER_OR_FOLLOWER


async def test_a_follower_drops_a_lookup_made_during_a_leader_change(autojump_clock: MockClock, pair: Pair) -> None:
    await pair.produce()
    await pair.flush()
    services = pair.other.broker.services
    topic = services.topics.get(TOPIC)
    assert topic is not None
    assert services.mover is not None
    assert services.following is not None
    gate = pair.store.hold(On("list", f"*{TOPIC}*", times=1))
    found: list[Partition | None] = []

    async def look() -> None:
        assert services.following is not None
        found.append(await services.following.find(topic, 0, 0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await gate.wait_arrived()
        await services.mover.move(topic, 0, [2])
        await until(lambda: led_by(pair.other.broker) == [0])
        gate.open()
    assert found == [None]


async def test_a_follower_serves_a_transaction_once_its_end_is_in_the_bucket(
    autojump_clock: MockClock, pair: Pair
) -> None:
    await pair.produce(1)
    at = await coordinator_id(pair)
    coordinator = await (pair.leader if at == 1 else pair.other).connect()
    producer = Producer(coordinator, coordinator_id=at)
    assert await producer.init() == e.NONE
    producer.client = await pair.leader.connect()
    await producer.write(0, b"t")
    await pair.flush()
    assert values(await pair.fetch(pair.other, 0, committed=True)) == [b"0"]
    assert (await pair.fetch(pair.leader, 1, committed=True)).preferred_read_replica == -1  # it may not be read yet
    assert (await pair.fetch(pair.other, 1, committed=True)).error_code == e.NOT_LEADER_OR_FOLLOWER
    producer.client = coordinator
    assert await producer.end(committed=True) == e.NONE
    assert (await pair.fetch(pair.leader, 1, committed=True)).preferred_read_replica == -1  # nor does the bucket know
    await pair.flush()
    assert (await pair.fetch(pair.leader, 1, committed=True)).preferred_read_replica == 2
    assert values(await pair.fetch(pair.other, 1, committed=True))[0] == b"t"


async def coordinator_id(pair: Pair) -> int:
    """Where the id "x" is coordinated."""
    found = FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])
    client = await pair.leader.connect()
    while True:
        (answer,) = (await client.request(found, FindCoordinatorResponse)).coordinators
        if answer.error_code == e.NONE:
            return answer.node_id
        await trio.sleep(0.1)
