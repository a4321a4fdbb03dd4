"""The whole log against a simple model, killed at random moments and at named ones, over a store that fails.

What must hold: every acknowledged record is there after each restart, once, at the offset that was told; what was once
read stays; nothing is read that is not acknowledged or durable; a producer's retry after a restart is recognised; and
with a write-ahead log the bucket never shows what is above the high watermark.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import attrs
import pytest
import trio

from kafscale.config import Durability
from kafscale.errors import NotFound, PreconditionFailed, StorageFailed, StoreError
from kafscale.formats.segment import decode_footer
from kafscale.log.partition.partition import Partition
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import parse_segment_key
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.batch_header import parse_header
from kafscale.wire.records import ProducerStamp
from tests.devtools.fakes.memory_log import MemoryLog, batch_of, memory_log, topic_spec
from tests.devtools.world.determinism import run_seeded, seeds

PARTITION_COUNT = 3
NOW_MS = 1 << 50  # producers do not expire
DELETE_DELAY_MS = 200
BIG_BYTES = 20_000  # three of them fill a file of the log
SETTINGS = {
    "segment_bytes": 1024,
    "segment_merge_bytes": 4096,
    "wal_segment_bytes": 64 << 10,
    "flush_interval_seconds": 0.5,
    "chunk_pool_bytes": 32 << 20,
}


class RemoteStore(MemoryStore):
    """A write goes on when whoever asked for it is killed: it may take effect after the next start has listed."""

    nursery: trio.Nursery
    random: random.Random
    live: MemoryLog | None = None

    async def put_if_absent(self, key, parts):
        data, done, failures = [bytes(part) for part in parts], trio.Event(), []

        async def arrive() -> None:
            await trio.sleep(self.random.uniform(0, 0.3))
            try:
                await MemoryStore.put_if_absent(self, key, data)
                self._check_acknowledged(key, data)
            except PreconditionFailed as exc:
                failures.append(exc)
            done.set()

        self.nursery.start_soon(arrive)
        await done.wait()
        if failures:
            raise failures[0]
        return "etag"

    def _check_acknowledged(self, key: str, data: Sequence[bytes]) -> None:
        parsed = parse_segment_key(key)
        if (
            parsed is not None
            and self.live is not None
            and self.live.log.journal.keeps_entries
            and parsed.kind == "kfs"
        ):
            footer = decode_footer(b"".join(data), key)
            assert footer.last_offset < self.live.partition(parsed.partition).high_watermark


@attrs.define(eq=False)
class Sent:
    """A batch that a producer sent, and the offset that it was told."""

    sequence: int
    values: list[bytes]
    offset: int | None = None


@attrs.define(eq=False)
class Producer:
    """An idempotent producer of one partition, which outlives the broker."""

    number: int
    partition: int
    sequence: int = 0
    unacknowledged: list[Sent] = attrs.field(factory=list)
    last_acknowledged: Sent | None = None

    def make(self, count: int) -> None:
        values = [b"p%d-%d" % (self.number, self.sequence + n) for n in range(count)]
        self.unacknowledged.append(Sent(self.sequence, values))
        self.sequence += count

    def order(self, partition: Partition, sent: Sent):
        """As the Produce handler does. Returns the offset, and what to wait for."""
        data = batch_of(*sent.values, producer=ProducerStamp(self.number, 0, sent.sequence))
        header = parse_header(data)
        earlier = partition.producers.check(header)
        if earlier is not None:
            return (
                earlier.base_offset,
                partition.latest_round if earlier.last_offset >= partition.high_watermark else None,
            )
        placed = partition.place_nowait(data)
        assert placed is not None
        return partition.append(header, placed, NOW_MS).base_offset, partition.latest_round


@attrs.define(eq=False)
class World:
    """What must hold, and everything that outlives a broker."""

    random: random.Random
    durability: Durability
    store: RemoteStore
    disk: MemoryDisk
    producers: list[Producer]
    acknowledged: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    known: dict[tuple[int, int], bytes] = attrs.field(factory=dict)  # by partition and offset
    log_starts: dict[int, int] = attrs.field(factory=dict)
    epoch: int = 0

    @classmethod
    def of(cls, seed: int, durability: Durability, nursery: trio.Nursery) -> World:
        rng = random.Random(seed)
        store = RemoteStore()
        store.nursery, store.random = nursery, rng
        producers = [Producer(number, number % PARTITION_COUNT) for number in range(PARTITION_COUNT + 2)]
        return cls(rng, durability, store, MemoryDisk(sync_seconds=0.01), producers)

    def start(self, store):
        self.epoch += 1
        topics = [
            topic_spec(PARTITION_COUNT, file_delete_delay_ms=DELETE_DELAY_MS, log_start_offsets=dict(self.log_starts))
        ]
        return memory_log(
            store, self.disk, topics=topics, leader_epoch=self.epoch, durability=self.durability, **SETTINGS
        )

    def learn(self, partition: int, offset: int, value: bytes, *, acknowledged: bool = False) -> None:
        assert self.known.setdefault((partition, offset), value) == value
        if acknowledged:
            self.acknowledged[partition, offset] = value

    async def read(self, log: MemoryLog, index: int, offset: int) -> dict[int, bytes]:
        partition = log.partition(index)
        records = await log.records(partition, offset, max_bytes=self.random.choice([1, 300, 1 << 20]))
        offsets = [record.offset for record in records]
        assert offsets == list(range(offset, offset + len(records)))
        assert not offsets or offsets[-1] < partition.high_watermark
        for record in records:
            self.learn(index, record.offset, record.value)
        return {record.offset: record.value for record in records}

    async def check(self, log: MemoryLog) -> None:
        """Everything that was acknowledged or seen is there, once."""
        for index in range(PARTITION_COUNT):
            start = log.partition(index).log_start_offset
            found = await self.read(log, index, start)
            known = {offset: value for (p, offset), value in self.known.items() if p == index and offset >= start}
            assert found == known
            assert set(known.items()) >= {
                (offset, value) for (p, offset), value in self.acknowledged.items() if p == index and offset >= start
            }
            values = [value for (p, _), value in self.known.items() if p == index]
            assert len(values) == len(set(values))

    async def produce(self, producer: Producer, log: MemoryLog, *, only_retry: bool = False) -> None:
        """Up to four batches at a time; what has no answer is sent again, in order, also after a restart."""
        partition = log.partition(producer.partition)
        if producer.last_acknowledged is not None:
            offset, _ = producer.order(partition, producer.last_acknowledged)
            assert offset == producer.last_acknowledged.offset
        while not only_retry or producer.unacknowledged:
            while not only_retry and len(producer.unacknowledged) < self.random.randint(1, 4):
                producer.make(self.random.randint(1, 3))
            try:
                ordered = [(sent, *producer.order(partition, sent)) for sent in producer.unacknowledged]
                for sent, offset, round in ordered:
                    if round is not None:
                        await round.wait()
                    sent.offset = offset
                    producer.last_acknowledged = sent
                    producer.unacknowledged.remove(sent)
                    for number, value in enumerate(sent.values):
                        self.learn(producer.partition, offset + number, value, acknowledged=True)
            except StorageFailed:
                if self.durability is Durability.WAL:
                    return
            if not only_retry:
                await trio.sleep(self.random.expovariate(5))

    async def disturb(self, log: MemoryLog) -> None:
        """Reads, spills, flushes and deletions at random moments, while segments are merged."""
        while True:
            await trio.sleep(self.random.expovariate(10))
            index = self.random.randrange(PARTITION_COUNT)
            partition = log.partition(index)
            what = self.random.random()
            if what < 0.6:
                offset = self.random.randint(partition.log_start_offset, partition.high_watermark)
                try:
                    await self.read(log, index, offset)
                except NotFound:
                    raise
                except StoreError:
                    continue
            elif what < 0.8:
                partition.spill()
            elif what < 0.9:
                with trio.move_on_after(0.5):
                    await log.log.flusher.flush_all()
            else:
                self.log_starts[index] = self.random.randint(partition.log_start_offset, partition.high_watermark)
                partition.delete_records(self.log_starts[index])
                log.log.deleter.drop(partition.drop_deleted(), DELETE_DELAY_MS)

    async def live(self) -> None:
        """One life of a broker, ended by a kill."""
        store = FaultyStore(self.store, self.random)
        async with self.start(store) as log:
            self.store.live = log
            await self.check(log)
            store.unreliable(self.random.choice([0.0, 0.1, 0.4]))
            if self.random.random() < 0.1:
                self.disk.fail(self.random.choice(["write", "sync", "create"]), after=self.random.randint(0, 20))
            with trio.move_on_after(self.random.uniform(0, 3)):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.disturb, log)
                    nursery.start_soon(log.log.merger.run, list(log.log.partitions.values()))
                    nursery.start_soon(log.log.deleter.run)
                    for producer in self.producers:
                        nursery.start_soon(self.produce, producer, log)
            self.disk = self.disk.crash(rng=self.random)

    async def run(self) -> None:
        for _ in range(4):
            try:
                await self.live()
            except* StorageFailed:
                self.disk = self.disk.crash(rng=self.random)
            self.store.live = None
        await self.end()

    async def end(self) -> None:
        """Without faults everything is answered and flushed; then the bucket alone has it all."""
        async with self.start(self.store) as log:
            await self.check(log)
            for producer in self.producers:
                await self.produce(producer, log, only_retry=True)
            await self.check(log)
            await log.log.flusher.flush_all()
            assert log.log.pool.used_bytes == 0
            assert log.log.journal.pending_count == 0
        self.disk = MemoryDisk()
        async with self.start(self.store) as log:
            await self.check(log)
            for producer in self.producers:
                partition = log.partition(producer.partition)
                if producer.last_acknowledged is not None:
                    assert producer.order(partition, producer.last_acknowledged)[1] is None
                sent = sorted(value for (p, _), value in self.known.items() if p == producer.partition)
                mine = [value for value in sent if value.startswith(b"p%d-" % producer.number)]
                assert len(mine) == producer.sequence


def simulate(scenario, seed) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(10_000):
                await scenario(nursery)
            await trio.sleep(1)

    run_seeded(seed, main)


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("seed", seeds(10, more=15))
def test_nothing_acknowledged_is_lost_doubled_or_moved_by_kills_and_failures(seed, durability):
    async def scenario(nursery: trio.Nursery) -> None:
        await World.of(seed, durability, nursery).run()

    simulate(scenario, seed)


# ---- kills at named points ----------------------------------------------------------------------------------------

# A flush writes conditionally. An .index that a restart writes again is not meant: held there, no start would end.
UPLOAD_POINTS = {
    "before the .kfs": [(On("put_if_absent", "*.kfs", skip=2), False)],
    "after the .kfs": [(On("put_if_absent", "*.kfs", skip=2), True)],
    "before the .index": [(On("put_if_absent", "*.index", skip=2), False)],
    "after the .index": [(On("put_if_absent", "*.index", skip=2), True)],
    "before the commit": [(On("put_if_absent", "*.kfs", skip=2), True), (On("put_if_absent", "*.index", skip=2), True)],
}


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("point", UPLOAD_POINTS)
@pytest.mark.parametrize("seed", seeds(2, more=1))
def test_a_kill_during_an_upload_loses_nothing(point, durability, seed):
    async def scenario(nursery: trio.Nursery) -> None:
        world = World.of(seed, durability, nursery)
        for _ in range(2):
            store = FaultyStore(world.store, world.random)
            gates = [store.hold(on, after_effect=after_effect) for on, after_effect in UPLOAD_POINTS[point]]
            async with world.start(store) as log, trio.open_nursery() as clients:
                await world.check(log)
                for producer in world.producers:
                    clients.start_soon(world.produce, producer, log)
                for gate in gates:
                    await gate.wait_arrived(1)
                world.disk = world.disk.crash(rng=world.random)
                clients.cancel_scope.cancel()
        await world.end()

    simulate(scenario, seed)


@attrs.define(eq=False)
class HeldDisk(MemoryDisk):
    """Stops for ever in the middle of an operation, once `held` is set, and says so."""

    held: str = ""
    after: int = 0
    reached: trio.Event = attrs.field(factory=trio.Event)

    async def create(self, name, size_bytes, header, *, reuse=None):
        if reuse is not None and self._holds("reuse"):
            for content in (self.files[reuse], self.synced[reuse]):
                content[: len(header)] = header
            await trio.sleep(math.inf)
        if reuse is None and self._holds("create"):
            self.files[name], self.synced[name] = bytearray(size_bytes), bytearray(size_bytes)
            await trio.sleep(math.inf)
        await super().create(name, size_bytes, header, reuse=reuse)

    async def write_and_sync(self, name, buffers, position):
        if self._holds("write"):
            self._unsynced[name] = (position, b"".join(buffers))
            await trio.sleep(math.inf)
        await super().write_and_sync(name, buffers, position)

    async def rename(self, name, new_name):
        if self._holds("rename"):
            await trio.sleep(math.inf)
        await super().rename(name, new_name)

    def _holds(self, operation: str) -> bool:
        if self.held != operation:
            return False
        self.after -= 1
        if self.after >= 0:
            return False
        self.reached.set()
        return True


@pytest.mark.parametrize("point", ["write", "create", "rename", "reuse"])
@pytest.mark.parametrize("seed", seeds(2, more=2))
def test_a_kill_while_a_file_is_written_made_put_aside_or_used_again_loses_nothing(point, seed):
    """`create`, `reuse`: the next file is being made, and the last one fills up meanwhile."""

    async def scenario(nursery: trio.Nursery) -> None:
        world = World.of(seed, Durability.WAL, nursery)
        for _ in range(3):
            most = {"write": 50, "create": 2, "rename": 0, "reuse": 2}[point]
            after = world.random.randint(0, most)
            world.disk = disk = without_hold(world.disk)
            async with world.start(FaultyStore(world.store, world.random)) as log, trio.open_nursery() as clients:
                await world.check(log)
                disk.held, disk.after = point, after
                for producer in world.producers:
                    clients.start_soon(world.produce, producer, log)
                clients.start_soon(fill_files, world, log)
                await disk.reached.wait()
                await trio.sleep(world.random.uniform(0, 2))
                world.disk = disk.crash(rng=world.random)
                clients.cancel_scope.cancel()
        await world.end()

    simulate(scenario, seed)


def without_hold(disk: MemoryDisk) -> HeldDisk:
    """As the disk, and it can be held later: not during the start."""
    found = HeldDisk(sync_seconds=0.01)
    found.files, found.synced = disk.files, disk.synced
    return found


async def fill_files(world: World, log: MemoryLog) -> None:
    """Batches of one more producer that are as large as it takes to change files often."""
    big = Producer(99, 0)
    while True:
        stamp = ProducerStamp(1000 + world.epoch, 0, big.sequence)
        data = batch_of(b"big%d-%d" % (world.epoch, big.sequence) + bytes(BIG_BYTES), producer=stamp)
        placed = log.partition(0).place_nowait(data)
        if placed is None:
            await trio.sleep(0.5)
            continue
        batch = log.partition(0).append(parse_header(data), placed, NOW_MS)
        big.sequence += 1
        await log.partition(0).latest_round.wait()
        value = b"big%d-%d" % (world.epoch, big.sequence - 1) + bytes(BIG_BYTES)
        world.learn(0, batch.base_offset, value, acknowledged=True)
