"""Reading ranges: one GET for all who want it, whoever of them gives up, and no more memory than the budget."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.errors import DamagedObject, NotFound, StoreUnavailable
from kafscale.log.read.ranges import RangeReader
from kafscale.log.read.segment_cache import SegmentCache
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.faulty_store import FaultyStore, On
from tests.devtools.fakes.segment_objects import batches_of_size

KEY = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=0)
CONTENT = batches_of_size(500, 200)
CACHE_BYTES = 100_000
BUDGET_BYTES = 50_000


class CountingStore(FaultyStore):
    """A store that remembers the ranges that were read."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.ranges: list[tuple[int, int]] = []

    async def get_range(self, key, start, length_bytes):
        self.ranges.append((start, start + length_bytes))
        return await super().get_range(key, start, length_bytes)


async def reader_of(*, cache_bytes: int = CACHE_BYTES) -> tuple[RangeReader, CountingStore]:
    store = CountingStore(MemoryStore())
    await store.put(KEY.key, [CONTENT])
    return RangeReader(store=store, cache=SegmentCache(cache_bytes), budget=ByteBudget(BUDGET_BYTES)), store


async def read(reader: RangeReader, start: int, end: int) -> bytes:
    slices = await reader.read(KEY, start, end)
    assert slices is not None
    data = b"".join(slices.buffers)
    slices.release()
    return data


async def test_cached_bytes_are_not_read_again_and_a_gap_is_one_get():
    reader, store = await reader_of()
    assert await read(reader, 0, 1000) == CONTENT[:1000]
    assert await read(reader, 2000, 3000) == CONTENT[2000:3000]
    assert await read(reader, 500, 3000) == CONTENT[500:1000]
    assert await read(reader, 1000, 3000) == CONTENT[1000:2000]
    assert await read(reader, 0, 3000) == CONTENT[:3000]
    assert store.ranges == [(0, 1000), (2000, 3000), (1000, 2000)]
    assert reader.budget.used_bytes == 0
    found = reader.cache.statistics
    assert (found.hit_count, found.hit_bytes, found.miss_count, found.shared_count) == (2, 3500, 3, 0)


@pytest.mark.parametrize("cache_bytes", [0, CACHE_BYTES])
async def test_concurrent_misses_share_one_get(nursery, cache_bytes):
    reader, store = await reader_of(cache_bytes=cache_bytes)
    gate = store.hold(On("get_range"))
    found: list[bytes] = []

    async def want(start: int, end: int) -> None:
        found.append(await read(reader, start, end))

    nursery.start_soon(want, 0, 20_000)
    await gate.wait_arrived(1)
    for _ in range(5):
        nursery.start_soon(want, 0, 20_000)
    nursery.start_soon(want, 10_000, 30_000)
    await wait_all_tasks_blocked()
    assert reader.budget.used_bytes == 20_000  # the bytes are there once
    gate.open()
    await wait_all_tasks_blocked()
    assert sorted(map(len, found)) == [10_000, *[20_000] * 6]
    assert store.ranges == [(0, 20_000)]
    assert reader.cache.statistics.shared_count == 6
    assert reader.budget.used_bytes == 0


async def test_the_next_reader_asks_again_if_the_first_gives_up(nursery):
    reader, store = await reader_of()
    gate = store.hold(On("get_range"))
    scope = trio.CancelScope()
    found: list[bytes] = []

    async def give_up() -> None:
        with scope:
            await read(reader, 0, 1000)

    async def want() -> None:
        found.append(await read(reader, 0, 1000))

    nursery.start_soon(give_up)
    await gate.wait_arrived(1)
    for _ in range(3):
        nursery.start_soon(want)
    await wait_all_tasks_blocked()
    scope.cancel()
    await gate.wait_arrived(2)
    gate.open()
    await wait_all_tasks_blocked()
    assert found == [CONTENT[:1000]] * 3
    assert len(store.ranges) == 2


async def test_a_failure_reaches_all_waiters_and_no_later_reader(nursery):
    reader, store = await reader_of()
    gate = store.hold(On("get_range"))
    store.fail(On("get_range", times=1), StoreUnavailable)
    failures: list[str] = []

    async def want() -> None:
        with pytest.raises(StoreUnavailable):
            await read(reader, 0, 1000)
        failures.append("failed")

    for _ in range(3):
        nursery.start_soon(want)
    await gate.wait_arrived(1)
    await wait_all_tasks_blocked()
    gate.open()
    await wait_all_tasks_blocked()
    assert len(failures) == 3
    assert reader.budget.used_bytes == 0
    assert await read(reader, 0, 1000) == CONTENT[:1000]


