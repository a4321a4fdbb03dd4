"""Flushes by age of very many partitions: so many objects a minute, the oldest first; and what is exempt from that."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.config import Durability
from kafscale.log.flush.flusher import FlushPacer
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.batch_header import parse_header
from tests.devtools.fakes.memory_log import TOPIC, MemoryLog, batch_of, memory_log, topic_spec
from tests.devtools.fakes.simulated_store import SimulatedStore

PER_MINUTE = 240
PACED = {"flush_objects_per_minute": PER_MINUTE}
MANY_COUNT = 7_000  # more than a pool of 64 MiB holds, and than half of it: it is exhausted and spilled twice
TASKS_COUNT = 16  # flushes at once, by default


class NotingStore(SimulatedStore):
    """When each object was put, and of which partition each `.kfs` was."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.times: list[float] = []
        self.partitions: list[int] = []

    async def put_if_absent(self, key: str, parts) -> str:
        self.times.append(trio.current_time())
        if key.endswith(".kfs"):
            self.partitions.append(int(key.split("/")[3]))
        return await super().put_if_absent(key, parts)

    def most_in_a_minute(self) -> int:
        most = first = 0
        for last, time in enumerate(self.times):
            while self.times[first] <= time - 60:
                first += 1
            most = max(most, last - first + 1)
        return most


async def append_one_each(log: MemoryLog, count: int, data: memoryview) -> None:
    """A batch into each partition, in an order of no regularity, waiting for the pool as a connection does."""
    header = parse_header(data)
    for number in range(count):
        partition = log.partition(order_of(number, count))
        while (placed := partition.place_nowait(data)) is None:
            with trio.fail_after(10):
                (await log.log.pool.acquire(len(data))).release()
        partition.append(header, placed, 0)
        if not number % 100:
            await trio.sleep(0.01)


def order_of(number: int, count: int) -> int:
    return number * 7919 % count


def assert_oldest_first(flushed: list[int], count: int) -> None:
    """Each once, in the order of their batches, but for those that may begin at the same moment."""
    ranks = {order_of(number, count): number for number in range(count)}
    assert all(abs(ranks[index] - place) < 20 for place, index in enumerate(flushed))
    assert len(set(flushed)) == len(flushed)


async def test_thousands_of_partitions_with_a_trickle_stay_below_the_objects_of_a_minute_oldest_first(autojump_clock):
    store = NotingStore()
    settings = PACED | {"chunk_pool_bytes": 64 << 20}  # room for 4,096 partitions
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(MANY_COUNT)], **settings) as log:
        idle_tasks = trio.lowlevel.current_statistics().tasks_living
        began = trio.current_time()
        data = batch_of(b"x")
        await append_one_each(log, MANY_COUNT, data)
        assert trio.current_time() - began < 15, "a producer waited for flushes"
        assert log.log.spiller.spilled_bytes.value
        for _ in range(20):
            await trio.sleep(60)
            await append_one_each(log, 100, data)  # the ones that have waited for longest, or are just flushed
            assert trio.lowlevel.current_statistics().tasks_living < idle_tasks + 2 * TASKS_COUNT
        assert store.most_in_a_minute() <= PER_MINUTE
        assert len(store.partitions) > 20 * 0.8 * PER_MINUTE / 2
        assert_oldest_first(store.partitions, MANY_COUNT)
        await trio.sleep(1)
        await log.log.flusher.flush_all()
        left = sum(p.next_offset - p.flushed_offset for p in log.log.by_name[TOPIC])
        left += log.log.journal.pending_count + log.log.pool.used_bytes
        counted = log.log.flusher.pacer.objects_count.value
    assert left == 0
    assert counted == len(store.times)


async def test_a_dozen_partitions_are_flushed_at_every_interval(autojump_clock):
    store = NotingStore()
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(12)], **PACED) as log:
        for _ in range(30):
            for index in range(12):
                await log.append(log.partition(index), b"x")
            await trio.sleep(10.1)
            assert log.log.flusher.oldest_seconds() < 0.2
        assert store.most_in_a_minute() <= PER_MINUTE


async def test_sizes_pressure_and_demand_are_not_held_back_but_counted(autojump_clock):
    store = NotingStore()
    topics = [topic_spec(200)]
    settings = {"flush_objects_per_minute": 4, "segment_bytes": 1024}
    async with memory_log(store, MemoryDisk(), topics=topics, **settings) as log:
        for index in range(30):
            await log.append(log.partition(index), bytes(1024))
        await trio.sleep(1)
        assert sorted(store.partitions) == list(range(30))
        for index in range(30, 60):
            await log.append(log.partition(index), b"small")
        with trio.fail_after(5):
            await log.log.flusher.flush_all()
        assert sorted(store.partitions) == list(range(60))
        assert log.log.flusher.pacer.objects_count.value == 120


async def test_flushes_by_age_get_a_share_beside_any_number_of_others(autojump_clock):
    store = NotingStore()
    topics = [topic_spec(200)]
    async with memory_log(store, MemoryDisk(), topics=topics, segment_bytes=1024, **PACED) as log:
        for index in range(1, 31):
            await log.append(log.partition(index), b"old")
        for _ in range(120):
            for _ in range(4):
                await log.append(log.partition(0), bytes(1024))
                await trio.sleep(0.25)
        assert sorted({index for index in store.partitions if index}) == list(range(1, 31))


