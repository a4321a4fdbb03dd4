"""What a broker that follows has served is in the log for good, whatever becomes of the leader."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.buffers import Buffer
from kafscale.config import Durability
from kafscale.errors import KafScaleError
from kafscale.store.base import ForwardingStore
from kafscale.store.memory import MemoryStore
from kafscale.wire import error_codes as e
from kafscale.wire.batch_header import batches
from kafscale.wire.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kafscale.wire.records import iterate_records
from tests.cluster.membership.test_following import THERE
from tests.cluster.membership.test_several import TOPIC, Machine, create, led_by, produce, topic_at, until, values
from tests.cluster.membership.test_streams import crashing, fail_over
from tests.devtools.fakes.memory_broker import MemoryBroker

PUT_MAX_SECONDS = 0.3
SEEDS = (2,)  # one of those by which a reader is found that does not stop at a number that is missing
PARTITIONS = 6


@attrs.define(eq=False, slots=False)
class SlowStore(ForwardingStore):
    """Objects of a stream arrive late and in any order; of who dies meanwhile some do not."""

    random: Random = attrs.field(factory=Random, kw_only=True)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        if key.endswith(".wal"):
            await trio.sleep(self.random.uniform(0, PUT_MAX_SECONDS))
        return await self.store.put_if_absent(key, parts)


@attrs.define(eq=False)
class Follower:
    """A consumer at a broker that follows; `served` is all that it was given of each partition, by offset."""

    running: MemoryBroker
    served: list[list[bytes | None]] = attrs.field(factory=lambda: [[] for _ in range(PARTITIONS)])

    async def run(self) -> None:
        client, topic = await self.running.connect(), await topic_at(self.running.broker)
        while True:
            wanted = [
                FetchPartition(partition=index, fetch_offset=len(served), partition_max_bytes=1 << 20)
                for index, served in enumerate(self.served)
            ]
            fetched = FetchTopic(topic=TOPIC, topic_id=topic.topic_id, partitions=wanted)
            request = FetchRequest(max_wait_ms=200, min_bytes=1, topics=[fetched], rack_id=THERE)
            answers = (await client.request(request, FetchResponse)).responses[0].partitions
            for answer in answers:
                assert answer.error_code in (e.NONE, e.NOT_LEADER_OR_FOLLOWER)
                served = self.served[answer.partition_index]
                for batch in batches(memoryview(answer.records or b"")):
                    served += [each.value for each in iterate_records(batch) if each.offset >= len(served)]
            await trio.sleep(0.01)


async def produce_on(running: MemoryBroker, index: int, name: str, random: Random, acknowledged: list[bytes]) -> None:
    for number in count():
        await trio.sleep(random.uniform(0, PUT_MAX_SECONDS))  # so that objects have some of the partitions only
        value = b"%s-%d" % (name.encode(), number)
        try:
            if await produce(running, index, value) == e.NONE:
                acknowledged.append(value)
        except (KafScaleError, RuntimeError):
            return


@pytest.mark.parametrize("seed", SEEDS)
async def test_records_served_by_a_follower_survive_a_leader_failure(autojump_clock: MockClock, seed: int) -> None:
    random, bucket, acknowledged = Random(seed), MemoryStore(), list[bytes]()
    first = Machine(bucket, 3)
    async with (
        first.run(Durability.S3_WAL, flush_interval_seconds=3600.0) as heir,
        Machine(bucket, 2).run(Durability.S3_WAL, rack=THERE) as other,
        trio.open_nursery() as nursery,
    ):
        follower = Follower(other)
        for life in range(2):
            machine = Machine(SlowStore(bucket, random=random), 1, network=first.network)
            async with crashing(
                machine, flush_seconds=random.choice([0.5, 3600.0]), s3_wal_interval_seconds=0.02
            ) as leader:
                if not life:
                    await create(leader.broker, PARTITIONS)
                    nursery.start_soon(follower.run)
                await lead_all(leader, 1)
                for index in range(PARTITIONS):
                    nursery.start_soon(produce_on, leader, index, f"{life}-{index}", random, acknowledged)
                await trio.sleep(random.uniform(0.5, 2))
            await trio.sleep(random.uniform(0, 0.5))
            await fail_over(heir, 1, 3)
            await until(lambda: led_by(heir.broker) == [*range(PARTITIONS)])
        led = [await values(heir, index) for index in range(PARTITIONS)]
        with trio.move_on_after(60):
            while sum(map(len, follower.served)) < sum(map(len, led)):
                await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert follower.served == led
    assert {*acknowledged} <= {value for each in led for value in each}
    assert len(acknowledged) > 10


async def lead_all(running: MemoryBroker, broker_id: int) -> None:
    topic, mover = await topic_at(running.broker), running.broker.services.mover
    assert mover is not None
    for index in range(PARTITIONS):
        await mover.move(topic, index, [broker_id])
    await until(lambda: led_by(running.broker) == [*range(PARTITIONS)])
