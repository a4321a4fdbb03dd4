"""Merges, retention, uploads, deletions, the collection of orphans, crashes and takeovers in any order.

What must hold: no object goes that the broker reads, or that a restart at that moment would read; every record that was
acknowledged and is not below the log start is read at its offset at all times, also while a broker that has been
superseded goes on; and in the end nothing is left over in the bucket but what a start might read.

An operation of the store takes effect some time after it was begun, whatever has become of who began it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio

from kafscale.config import Durability
from kafscale.errors import Fenced, KafkaError, NotFound, PreconditionFailed, StorageFailed, StoreError
from kafscale.formats.manifest import Manifest, Segment, segment_of, without_covered
from kafscale.formats.segment import decode_footer
from kafscale.log.bucket.deletion import OrphanCollector
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey, parse_segment_key
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore
from tests.devtools.fakes.memory_log import MemoryLog, memory_log, topic_spec
from tests.devtools.world.determinism import run_seeded

SEEDS = [*range(9), 36]  # 36: goes wrong if a superseded broker lets go of what it has merged
LIVES_COUNT = 6
GRACE_SECONDS = 10.0
SETTINGS = {
    "segment_bytes": 1024,
    "segment_merge_bytes": 4096,
    "flush_interval_seconds": 0.3,
    "chunk_pool_bytes": 8 << 20,
}


def now_ms() -> int:
    return 1_700_000_000_000 + round(trio.current_time() * 1000)


@attrs.define(eq=False, kw_only=True)
class Bucket(MemoryStore):
    """A bucket behind a network."""

    nursery: trio.Nursery
    random: random.Random
    latency_seconds: float
    on_deleted: Callable[[SegmentKey], None]

    async def put_if_absent(self, key, parts):
        data = [bytes(part) for part in parts]
        return await self._remotely(lambda: MemoryStore.put_if_absent(self, key, data))

    async def put(self, key, parts):
        data = [bytes(part) for part in parts]
        return await self._remotely(lambda: MemoryStore.put(self, key, data))

    async def delete(self, keys):
        async def effect() -> None:
            await MemoryStore.delete(self, keys)
            for key in keys:
                self.on_deleted(parse_segment_key(key))

        await self._remotely(effect)

    async def _remotely(self, effect: Callable[[], Awaitable[Any]]) -> Any:
        done, results, failures = trio.Event(), [], []

        async def arrive() -> None:
            await trio.sleep(self.random.uniform(0, self.latency_seconds))
            try:
                results.append(await effect())
            except PreconditionFailed as exc:
                failures.append(exc)
            done.set()

        self.nursery.start_soon(arrive)
        await done.wait()
        await trio.sleep(self.random.uniform(0, 0.1))
        if failures:
            raise failures[0]
        return results[0]

    def segments(self) -> list[Segment]:
        """What a restart at this moment would read."""
        found = []
        for name in self._keys:
            key = parse_segment_key(name)
            if key.kind == "kfs":
                found.append(
                    segment_of(key, decode_footer(bytes(self._objects[name].content.read(0, sys.maxsize)), name))
                )
        return list(without_covered(found))


@attrs.define(eq=False)
class Life:
    """One broker, and a way to end its clients, or all of it."""

    log: MemoryLog
    disk: MemoryDisk
    store: FaultyStore
    clients: trio.CancelScope
    everything: trio.CancelScope
    ended: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class World:
    """What outlives a broker, and what must hold."""

    random: random.Random
    nursery: trio.Nursery
    durability: Durability
    delay_ms: int
    latency_seconds: float
    disk: MemoryDisk = attrs.field(factory=lambda: MemoryDisk(sync_seconds=0.01))
    bucket: Bucket = attrs.field(init=False)
    acknowledged: dict[int, bytes] = attrs.field(factory=dict)
    known: dict[int, bytes] = attrs.field(factory=dict)
    log_start: int = 0
    flushed: int = 0
    epoch: int = 0
    leading: MemoryLog | None = None
    count: int = 0
    merges_count: float = 0
    superseded_count: int = 0

    def __attrs_post_init__(self) -> None:
        self.bucket = Bucket(
            nursery=self.nursery,
            random=self.random,
            latency_seconds=self.latency_seconds,
            on_deleted=self.check_deletion,
            clock_ms=now_ms,
        )

    # ---- what must hold -------------------------------------------------------------------------------------------

    def check_deletion(self, key: SegmentKey) -> None:
        if key.kind == "kfs":
            assert key not in self.read_keys(), f"{key.key} is read"
            self.check_bucket()

    def read_keys(self) -> set[SegmentKey]:
        segments = [] if self.leading is None else self.leading.partition().manifest.segments
        return {each.key for each in segments if each.last_offset >= self.log_start}

    def check_bucket(self) -> None:
        """A restart would find all that has been flushed."""
        manifest, offset = Manifest(self.bucket.segments()), self.log_start
        while offset < self.flushed:
            segment = manifest.find(offset)
            assert segment is not None
            assert segment.base_offset <= offset, f"{offset} is missing"
            offset = segment.last_offset + 1

    async def read(self, log: MemoryLog, offset: int) -> None:
        partition = log.partition()
        end = partition.high_watermark
        try:
            records = await log.records(partition, offset, max_bytes=self.random.choice([1, 300, 1 << 20]))
        except KafkaError:
            assert offset < self.log_start
            return
        for record in records:
            assert self.known.setdefault(record.offset, record.value) == record.value
        offsets = [record.offset for record in records if record.offset >= self.log_start]
        first = max(offset, self.log_start)
        assert offsets == list(range(first, max(first, end, records[-1].offset + 1 if records else 0)))

    async def check(self, log: MemoryLog) -> None:
        """All is there, and nothing twice."""
        await self.read(log, self.log_start)
        assert log.partition().high_watermark > max(self.acknowledged, default=-1)
        for offset, value in self.acknowledged.items():
            assert self.known.setdefault(offset, value) == value
        assert len(set(self.known.values())) == len(self.known)

    # ---- one life -------------------------------------------------------------------------------------------------

    async def live(self, *, task_status: trio.TaskStatus[Life]) -> None:
        self.epoch += 1
        epoch, self.leading = self.epoch, None
        store = FaultyStore(self.bucket, self.random)

        async def check_lead() -> None:
            await trio.sleep(self.random.uniform(0, 0.1))
            current = self.epoch
            await trio.sleep(self.random.uniform(0, 0.1))
            if current > epoch:
                raise Fenced("superseded")

        topic = topic_spec(file_delete_delay_ms=self.delay_ms, log_start_offsets={0: self.log_start})
        settings = {"topics": [topic], "leader_epoch": epoch, "durability": self.durability, **SETTINGS}
        try:
            async with memory_log(store, self.disk, **settings) as log, trio.open_nursery() as background:
                log.log.merger.rewriter.check_lead = check_lead
                self.leading = log
                assert {key.key for key in self.read_keys()} <= set(self.bucket._objects)
                await self.check(log)
                store.unreliable(self.random.choice([0.0, 0.0, 0.05]), delay_seconds=0.05)
                background.start_soon(self.merge, log)
                background.start_soon(log.log.deleter.run)
                background.start_soon(self.collect, log)
                clients = trio.CancelScope()
                life = Life(log, self.disk, store, clients, background.cancel_scope)
                task_status.started(life)
                with clients:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self.produce, log)
                        nursery.start_soon(self.consume, log)
                        nursery.start_soon(self.delete_records, log)
        except* Fenced:
            self.superseded_count += 1
        self.merges_count += log.log.merger.merges_count.value
        life.ended.set()

    async def merge(self, log: MemoryLog) -> None:
        await trio.sleep(self.random.choice([0, 30]))
        await log.log.merger.run(list(log.log.partitions.values()))

    async def collect(self, log: MemoryLog) -> None:
        async def ignore(topic_ids) -> None:
            await trio.lowlevel.checkpoint()

        collector = OrphanCollector(
            store=log.store,
            namespace=log.log.namespace,
            find_partition=log.log.partition,
            deleted_topics=frozenset,
            on_gone=ignore,
            interval_seconds=3600,
            grace_seconds=GRACE_SECONDS,
            now_ms=now_ms,
        )
        while True:
            await trio.sleep(self.random.uniform(0, 2 * GRACE_SECONDS))
            await collector.collect()

    async def produce(self, log: MemoryLog) -> None:
        partition = log.partition()
        while True:
            await trio.sleep(self.random.expovariate(2))
            values = [b"%d." % (self.count + n) + bytes(self.random.randint(0, 60)) for n in range(3)]
            self.count += len(values)
            batch, round = log.append_nowait(partition, *values)
            try:
                await round.wait()
            except StorageFailed:
                continue
            for offset, value in enumerate(values, start=batch.base_offset):
                assert self.known.setdefault(offset, value) == value
                self.acknowledged[offset] = value
            self.flushed = max(self.flushed, partition.flushed_offset)

    async def consume(self, log: MemoryLog) -> None:
        while True:
            await trio.sleep(self.random.expovariate(2))
            try:
                await self.read(log, self.random.randint(self.log_start, log.partition().high_watermark))
            except NotFound:
                raise
            except StoreError:
                continue

    async def delete_records(self, log: MemoryLog) -> None:
        """The log start is durable before a segment goes, as retention has it."""
        partition = log.partition()
        while True:
            await trio.sleep(self.random.expovariate(0.2))
            self.log_start = self.random.randint(self.log_start, partition.high_watermark)
            await trio.sleep(self.random.uniform(0, 0.1))
            partition.delete_records(self.log_start)
            log.log.deleter.drop(partition.drop_deleted(), self.delay_ms)

    # ---- all lives ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        for _ in range(LIVES_COUNT):
            life = await self.nursery.start(self.live)
            await trio.sleep(self.random.choice([2, 30, 100]) * self.random.random())
            if self.random.random() < 0.4:
                await self.supersede(life)
            else:
                self.disk = life.disk.crash(rng=self.random)
                life.everything.cancel()
                await life.ended.wait()
        await self.end()

    async def settle(self, life: Life) -> None:
        """Nothing more comes, and all that has come is in the bucket."""
        life.clients.cancel()
        life.store.heal()
        partition = life.log.partition()
        while partition.flushed_offset < partition.next_offset:
            await trio.sleep(0.1)
            await life.log.log.flusher.flush_all()
        self.flushed = partition.flushed_offset

    async def supersede(self, life: Life) -> None:
        """Another broker starts, with another disk, and does not wait until this one has noticed."""
        await self.settle(life)
        life.everything.deadline = trio.current_time() + self.random.uniform(0, 60)
        self.disk = MemoryDisk(sync_seconds=0.01)

    async def end(self) -> None:
        """Left alone, it deletes all that nobody reads, but for merged objects of attempts that were cut short.

        Those that say something which no newer one says stay, since a start might read them; and so does half of a
        flush that was cut short at the end of the log, since an upload might be under way there.
        """
        await trio.sleep(self.latency_seconds)  # what arrives after a start is no orphan before the next one
        life = await self.nursery.start(self.live)
        await self.settle(life)
        life.log.log.deleter.drop(life.log.partition().drop_deleted(), self.delay_ms)
        await trio.sleep(300)
        segments = life.log.partition().manifest.segments
        wanted = {key for each in segments for key in (each.kfs_key, each.index_key)}
        assert wanted <= set(self.bucket._keys)
        left_over = [parse_segment_key(key) for key in self.bucket._keys if key not in wanted]
        assert all(key.generation or key.base_offset >= life.log.partition().flushed_offset for key in left_over)
        assert len(left_over) <= 4
        await self.check(life.log)
        life.everything.cancel()
        self.disk = MemoryDisk()
        life = await self.nursery.start(self.live)
        life.everything.cancel()


def run_world(seed: int) -> World:
    """A world, from its beginning to its end."""

    async def main() -> World:
        rng = random.Random(seed)
        async with trio.open_nursery() as nursery:
            durability = rng.choice([Durability.WAL, Durability.SEGMENT])
            world = World(rng, nursery, durability, rng.choice([0, 1000]), rng.choice([0.1, 3.0]))
            with trio.fail_after(10_000):
                await world.run()
        return world

    return run_seeded(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_object_that_is_needed_goes_and_none_that_is_not_stays(seed):
    run_world(seed)
