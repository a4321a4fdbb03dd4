"""Compaction, merging and deletion at random moments, over a store that fails and a broker that is killed.

What must hold at every look: the table that is built from the topic is the one that its producer meant, no record comes
twice or moves, and a consumer gets to the end. What is killed in the middle of a write may take effect later.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs
import pytest
import trio

from kafscale.buffers import Buffer
from kafscale.errors import PreconditionFailed
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.records import ProducerStamp
from tests.devtools.fakes.memory_log import MemoryLog, memory_log, topic_spec
from tests.devtools.world.determinism import run_seeded
from tests.log.keyed_log import append_pairs, fetched, table_of

SEEDS = range(12)
LIVES_COUNT = 5
STEPS_COUNT = 25
KEYS = "abcdefghijklmnop"
TARGET_BYTES = 300
CONFIG = {
    "cleanup_policy": ("compact",),
    "min_cleanable_dirty_ratio": 0.0,
    "delete_retention_ms": 500,
    "file_delete_delay_ms": 2_000,
    "producer_id_expiration_ms": 1 << 50,
}


class RemoteStore(MemoryStore):
    """A write goes on when whoever asked for it is killed: it may take effect after the next start has listed."""

    nursery: trio.Nursery
    random: random.Random

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        data, done, failures = [bytes(part) for part in parts], trio.Event(), []

        async def arrive() -> None:
            await trio.sleep(self.random.uniform(0, 0.5))
            try:
                await MemoryStore.put_if_absent(self, key, data)
            except PreconditionFailed as exc:
                failures.append(exc)
            done.set()

        self.nursery.start_soon(arrive)
        await done.wait()
        if failures:
            raise failures[0]
        return (await self.head(key)).etag


@attrs.define(eq=False)
class World:
    """What was appended, and everything that outlives a broker."""

    random: random.Random
    store: RemoteStore
    disk: MemoryDisk = attrs.field(factory=MemoryDisk)
    appended: dict[int, str] = attrs.field(factory=dict)
    sequence: int = 0
    compactions_count: float = 0

    async def live(self, epoch: int) -> None:
        """One life of a broker, which ends as a kill does."""
        faulty = FaultyStore(self.store)
        topics = [topic_spec(**CONFIG)]
        async with (
            memory_log(faulty, self.disk, topics=topics, leader_epoch=epoch, segment_merge_bytes=TARGET_BYTES) as log,
            trio.open_nursery() as nursery,
        ):
            partitions = list(log.log.partitions.values())
            compactor = log.log.compactor
            compactor.interval_seconds = 0.3
            compactor.map_bytes = self.random.choice([24 * 6, 1 << 20])
            nursery.start_soon(log.log.deleter.run)
            nursery.start_soon(log.log.merger.run, partitions)
            nursery.start_soon(compactor.run, lambda: partitions)
            await self.check(log, faulty)
            for _ in range(STEPS_COUNT):
                await self.step(log, faulty)
            await self.check(log, faulty)
            self.compactions_count += compactor.rounds_count.value
            self.disk = self.disk.crash()
            nursery.cancel_scope.cancel()

    async def step(self, log: MemoryLog, faulty: FaultyStore) -> None:
        """Something happens."""
        match self.random.randrange(8):
            case 0 | 1 | 2 | 3:
                await self.append(log)
            case 4:
                with trio.move_on_after(1):
                    await log.log.flusher.flush_all()
            case 5:
                await trio.sleep(self.random.uniform(0, 3))
            case 6:
                await self.check(log, faulty)
            case _:
                act = self.random.choice([faulty.fail, faulty.lose_reply])
                act(On("*", times=1, probability=0.3))

    async def append(self, log: MemoryLog) -> None:
        texts = [
            key if self.random.random() < 0.3 else f"{key}={self.random.randrange(1000)}"
            for key in self.random.choices(KEYS, k=self.random.randint(1, 4))
        ]
        producer = ProducerStamp(7, 0, self.sequence)
        offset = await append_pairs(log.partition(), *texts, producer=producer, codec=self.random.randrange(5))
        self.sequence += len(texts)
        self.appended.update(enumerate(texts, start=offset))

    async def check(self, log: MemoryLog, faulty: FaultyStore) -> None:
        faulty.heal()
        with trio.fail_after(1000):
            records = await fetched(log, max_bytes=self.random.choice([1, 200, 1 << 20]))
        assert records.items() <= self.appended.items()
        assert table_of(records) == table_of(self.appended)


async def lives(seed: int) -> World:
    async with trio.open_nursery() as nursery:
        rng = random.Random(seed)
        store = RemoteStore()
        store.nursery, store.random = nursery, rng
        world = World(rng, store)
        for epoch in range(1, LIVES_COUNT + 1):
            await world.live(epoch)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_no_moment_of_a_kill_changes_the_table(seed, monkeypatch):
    monkeypatch.setattr("kafscale.log.rewrite.compaction.FAILED_PAUSE_SECONDS", 1.0)
    world = run_seeded(seed, lives, seed)
    assert world.compactions_count > 0
