"""A hundred partitions are led by another broker, in simulated time: no core is waited for, only the bucket.

Whole brokers on one bucket in memory that takes some milliseconds for an operation. A partition's gap is the time in
which no broker has it open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import attrs
import trio
from trio.testing import MockClock

from bench.cluster.controller import LATENCY_SECONDS
from bench.cluster.jobs import MOVING, Job, Target
from bench.cluster.moving import LONGEST, PARTITIONS, SYSTEMS, WANTED_MS
from bench.figures import percentile
from bench.frames import batch_of
from bench.options import RunOptions
from bench.points import TOPIC, Point
from kafscale.broker_storage import StorageParts
from kafscale.client.connection import Connection
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Durability
from kafscale.config.units import KIB, MIB
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.devtools.fakes.broker_network import BrokerNetwork, RunningBroker
from tests.devtools.fakes.memory_broker import memory_settings
from tests.devtools.fakes.simulated_store import SimulatedStore

BROKERS = 3
POOL_BYTES = 64 * MIB
RECORD = batch_of(Point(batch_bytes=4 * KIB, in_flight=1, partitions=1))
PAUSE_SECONDS = 0.1  # between two records of a partition
LOOK_SECONDS = 0.002
BEFORE_SECONDS = 3.0
LOAD = f"{PARTITIONS} partitions move, simulated, {LATENCY_SECONDS * 1000:.0f} ms an operation"


def jobs() -> Sequence[Job]:
    """Return what is measured."""
    return [Job(group=MOVING, load=LOAD, system=system, measure=partial(measure, system)) for system in SYSTEMS]


TARGETS = [Target(group=MOVING, load=LOAD, system=system, figure=LONGEST, factor=WANTED_MS) for system in SYSTEMS]


def measure(system: str, _options: RunOptions) -> Mapping[str, float]:
    """Move all partitions to broker 1, then to broker 2, while records come."""
    return trio.run(_move, Durability(SYSTEMS[system]), PARTITIONS, clock=MockClock(autojump_threshold=0))


@attrs.define(eq=False)
class _Brokers:
    """Brokers by id, a client of each, and since when each partition has no leader."""

    running: Mapping[int, RunningBroker]
    clients: Mapping[int, Connection]
    partitions: int
    gaps: dict[int, float] = attrs.field(factory=dict, init=False)

    def led_by(self, broker_id: int) -> Sequence[int]:
        rows = self.running[broker_id].broker.services.log.by_name.get(TOPIC, [])
        return [index for index, row in enumerate(rows) if row is not None]

    async def have_led_by(self, broker_id: int) -> None:
        """Return when a broker leads all."""
        wanted = [
            ReassignablePartition(partition_index=index, replicas=[broker_id]) for index in range(self.partitions)
        ]
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=60_000, topics=[ReassignableTopic(name=TOPIC, partitions=wanted)]
        )
        await self.clients[BROKERS].request(request, AlterPartitionReassignmentsResponse)
        while len(self.led_by(broker_id)) < self.partitions:
            await trio.sleep(LOOK_SECONDS)

    async def watch(self) -> None:
        """Note for how long partitions have no leader, until cancelled."""
        led_at = dict.fromkeys(range(self.partitions), trio.current_time())
        while True:
            now = trio.current_time()
            for index in (index for broker_id in self.running for index in self.led_by(broker_id)):
                self.gaps[index] = max(self.gaps.get(index, 0.0), now - led_at[index])
                led_at[index] = now
            await trio.sleep(LOOK_SECONDS)

    async def write(self, index: int) -> None:
        """Send records to the leaders, until cancelled; what is refused is left out."""
        data = PartitionProduceData(index=index, records=memoryview(RECORD))
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
        )
        while True:
            for broker_id, client in self.clients.items():
                if index in self.led_by(broker_id):
                    await client.request(request, ProduceResponse)
                    break
            await trio.sleep(PAUSE_SECONDS)


@asynccontextmanager
async def _brokers(durability: Durability, partitions: int) -> AsyncIterator[_Brokers]:
    bucket, network = SimulatedStore(MemoryStore(), latency_seconds=LATENCY_SECONDS), BrokerNetwork()
    async with AsyncExitStack() as stack:
        running: dict[int, RunningBroker] = {}
        for broker_id in range(1, BROKERS + 1):
            parts = StorageParts(store=bucket, metadata=MemoryMetadataStore(), disk=MemoryDisk())
            settings = memory_settings(
                several_brokers=True, broker_id=broker_id, durability=durability, chunk_pool_bytes=POOL_BYTES
            )
            running[broker_id] = await stack.enter_async_context(network.broker(parts, settings))
        await running[1].broker.services.topics.create([NewTopic(name=TOPIC, partition_count=partitions)])
        while any(broker.broker.services.topics.get(TOPIC) is None for broker in running.values()):
            await trio.sleep(LOOK_SECONDS)
        clients = {broker_id: await broker.connect() for broker_id, broker in running.items()}
        yield _Brokers(running, clients, partitions)


async def _move(durability: Durability, partitions: int) -> Mapping[str, float]:
    async with _brokers(durability, partitions) as brokers:
        await brokers.have_led_by(1)
        async with trio.open_nursery() as nursery:
            for index in range(partitions):
                nursery.start_soon(brokers.write, index)
            await trio.sleep(BEFORE_SECONDS)
            nursery.start_soon(brokers.watch)
            await trio.sleep(PAUSE_SECONDS)
            brokers.gaps.clear()
            began = trio.current_time()
            await brokers.have_led_by(2)
            moved = trio.current_time() - began
            await trio.sleep(PAUSE_SECONDS)
            gaps = sorted(brokers.gaps.values())
            nursery.cancel_scope.cancel()
    return {
        LONGEST: gaps[-1] * 1000,
        "median gap ms": percentile(gaps, 0.5) * 1000,
        "all moved after ms": moved * 1000,
    }
