"""Idempotent producers with five batches in flight, while connections drop, single batches are refused, and what is
written completes in any order: every record is there exactly once, and in the order in which it was sent.

The broker lives on, so what an old connection had sent meets what the new one sends again. FAULTS_SEED chooses the
first seed; it is printed when one fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from random import Random

import attrs
import confluent_kafka
import pytest
import trio

from kafscale.client.connection import Connection
from kafscale.config import Address, Durability
from kafscale.store.memory import MemoryStore
from kafscale.testing.background_broker import BackgroundBroker, running_broker
from kafscale.testing.broker_faults import RequestFault
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.error_codes import NOT_LEADER_OR_FOLLOWER
from tests.devtools.external.clients import DEADLINE_SECONDS, Acknowledged
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts, memory_settings
from tests.devtools.history.history import History
from tests.devtools.world.determinism import run_seeded
from tests.devtools.world.producers import IdempotentProducer
from tests.devtools.world.topic_clients import create_topic
from tests.devtools.world.workload import Reader, Topic
from tests.faults.ordeal import chosen_seed

FIRST_SEED = int(os.environ.get("FAULTS_SEED", "1"))
SEEDS_COUNT = 5
PRODUCER_COUNT = 3
PARTITION_COUNT = 3
DROP_COUNT = 40
DROP_EVERY_MAX_SECONDS = 0.1
LIBRDKAFKA_DROP_COUNT = 12  # in real time
ADDRESS = Address("192.0.2.2", 9092)


# ---- in simulated time ----------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class BreakingStream(trio.abc.Stream):
    """A client's end of a connection that can break, perhaps in the middle of what is being sent."""

    inner: trio.abc.Stream
    random: Random
    is_breaking: bool = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_breaking:
            await self.inner.send_all(data)
            return
        await self.inner.send_all(memoryview(data)[: self.random.randrange(len(data))])
        await self._break()

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self.inner.receive_some(max_bytes)
        if self.is_breaking:
            await self._break()
        return data

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def _break(self) -> None:
        await self.inner.aclose()
        raise trio.BrokenResourceError("the connection has dropped")


@attrs.define(eq=False)
class Run:
    """One seed: the clients, and what makes it hard for them."""

    seed: int
    durability: Durability
    history: History = attrs.field(factory=History, init=False)
    broken_count: int = attrs.field(default=0, init=False)
    _random: Random = attrs.field(init=False)
    _broker: MemoryBroker = attrs.field(init=False)
    _streams: list[BreakingStream] = attrs.field(factory=list, init=False)
    _refusals: list[RequestFault] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._random = Random(self.seed)

    async def run(self) -> None:
        disk, bucket = MemoryDisk(), FaultyStore(MemoryStore(), Random(self._random.random()))
        bucket.delay(On("put*"), 0.0, jitter_seconds=0.1)
        bucket.delay(On("put*"), 0.0, jitter_seconds=0.1, after_effect=True)
        parts = attrs.evolve(memory_parts(), disk=disk, store=bucket)
        settings = memory_settings(
            durability=self.durability,
            default_partitions_count=PARTITION_COUNT,
            chunk_pool_bytes=2 << 20,
            flush_interval_seconds=0.1,
            s3_wal_bytes=64 << 10,
        )
        async with memory_broker(parts, settings, request_faults=self._refusals) as self._broker:
            topic = await create_topic(self._connect, "orders")
            stopping = trio.Event()
            async with trio.open_nursery() as troubles:
                troubles.start_soon(self._slow_disk, disk)
                troubles.start_soon(self._short_memory)
                with trio.fail_after(300):
                    async with trio.open_nursery() as writers:
                        for number in range(PRODUCER_COUNT):
                            writers.start_soon(self._producer(f"p{number}", topic, stopping).run)
                        await self._drop_connections()
                        stopping.set()
                troubles.cancel_scope.cancel()
            await Reader(name="reader", topic=topic, connect=self._connect, history=self.history).read_to_end()

    async def _connect(self) -> Connection:
        stream = BreakingStream(self._broker.open_stream(), Random(self._random.random()))
        self._streams.append(stream)
        return await Connection.over(stream, ADDRESS)

    def _producer(self, name: str, topic: Topic, stopping: trio.Event) -> IdempotentProducer:
        return IdempotentProducer(
            name=name,
            topic=topic,
            connect=self._connect,
            history=self.history,
            random=Random(self._random.random()),
            stopping=stopping,
            checks_behind=False,  # `_refusals` has single batches refused, which no broker does
        )

    async def _drop_connections(self) -> None:
        for _ in range(DROP_COUNT):
            await trio.sleep(self._random.uniform(0, DROP_EVERY_MAX_SECONDS))
            for stream in self._streams[-PRODUCER_COUNT:]:
                stream.is_breaking |= self._random.random() < 0.5
            if self._random.random() < 0.5:  # one batch, while those behind it are on their way
                self._refusals.append(RequestFault(api="Produce", times=1, error_code=NOT_LEADER_OR_FOLLOWER))

    async def _slow_disk(self, disk: MemoryDisk) -> None:
        while True:
            disk.sync_seconds = self._random.choice([0.0, 0.002, 0.05])
            await trio.sleep(self._random.uniform(0, 0.1))

    async def _short_memory(self) -> None:
        """Now and then nothing is left of the pool, so that an old connection's batches wait while new ones come."""
        pool = self._broker.broker.services.log.pool
        while True:
            await trio.sleep(self._random.uniform(0, 0.3))
            lease = await pool.acquire(pool.size_bytes)
            await trio.sleep(self._random.uniform(0, 0.1))
            lease.release()


