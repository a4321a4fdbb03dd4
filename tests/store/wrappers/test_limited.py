from contextlib import aclosing

import pytest
import trio
import trio.testing

from kafscale.errors import NotFound
from kafscale.metrics import Metrics
from kafscale.store.memory import MemoryStore
from kafscale.store.wrappers.limited import LimitedStore, PrefetchStore
from kafscale.store.wrappers.limiter import StoreLimiter, WorkClass
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.testing.faulty_store import FaultyStore, On


@pytest.fixture
def limiter():
    return StoreLimiter(1, StoreMetrics.register(Metrics()))


async def test_a_listing_holds_a_token_for_each_page_only(limiter):
    store = LimitedStore(MemoryStore(), limiter)
    for number in range(1500):
        await store.put(f"{number:05d}", [])
    count = 0
    async with aclosing(store.list("")) as pages:
        async for page in pages:
            assert limiter.statistics().in_use_count == 0
            await store.head(page[0].key)  # would hang otherwise
            count += len(page)
    assert count == 1500


async def test_an_operation_that_fails_gives_its_token_back(limiter):
    store = LimitedStore(MemoryStore(), limiter)
    for _ in range(3):
        with pytest.raises(NotFound):
            await store.get("missing")
    assert limiter.statistics().in_use_count == 0


@pytest.mark.parametrize("work_class", [WorkClass.ACKNOWLEDGE, WorkClass.FETCH, WorkClass.BACKGROUND])
async def test_every_operation_holds_one_token_of_its_class(work_class):
    limiter = StoreLimiter(8, StoreMetrics.register(Metrics()))
    faulty = FaultyStore(MemoryStore())
    store = LimitedStore(faulty, limiter, work_class)
    await store.put("key", [b"0123"])
    seen = []

    async def look(call):
        found = limiter.statistics()
        seen.append((call.operation, found.in_use[work_class], found.in_use_count))

    faulty.rule(On(), look)
    await store.get("key")
    await store.get_range("key", 0, 1)
    await store.get_tail("key", 1)
    await store.head("key")
    await store.put("key", [b"4"])
    await store.put_if_absent("other", [b"5"])
    await store.put_if_match("other", [b"6"], (await store.head("other")).etag)
    async with aclosing(store.list("")) as pages:
        assert len([page async for page in pages]) == 1
    await store.delete(["key"])
    reads, writes = ["get", "get_range", "get_tail", "head"], ["put", "put_if_absent", "head", "put_if_match"]
    operations = [*reads, *writes, "list", "list", "delete"]
    assert seen == [(operation, 1, 1) for operation in operations]


async def test_waits_are_measured_and_shown_by_class(autojump_clock):
    metrics = StoreMetrics.register(Metrics())
    faulty = FaultyStore(MemoryStore())
    faulty.delay(On("put"), 2.0)
    limiter = StoreLimiter(1, metrics)
    store = LimitedStore(faulty, limiter, WorkClass.ACKNOWLEDGE)
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(store.put, f"{number}", [b""])
        await trio.testing.wait_all_tasks_blocked()  # tasks begin in any order
        nursery.start_soon(LimitedStore(faulty, limiter, WorkClass.BACKGROUND).put, "merged", [b""])
        await trio.testing.wait_all_tasks_blocked()
        text = metrics.registry.expose()
        for line in (
            'kafscale_store_in_use{class="acknowledge"} 1',
            'kafscale_store_in_use{class="fetch"} 0',
            'kafscale_store_waiting{class="acknowledge"} 2',
            'kafscale_store_waiting{class="background"} 1',
            "kafscale_store_limit 1",
            "kafscale_store_allowed 1",
        ):
            assert f"\n{line}\n" in text
    waits = metrics.wait_seconds.of("acknowledge")
    assert waits.total == pytest.approx(0 + 2 + 4)
    assert sum(waits.counts) == 3
    assert metrics.wait_seconds.of("background").total == pytest.approx(6)


async def test_a_prefetch_is_made_if_there_is_a_place_and_skipped_otherwise(limiter):
    memory = MemoryStore()
    await memory.put("key", [b"0123456789"])
    prefetch = PrefetchStore(memory, limiter)
    part = await prefetch.get_range("key", 2, 3)
    assert bytes(part.data) == b"234"
    with await limiter.acquire(WorkClass.FETCH):
        with trio.fail_after(1):
            assert await prefetch.get_range("key", 2, 3) is None
    assert prefetch.skipped_count.value == 1
    assert limiter.statistics().in_use_count == 0
    with pytest.raises(NotFound):
        await prefetch.get_range("missing", 0, 1)
    assert limiter.statistics().in_use_count == 0


async def test_without_a_limiter_no_prefetch_is_skipped():
    memory = MemoryStore()
    await memory.put("key", [b"0123456789"])
    assert bytes((await PrefetchStore(memory).get_range("key", 9, 5)).data) == b"9"