async def test_an_object_that_is_gone_or_cut_off_leaves_nothing_behind():
    reader, store = await reader_of()
    await store.put(KEY.key, [CONTENT[:500]])
    with pytest.raises(DamagedObject, match="500 of 1000 bytes at 0"):
        await read(reader, 0, 1000)
    await store.delete([KEY.key])
    with pytest.raises(NotFound):
        await read(reader, 0, 1000)
    assert (reader.budget.used_bytes, reader.cache.size_bytes) == (0, 0)
    await store.put(KEY.key, [CONTENT])
    assert await read(reader, 0, 1000) == CONTENT[:1000]


async def test_reads_past_the_budget_wait_in_order_until_buffers_are_released(nursery):
    reader, store = await reader_of(cache_bytes=0)
    sent = await reader.read(KEY, 0, 40_000)
    found: list[int] = []

    async def want(start: int) -> None:
        found.append(start)
        await read(reader, start, start + 20_000)
        found.append(-start)

    assert await reader.read(KEY, 40_000, 60_000, may_wait=False) is None
    for start in (40_000, 60_000):
        nursery.start_soon(want, start)
        await wait_all_tasks_blocked()
    assert found == [40_000, 60_000]
    assert len(store.ranges) == 1
    assert reader.budget.wait_count == 2
    sent.release()
    await wait_all_tasks_blocked()
    assert sorted(found[2:]) == [-60_000, -40_000]
    assert reader.budget.used_bytes == 0


async def test_a_read_larger_than_the_budget_runs_alone():
    reader, _ = await reader_of(cache_bytes=0)
    assert await read(reader, 0, 2 * BUDGET_BYTES) == CONTENT[: 2 * BUDGET_BYTES]


async def test_a_reader_that_waited_for_the_budget_shares_a_finished_read(nursery):
    reader, store = await reader_of()
    sent = await reader.read(KEY, 50_000, 90_000)
    for _ in range(2):
        nursery.start_soon(read, reader, 0, 20_000)
    await wait_all_tasks_blocked()
    sent.release()
    await wait_all_tasks_blocked()
    assert store.ranges == [(50_000, 90_000), (0, 20_000)]
    assert reader.budget.used_bytes == 0


async def test_cached_reads_need_no_budget():
    reader, _ = await reader_of()
    await read(reader, 0, 1000)
    assert reader.budget.acquire_nowait(BUDGET_BYTES)
    assert await read(reader, 0, 1000) == CONTENT[:1000]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(0, 5), st.sampled_from(["read", "give up"])),
        max_size=25,
    ),
    st.sampled_from([0, 30_000, CACHE_BYTES]),
    st.integers(0, 2**16),
)
def test_failed_and_cancelled_reads_do_not_change_the_bytes_of_others(wanted, cache_bytes, seed):
    """Readers of overlapping ranges come at any time; some give up, and some GETs fail."""
    rng = random.Random(seed)

    async def main() -> None:
        reader, store = await reader_of(cache_bytes=cache_bytes)
        store.delay(On("get_range"), 3.0)
        if rng.random() < 0.3:
            store.fail(On("get_range", times=rng.randint(1, 3)), StoreUnavailable)

        async def use(start: int, end: int, came_at: int, act: str) -> None:
            await trio.sleep(came_at)
            with trio.move_on_after(rng.choice([0.5, 2.0, 4.0]) if act == "give up" else 1000):
                try:
                    slices = await reader.read(KEY, start, end)
                except StoreUnavailable:
                    return
                assert slices is not None
                try:
                    await trio.sleep(rng.choice([0, 2]))
                    data = b"".join(slices.buffers)
                    assert data
                    assert data == CONTENT[start : start + len(data)]
                    assert len(data) <= end - start
                finally:
                    slices.release()

        async with trio.open_nursery() as nursery:
            for start, size, came_at, act in wanted:
                nursery.start_soon(use, 4000 * start, 4000 * min(25, start + size), came_at, act)
        assert reader.budget.used_bytes == 0
        assert not reader.budget.waiting_count
        assert (reader.cache.pinned_bytes, reader.cache.size_bytes <= cache_bytes) == (0, True)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