@pytest.mark.parametrize("durability", Durability)
def test_five_in_flight_over_dropping_connections_write_once_and_in_order(durability: Durability) -> None:
    acknowledged_count = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_COUNT):
        run = Run(seed, durability)
        run_seeded(seed, run.run)
        assert [*map(str, run.history.anomalies())] == [], f"FAULTS_SEED={seed}"
        acknowledged_count += run.history.acknowledged_count
    assert acknowledged_count > 5 * SEEDS_COUNT * DROP_COUNT  # otherwise nothing was tried


# ---- librdkafka -----------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Librdkafka:
    """An idempotent producer of librdkafka, and what became of what it sent."""

    broker: BackgroundBroker
    topic: str
    acknowledged: Acknowledged = attrs.field(factory=Acknowledged, init=False)
    failures: list[str] = attrs.field(factory=list, init=False)
    sent_count: int = attrs.field(default=0, init=False)
    _producer: confluent_kafka.Producer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 5,
                "batch.num.messages": 10,
                "linger.ms": 1,
                "retry.backoff.ms": 10,
                "reconnect.backoff.ms": 5,
                "reconnect.backoff.max.ms": 20,
                "log_level": 0,
            }
        )

    def send_while(self, condition: Callable[[], bool]) -> None:
        while condition():
            if len(self._producer) < 1000:
                for _ in range(10):
                    partition, value = self.sent_count % PARTITION_COUNT, b"%d" % self.sent_count
                    self._producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
                    self.sent_count += 1
            self._producer.poll(0.005)
        assert self._producer.flush(DEADLINE_SECONDS) == 0

    def sent_to(self, partition: int) -> list[bytes]:
        """In order."""
        return [b"%d" % number for number in range(partition, self.sent_count, PARTITION_COUNT)]

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged.add(message.partition(), message.value(), message.offset())


@pytest.mark.parametrize("durability", ["s3-wal", pytest.param("wal", marks=pytest.mark.faults)])
def test_librdkafka_over_dropping_connections_writes_once_and_in_order(durability: str) -> None:
    random = Random(chosen_seed())
    with running_broker(durability=durability, flush_interval="50ms") as broker:
        broker.create_topic("orders", partitions=PARTITION_COUNT)
        broker.faults.delay_store(0.0, "put*", jitter_seconds=0.02)
        client = Librdkafka(broker, "orders")
        drops = [broker.faults.drop_connections, partial(broker.faults.lose_reply, "Produce")]
        dropped_count = 0

        def drop() -> bool:
            nonlocal dropped_count
            if random.random() < 0.1:
                random.choice(drops)()
                dropped_count += 1
            return dropped_count < LIBRDKAFKA_DROP_COUNT

        client.send_while(drop)
        assert client.failures == []
        assert client.acknowledged.count == client.sent_count > 10 * LIBRDKAFKA_DROP_COUNT
        stored = [(each.partition, each.offset, each.value) for each in broker.records("orders")]
        client.acknowledged.check(
            stored,
            lambda partition: [b"%d" % number for number in range(partition, client.sent_count, PARTITION_COUNT)],
        )
