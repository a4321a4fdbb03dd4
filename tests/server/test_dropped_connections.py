"""Idempotent producers with five requests in flight, whose connections break at random: exactly once, and in order.

What is under way when a connection breaks may have been taken or not, and is sent again over the next one, from its
first request on. Meanwhile the disk and the store answer when they like, so that what was begun in one order completes
in another. DROP_SCHEDULES says how many seeds are tried for each mode of durability.
"""

from __future__ import annotations

import os
from functools import partial
from random import Random

import attrs
import pytest
import trio
import trio.testing

from kafscale.api.handling.calls import Peer
from kafscale.broker_storage import StorageParts
from kafscale.client.connection import Connection
from kafscale.config import Address, Durability
from kafscale.log.partition.producers import ProducerStates
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.testing.metadata import MemoryMetadataStore
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_settings
from tests.devtools.fakes.stream_transport import StreamTransport
from tests.devtools.history.history import History, Kind
from tests.devtools.world.producers import IdempotentProducer
from tests.devtools.world.topic_clients import create_topic
from tests.devtools.world.workload import Reader, Topic

SEEDS_COUNT = int(os.environ.get("DROP_SCHEDULES", "2"))
PRODUCERS_COUNT = 3
RUN_SECONDS = 0.5  # of simulated time
SETTLE_SECONDS = 300.0
PEER = Peer(host="192.0.2.1", port=1024, listener_name="PLAINTEXT", reached_host="192.0.2.2", reached_port=9092)


@attrs.define(eq=False, repr=False)
class Rig:
    """One seed's run. `history` is what the clients saw."""

    seed: int
    durability: Durability
    history: History = attrs.field(factory=History, init=False)
    dropped_count: int = attrs.field(default=0, init=False)
    _open: list[StreamTransport] = attrs.field(factory=list, init=False)  # the broker's ends, at most one a producer
    _random: Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._random = Random(self.seed)

    async def run(self) -> None:
        random = self._random
        store = FaultyStore(MemoryStore(), Random(random.random()))
        store.delay(On("put*"), 0.0, jitter_seconds=random.choice([0.0, 0.01, 0.1]))
        disk = MemoryDisk(sync_seconds=random.choice([0.0, 0.002, 0.02]))
        parts = StorageParts(store=store, metadata=MemoryMetadataStore(), disk=disk)
        settings = memory_settings(
            durability=self.durability, default_partitions_count=3, flush_interval_seconds=0.05, segment_bytes=8 << 10
        )
        async with memory_broker(parts, settings) as running:
            topic = await create_topic(running.connect, "orders")
            stopping = trio.Event()
            async with trio.open_nursery() as dropping:
                dropping.start_soon(self._drop, random.choice([0.02, 0.1]))
                with trio.fail_after(RUN_SECONDS + SETTLE_SECONDS):
                    async with trio.open_nursery() as producers:
                        for number in range(PRODUCERS_COUNT):
                            producers.start_soon(self._producer(f"p{number}", topic, running, stopping).run)
                        await trio.sleep(RUN_SECONDS)
                        stopping.set()
                dropping.cancel_scope.cancel()
            await Reader(name="reader", topic=topic, connect=running.connect, history=self.history).read_to_end()

    def _producer(self, name: str, topic: Topic, running: MemoryBroker, stopping: trio.Event) -> IdempotentProducer:
        return IdempotentProducer(
            name=name,
            topic=topic,
            connect=partial(self._connect, running),
            history=self.history,
            random=Random(self._random.random()),
            stopping=stopping,
        )

    async def _connect(self, running: MemoryBroker) -> Connection:
        ours, theirs = trio.testing.memory_stream_pair()
        self._open.append(StreamTransport(theirs))
        running.nursery.start_soon(running.broker.acceptor.serve, self._open[-1], PEER)
        return await Connection.over(ours, Address(PEER.reached_host, PEER.reached_port))

    async def _drop(self, pause_max_seconds: float) -> None:
        """Break one connection after the other, in the middle of whatever it does."""
        while True:
            await trio.sleep(self._random.uniform(0, pause_max_seconds))
            if self._open:
                self.dropped_count += 1
                await trio.aclose_forcefully(self._open.pop(self._random.randrange(len(self._open))))


def run(seed: int, durability: Durability) -> Rig:
    rig = Rig(seed, durability)
    trio.run(rig.run, clock=trio.testing.MockClock(autojump_threshold=0))
    return rig


@pytest.mark.parametrize("durability", list(Durability))
def test_records_are_stored_once_and_in_order_despite_dropped_connections(durability, record_property):
    counts = {"schedules": SEEDS_COUNT, "connections dropped": 0, "records": 0}
    for seed in range(SEEDS_COUNT):
        rig = run(seed, durability)
        assert [str(anomaly) for anomaly in rig.history.anomalies()] == [], f"seed {seed}"
        counts["connections dropped"] += rig.dropped_count
        counts["records"] += rig.history.acknowledged_count
    assert counts["connections dropped"] > 3 * SEEDS_COUNT  # otherwise nothing was tried
    assert counts["records"] > 10 * SEEDS_COUNT
    for name, count in counts.items():
        record_property(name, count)


def test_the_check_detects_duplicates_when_sequence_checks_are_disabled(monkeypatch):
    monkeypatch.setattr(ProducerStates, "check", lambda self, header, is_early: None)
    assert Kind.DUPLICATE in {anomaly.kind for anomaly in run(1, Durability.WAL).history.anomalies()}