async def test_segment_durability_is_not_paced(autojump_clock):
    store = NotingStore()
    settings = {"flush_objects_per_minute": 4, "durability": Durability.SEGMENT}
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(100)], **settings) as log:
        with trio.fail_after(5):
            for index in range(100):
                await log.append(log.partition(index), b"x")


async def test_paced_flushes_under_s3_wal_flush_the_oldest_partitions_first(autojump_clock):
    store = NotingStore()
    settings = PACED | {"durability": Durability.S3_WAL, "chunk_pool_bytes": 64 << 20}
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(500)], **settings) as log:
        await append_one_each(log, 500, batch_of(b"x"))
        await trio.sleep(60)
        assert len(store.partitions) < 120
        await trio.sleep(300)
        assert len(store.partitions) == 500
        assert_oldest_first(store.partitions, 500)


@pytest.mark.parametrize("durability", [Durability.WAL, Durability.S3_WAL])
@pytest.mark.parametrize("crowded_by", ["bytes", "entries"])
async def test_a_crowded_wal_is_flushed_faster_than_the_pace(autojump_clock, monkeypatch, durability, crowded_by):
    """The oldest first, so that files are deleted and produces never wait."""
    settings = {"flush_objects_per_minute": 4, "durability": durability, "wal_segment_bytes": 256 << 10}
    settings |= {"chunk_pool_bytes": 64 << 20}
    if crowded_by == "bytes":
        settings["wal_max_bytes"] = 2 << 20
    else:
        for module in ("local_wal", "s3_wal"):
            monkeypatch.setattr(f"kafscale.log.wal.{module}.CROWDED_ENTRIES_COUNT", 300)
    store = NotingStore()
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(100)], **settings) as log:
        for number in range(1500):
            with trio.fail_after(1):
                await log.append(log.partition(number % 100), bytes(5_000))
            await trio.sleep(0.05)
            if durability is Durability.S3_WAL:
                log.log.journal.trim(log.log.journal.durable_position)
        wal = log.log.journal
        if crowded_by == "bytes":
            assert (wal.files.size_bytes if durability is Durability.WAL else wal._objects_bytes) <= 2 << 20
        else:
            assert wal.pending_count < 500
        assert len(store.partitions) < 750, "flushes of single batches"


async def test_a_crowded_wal_does_not_hurry_flushes_that_free_no_file(autojump_clock):
    store = NotingStore()
    settings = PACED | {"wal_segment_bytes": 64 << 10, "wal_max_bytes": 256 << 10, "flush_interval_seconds": 3600.0}
    faulty = FaultyStore(store)
    faulty.fail(On("put*", "*/0/*"))  # keeps the oldest file for ever
    async with memory_log(faulty, MemoryDisk(), topics=[topic_spec(3)], **settings) as log:
        await log.append(log.partition(0), bytes(60_000))
        while not log.log.journal.is_crowded:
            await log.append(log.partition(1), bytes(30_000))
        await wait_all_tasks_blocked()
        before = len(store.partitions)
        for _ in range(20):
            await log.append(log.partition(2), b"x")
            await trio.sleep(1)
        assert len(store.partitions) - before <= 1


async def test_after_an_outage_the_objects_of_a_minute_hold_again(autojump_clock):
    store = NotingStore()
    faulty = FaultyStore(store)
    faulty.fail(On("put*"))
    settings = PACED | {"chunk_pool_bytes": 64 << 20}
    async with memory_log(faulty, MemoryDisk(), topics=[topic_spec(1000)], **settings) as log:
        await append_one_each(log, 1000, batch_of(b"x"))
        await trio.sleep(600)
        faulty.heal()
        await trio.sleep(700)
        flushed_count, most = len(set(store.partitions)), store.most_in_a_minute()
    assert flushed_count == 1000
    assert most <= PER_MINUTE + 2 * TASKS_COUNT  # what was being tried when the store came back


@pytest.mark.parametrize("per_minute", [4, 5, 11, 12, 240, 241, 100_000])
def test_the_pacer_never_exceeds_the_flushes_per_minute(per_minute):
    pacer = FlushPacer(per_minute)
    minutes = 5 if per_minute < 1000 else 2
    now, times = 1000.0, []
    while now < 1000 + 60 * minutes:
        now = pacer.ready_at(now, 0)
        assert pacer.is_ready(now, 0)
        pacer.began(now, by_age=True)
        times.append(now)
    span = per_minute // 2
    assert all(later - earlier > 59.999 for earlier, later in zip(times, times[span:], strict=False))
    assert len(times) * 2 >= minutes * min(per_minute * 5 / 6, per_minute - 2)


def test_promised_flushes_count_against_the_pace():
    pacer = FlushPacer(240)
    pacer.began(0.0, by_age=True)
    assert pacer.is_ready(0.0, 18)
    assert not pacer.is_ready(0.0, 19)
    assert pacer.ready_at(0.0, 19) == pytest.approx(0.6)
    assert pacer.ready_at(0.0, 20) == float("inf")
