"""Under `s3-wal` many small objects make flushes come early: how many stay, what it costs, what a kill leaves."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import asynccontextmanager

import pytest
import trio

from kafscale.config import Durability
from kafscale.log.flush.flusher import early_after
from kafscale.log.wal.s3_wal import SMALL_OBJECT_BYTES
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from tests.devtools.fakes.memory_log import MemoryLog, memory_log, topic_spec
from tests.devtools.fakes.simulated_store import SimulatedStore

PUT_SECONDS = 0.005
EARLY_COUNT = 32
SETTINGS = {"durability": Durability.S3_WAL, "s3_wal_flush_objects_count": EARLY_COUNT, "flush_objects_per_minute": 4}


class CountingStore(SimulatedStore):
    """Counts PUTs by the kind of the object."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), latency_seconds=PUT_SECONDS)
        self.puts: Counter[str] = Counter()

    async def put_if_absent(self, key: str, parts) -> str:
        self.puts[key.rpartition(".")[2]] += 1
        return await super().put_if_absent(key, parts)


@asynccontextmanager
async def trimmed_log(store, *, partition_count: int = 1, **settings):
    """A log whose metadata is always kept elsewhere."""
    topics = [topic_spec(partition_count)]
    async with memory_log(store, MemoryDisk(), topics=topics, **SETTINGS | settings) as log:
        journal = log.log.journal
        journal.on_growth.append(lambda: journal.trim(journal.durable_position))
        yield log


async def append_in_turn(log: MemoryLog, count: int, *, partition_count: int = 1, value: bytes = b"x") -> int:
    """An object for each, one partition after the other; returns the most objects that there were at once."""
    most_count = 0
    for number in range(count):
        await log.append(log.partition(number % partition_count), value)
        most_count = max(most_count, len(log.log.journal._objects))
    return most_count


@pytest.mark.parametrize(
    ("wanted_count", "dirty_count", "after"),
    [(0, 1, math.inf), (0, 10_000, math.inf), (256, 1, 256), (256, 32, 256), (256, 33, 264), (256, 10_000, 80_000)],
)
def test_the_early_flush_threshold_grows_with_the_count_of_dirty_partitions(
    wanted_count: int, dirty_count: int, after: float
) -> None:
    assert early_after(wanted_count, dirty_count) == after


@pytest.mark.parametrize("partition_count", [1, 3])
async def test_few_objects_of_the_log_stay(autojump_clock, partition_count):
    store = CountingStore()
    async with trimmed_log(store, partition_count=partition_count) as log:
        most_count = await append_in_turn(log, 1500, partition_count=partition_count)
        assert trio.current_time() < 10, "flushes are due by their age"
    assert most_count < 2.5 * EARLY_COUNT
    assert store.puts["kfs"] <= 1500 / EARLY_COUNT * partition_count


async def test_flushes_of_many_partitions_add_a_quarter_to_the_puts_of_the_log_at_most(autojump_clock):
    """However few objects are wanted: 40 partitions that have something may leave 320."""
    store = CountingStore()
    async with trimmed_log(store, partition_count=40) as log:
        most_count = await append_in_turn(log, 1900, partition_count=40)
        assert trio.current_time() < 10, "flushes are due by their age"
    assert 4 * (store.puts["kfs"] + store.puts["index"]) <= store.puts["wal"]
    assert store.puts["kfs"] >= 4 * 40, "none of them is left behind"
    assert 320 <= most_count < 550  # those of a second stay, as flushes free few at a time


@pytest.mark.parametrize(
    ("settings", "value"),
    [({"s3_wal_flush_objects_count": 0}, b"x"), ({"chunk_pool_bytes": 64 << 20}, bytes(SMALL_OBJECT_BYTES))],
    ids=["off", "large objects"],
)
async def test_nothing_is_flushed_early_where_that_is_not_wanted_or_objects_are_large(autojump_clock, settings, value):
    store = CountingStore()
    async with trimmed_log(store, **settings) as log:
        await append_in_turn(log, 300, value=value)
    assert not store.puts["kfs"]


async def test_an_idle_log_writes_nothing(autojump_clock):
    store = CountingStore()
    async with trimmed_log(store) as log:
        await append_in_turn(log, 200)
        await trio.sleep(60)
        before = store.puts.total()
        await trio.sleep(3600)
    assert store.puts.total() == before


@pytest.mark.parametrize("kind", ["kfs", "index"])
@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_kill_in_the_middle_of_an_early_flush_loses_nothing(autojump_clock, kind, after_effect):
    bucket = MemoryStore()
    store = FaultyStore(bucket)
    gate = store.hold(On("put*", f"*.{kind}", skip=1), after_effect=after_effect)
    async with trimmed_log(store) as log:
        while not gate.arrived_count:
            await append_in_turn(log, 1, value=b"%d" % log.partition().next_offset)
        await append_in_turn(log, 1, value=b"%d" % log.partition().next_offset)
        await trio.sleep(5)  # what may be deleted is
        kept_until = log.log.journal.durable_position
        count, flushed = log.partition().next_offset, log.partition().flushed_offset
        assert EARLY_COUNT <= flushed < count - EARLY_COUNT
        assert len(log.log.journal._objects) <= count - flushed + 1
    async with memory_log(bucket, MemoryDisk(), leader_epoch=2, kept_until=kept_until, **SETTINGS) as log:
        assert await log.values(log.partition()) == [b"%d" % number for number in range(count)]
