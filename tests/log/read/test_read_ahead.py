"""Reading ahead: what consumers in order gain, and that nobody loses. Requests and bytes as the store saw them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.errors import CorruptBatch, StoreUnavailable
from kafscale.formats.segment import HEADER
from kafscale.log.read.footers import Footers
from kafscale.log.read.read_ahead import STREAM_IDLE_SECONDS, ReadAhead
from kafscale.metrics import Metrics
from kafscale.store.memory import MemoryStore
from kafscale.store.wrappers.limiter import PrefetchStore, StoreLimiter, WorkClass
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from tests.devtools.fakes.memory_log import MemoryLog, batch_of, memory_log
from tests.devtools.fakes.simulated_store import SimulatedStore

VALUE_BYTES = 1000
SIZE = len(batch_of(bytes(VALUE_BYTES)))
FETCH_BYTES = 8 * SIZE
CACHE_BYTES = 1 << 20
WINDOW_BYTES = 64 * SIZE


class CountingStore(FaultyStore):
    """What was read of it: how often and how much, by operation."""

    def __init__(self, store):
        super().__init__(store)
        self.counts: Counter[str] = Counter()
        self.bytes = 0

    async def get_range(self, key, start, length_bytes):
        return self._count("range", await super().get_range(key, start, length_bytes))

    async def get_tail(self, key, length_bytes):
        return self._count("tail", await super().get_tail(key, length_bytes))

    def _count(self, operation, part):
        self.counts[operation] += 1
        self.bytes += len(part.data)
        return part

    def reset(self) -> None:
        self.counts.clear()
        self.bytes = 0


FILLED: dict[tuple[int, int], tuple[MemoryStore, MemoryDisk]] = {}  # takes longer to write than to read


async def fill(record_count: int, per_segment: int) -> tuple[MemoryStore, MemoryDisk]:
    """A bucket and a disk as a log leaves them that has flushed all that it was given."""
    store, disk = MemoryStore(), MemoryDisk()
    async with memory_log(store, disk) as log:
        for number in range(record_count):
            await log.append(log.partition(), b"%d " % number + bytes(VALUE_BYTES - len(b"%d " % number)))
            if (number + 1) % per_segment == 0:
                await log.log.flusher.flush_all()
        await log.log.flusher.flush_all()
    return store, disk


@asynccontextmanager
async def filled_log(
    record_count: int, *, per_segment: int = 10_000, latency_seconds: float = 0.0, **changes: int
) -> AsyncIterator[tuple[MemoryLog, CountingStore]]:
    """A log that was restarted after it was filled, so that no footer is known."""
    if (record_count, per_segment) not in FILLED:
        FILLED[record_count, per_segment] = await fill(record_count, per_segment)
    filled, disk = FILLED[record_count, per_segment]
    store = CountingStore(SimulatedStore(filled.copy(), latency_seconds=latency_seconds))
    changes = {"cache_bytes": CACHE_BYTES, "readahead_bytes": WINDOW_BYTES, **changes}
    async with memory_log(store, disk.crash(), leader_epoch=2, **changes) as log:
        store.reset()
        yield log, store


@attrs.define(eq=False)
class Consumer:
    """Fetches one behind the other."""

    log: MemoryLog
    offset: int = 0
    max_bytes: int = FETCH_BYTES
    fetch_count: int = 0
    bytes: int = 0

    async def fetch(self) -> int:
        reader, partition = self.log.log.reader, self.log.partition()
        slices = await reader.read(partition, self.offset, self.max_bytes)
        assert slices is not None
        size_bytes = slices.size_bytes
        if size_bytes:
            assert bytes(slices.buffers[0]).find(b"%d " % self.offset) > 0
            self.offset = slices.end_offset
        slices.release()
        self.fetch_count += bool(size_bytes)
        self.bytes += size_bytes
        return size_bytes

    async def run(self, *, until: int = 1 << 60) -> None:
        while self.offset < until and await self.fetch():
            pass


def ahead_of(log: MemoryLog) -> ReadAhead:
    return log.log.reader.read_ahead


# ---- what it costs and gains ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_segment", [10_000, 300, 70])
async def test_a_sequential_consumer_causes_fewer_gets_than_fetches_and_no_extra_bytes(autojump_clock, per_segment):
    async with filled_log(1000, per_segment=per_segment) as (log, store):
        consumer = Consumer(log)
        await consumer.run()
        assert consumer.bytes == 1000 * SIZE
        segments = len(log.partition().manifest.segments)
        assert store.counts["tail"] == segments
        assert store.counts["range"] <= consumer.fetch_count / 1.5
        footers = 65536 if per_segment == 10_000 else 0  # with smaller segments batches come along with the footer
        assert store.bytes <= 1.1 * consumer.bytes + footers
        found = ahead_of(log).statistics
        assert found.read_bytes == found.used_bytes > 0
        assert found.wasted_bytes == 0
        assert ahead_of(log).held_bytes == 0


@pytest.mark.parametrize("per_segment", [10_000, 300])
async def test_without_read_ahead_each_fetch_is_one_get_of_exactly_the_batches(autojump_clock, per_segment):
    async with filled_log(1000, per_segment=per_segment, readahead_bytes=0, cache_bytes=0) as (log, store):
        consumer = Consumer(log)
        await consumer.run()
        assert store.counts["range"] == consumer.fetch_count
        tails = store.counts["tail"] * 65536
        assert store.bytes == 1000 * SIZE + tails


async def test_a_segment_that_is_smaller_than_its_tail_read_is_one_get(autojump_clock):
    async with filled_log(200, per_segment=40) as (log, store):
        consumer = Consumer(log)
        await consumer.run()
        assert consumer.bytes == 200 * SIZE
        assert store.counts == {"tail": 5}


async def test_a_consumer_far_from_the_store_is_as_fast_as_several_gets_at_once(autojump_clock):
    seconds = {}
    for window in (0, WINDOW_BYTES):
        async with filled_log(1000, latency_seconds=0.02, readahead_bytes=window) as (log, _):
            began = trio.current_time()
            await Consumer(log).run()
            seconds[window] = trio.current_time() - began
    assert seconds[0] == pytest.approx(0.02 * (1 + 1000 / 8), rel=0.05)
    assert seconds[WINDOW_BYTES] < seconds[0] / 4


async def test_a_second_consumer_behind_the_first_needs_no_get(autojump_clock):
    async with filled_log(500) as (log, store):
        first, second = Consumer(log), Consumer(log)
        await first.run(until=100)
        store.reset()
        await second.run(until=first.offset)
        assert not store.counts
        while first.offset < 500:
            await first.fetch()
            await second.fetch()
        assert store.bytes <= 1.1 * first.bytes


async def test_no_data_is_read_ahead_for_random_access(autojump_clock):
    async with filled_log(1000) as (log, store):
        for number in range(125):
            offset = number * 37 % 125 * 8
            await Consumer(log, offset).fetch()
            await Consumer(log, offset).fetch()  # asked for again
        assert ahead_of(log).statistics.read_bytes == 0
        assert store.bytes <= 1000 * SIZE + 65536


async def test_fetches_larger_than_the_window_are_left_alone(autojump_clock):
    async with filled_log(1000, readahead_bytes=8 * SIZE) as (log, store):
        consumer = Consumer(log, max_bytes=100 * SIZE)
        await consumer.run()
        assert ahead_of(log).statistics.read_bytes == 0
        assert store.counts["range"] <= consumer.fetch_count


# ---- what it may not take --------------------------------------------------------------------------------------------


async def test_read_ahead_is_skipped_if_no_place_is_free(autojump_clock):
    async with filled_log(1000) as (log, store):
        limiter = StoreLimiter(4, StoreMetrics.register(Metrics()))
        ahead = ahead_of(log)
        ahead.store = PrefetchStore(store, limiter)
        tokens = [await limiter.acquire(WorkClass.ACKNOWLEDGE) for _ in range(4)]
        consumer = Consumer(log)
        await consumer.run(until=800)
        assert store.counts["range"] == consumer.fetch_count
        assert ahead.store.skipped_count.value > 10
        assert (ahead.statistics.read_bytes, ahead.held_bytes) == (0, 0)
        for token in tokens:
            with token:
                pass
        await consumer.run()
        assert ahead.statistics.used_bytes > 0
        assert consumer.bytes == 1000 * SIZE


async def test_a_failed_read_ahead_fails_no_fetch(autojump_clock):
    async with filled_log(1000, per_segment=200) as (log, store):
        ahead = ahead_of(log)
        broken = FaultyStore(store)
        broken.fail(On("get*", times=20), StoreUnavailable)
        ahead.store = PrefetchStore(broken)
        consumer = Consumer(log)
        await consumer.run()
        assert consumer.bytes == 1000 * SIZE
        assert ahead.statistics.failed_count == 20
        assert ahead.statistics.used_bytes > 0
        assert ahead.held_bytes == 0


async def test_damaged_records_are_not_read_ahead_of_a_consumer(autojump_clock):
    """They were kept in the cache, and served from it."""
    async with filled_log(200) as (log, store):
        (segment,) = log.partition().manifest.segments
        content = bytearray((await store.get(segment.kfs_key)).data)
        content[HEADER.size + 100 * SIZE - 1] ^= 1
        await store.put(segment.kfs_key, [content])
        consumer = Consumer(log)
        with pytest.raises(CorruptBatch, match="the record batch with offsets 99 to 99 is damaged"):
            await consumer.run()
        assert consumer.offset == 99
        assert ahead_of(log).statistics.failed_count > 0
        assert ahead_of(log).cache.find(segment.key, HEADER.size + 100 * SIZE - 1) is None
        consumer.offset = 104
        await consumer.run()
        assert consumer.offset == 200


async def test_a_footer_that_arrives_after_read_ahead_has_ended_raises_no_error(autojump_clock, monkeypatch):
    """A thread had read it meanwhile, of a directory: an AssertionError ended the broker, which was being stopped."""
    prefetch, is_asked, may_come = Footers.prefetch, trio.Event(), trio.Event()

    async def come_late(self, segment, store):
        is_asked.set()
        with trio.CancelScope(shield=True):
            await may_come.wait()
            await prefetch(self, segment, store)

    monkeypatch.setattr(Footers, "prefetch", come_late)
    async with filled_log(1000, per_segment=300) as (log, _), trio.open_nursery() as nursery:
        running = trio.CancelScope()

        async def run_until_cancelled() -> None:
            with running:
                await ahead_of(log).run()

        nursery.start_soon(run_until_cancelled)
        await trio.testing.wait_all_tasks_blocked()
        consumer = Consumer(log)
        while not is_asked.is_set():
            assert await consumer.fetch()
            await trio.testing.wait_all_tasks_blocked()
        running.cancel()
        await trio.testing.wait_all_tasks_blocked()
        may_come.set()
        await trio.testing.wait_all_tasks_blocked()
        assert running.cancelled_caught


async def test_many_consumers_share_the_cache_and_nothing_is_read_twice(autojump_clock):
    async with filled_log(2000, cache_bytes=200 * SIZE, latency_seconds=0.01) as (log, store):
        consumers = [Consumer(log, 50 * number) for number in range(40)]
        async with trio.open_nursery() as nursery:
            for number, each in enumerate(consumers):
                nursery.start_soon(lambda each, until: each.run(until=until), each, 50 * number + 48)
        cache, ahead = log.log.reader.ranges.cache, ahead_of(log)
        assert cache.size_bytes <= cache.max_bytes
        assert ahead.statistics.no_room_count > 0
        assert store.bytes <= 1.1 * sum(each.bytes for each in consumers) + ahead.held_bytes + 65536


async def test_data_read_ahead_for_a_consumer_that_left_is_released(autojump_clock):
    async with filled_log(1000, cache_bytes=CACHE_BYTES) as (log, _):
        await Consumer(log).run(until=200)
        held_bytes = ahead_of(log).held_bytes
        assert 0 < held_bytes <= WINDOW_BYTES
        await trio.sleep(STREAM_IDLE_SECONDS + 1)
        await Consumer(log, 800).fetch()
        assert ahead_of(log).held_bytes == 0
        assert log.log.reader.ranges.cache.pinned_bytes == 0
        assert ahead_of(log).statistics.wasted_bytes == held_bytes


async def test_a_deleted_segment_leaves_the_cache_even_after_read_ahead(autojump_clock):
    async with filled_log(600, per_segment=300) as (log, _):
        consumer = Consumer(log)
        await consumer.run(until=100)
        cache = log.log.reader.ranges.cache
        for segment in log.partition().manifest.segments:
            log.log.reader.footers.forget(segment)
        assert cache.size_bytes == ahead_of(log).held_bytes + 512 * len(ahead_of(log)._streams.popitem()[1].pieces)
        await consumer.run()
        assert consumer.bytes == 600 * SIZE


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 24), st.integers(1, 20)), min_size=1, max_size=30), st.integers(0, 2**16))
def test_random_consumers_waste_at_most_a_tenth_of_the_read_bytes(walks, seed):
    """Consumers begin anywhere, go on for a while, and leave."""
    rng = random.Random(seed)

    async def main() -> None:
        async with filled_log(300, cache_bytes=rng.choice([64, 256, 2048]) * SIZE) as (log, store):
            served = 0
            for place, length in walks:
                consumer = Consumer(log, 10 * place, max_bytes=rng.choice([1, 3, 8]) * SIZE)
                for _ in range(length):
                    await consumer.fetch()
                served += consumer.bytes
                await trio.sleep(rng.choice([0, STREAM_IDLE_SECONDS + 1]))
            ahead, cache = ahead_of(log), log.log.reader.ranges.cache
            assert store.bytes <= 1.1 * served + 65536 + 2 * WINDOW_BYTES
            assert cache.size_bytes <= cache.max_bytes
            assert ahead.held_bytes <= cache.max_bytes / 2
            assert log.log.reader.ranges.budget.used_bytes == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
