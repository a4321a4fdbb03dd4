from contextlib import aclosing
from random import Random

import pytest
import trio
import trio.testing

from kafscale.errors import Conflict, NotFound, SlowDown, StoreError, StoreUnavailable
from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore, On, StoreCall


@pytest.fixture
def memory():
    return MemoryStore()


@pytest.fixture
def store(memory):
    return FaultyStore(memory)


async def test_a_failure_before_the_effect_has_none(store, memory):
    store.fail(On("put"), SlowDown)
    with pytest.raises(SlowDown, match="injected into put of key"):
        await store.put("key", [b""])
    with pytest.raises(NotFound):
        await memory.get("key")


async def test_a_lost_reply_comes_after_the_effect(store, memory):
    store.lose_reply(On("put"))
    with pytest.raises(StoreUnavailable):
        await store.put("key", [b"data"])
    assert (await memory.get("key")).data == b"data"


async def test_a_rule_meets_some_operations_on_some_keys(store):
    rule = store.fail(On("put_*", "*.kfs", skip=1, times=2), Conflict)
    outcomes = []
    for number in range(5):
        await store.put(f"{number}.kfs", [b""])
        await store.put_if_absent(f"{number}.index", [b""])
        try:
            await store.put_if_absent(f"new-{number}.kfs", [b""])
            outcomes.append("done")
        except Conflict:
            outcomes.append("failed")
    assert outcomes == ["done", "failed", "failed", "done", "done"]
    assert rule.met_count == 2


async def test_a_delete_is_met_for_any_of_its_keys(store):
    store.fail(On("delete", "b"))
    with pytest.raises(StoreUnavailable):
        await store.delete(["a", "b"])
    await store.delete(["a"])
    assert store.calls == [StoreCall("delete", ("a", "b")), StoreCall("delete", ("a",))]


async def test_a_listing_fails_page_by_page(store, memory):
    for number in range(1001):
        await memory.put(f"{number:05d}", [])
    store.fail(On("list", skip=1))
    async with aclosing(store.list("")) as pages:
        assert len(await anext(pages)) == 1000
        with pytest.raises(StoreUnavailable):
            await anext(pages)
    assert store.count("list") == 2


@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_gate_holds_operations_before_or_after_their_effect(store, memory, after_effect):
    gate = store.hold(On("put"), after_effect=after_effect)
    async with trio.open_nursery() as nursery:
        for key in ("a", "b"):
            nursery.start_soon(store.put, key, [b""])
        await gate.wait_arrived(2)
        await trio.testing.wait_all_tasks_blocked()
        assert (memory.used_bytes, [page async for page in memory.list("")] != []) == (0, after_effect)
        gate.open()
    await store.put("c", [b""])
    assert gate.arrived_count == 3
    [page] = [page async for page in memory.list("")]
    assert len(page) == 3


async def test_delays_take_the_clocks_time(store, autojump_clock):
    store.delay(On("put"), 5.0, jitter_seconds=1.0)
    started = trio.current_time()
    await store.put("key", [b""])
    assert 5.0 <= trio.current_time() - started <= 6.0


async def test_a_hook_sees_the_call_and_decides(store):
    async def refuse_large_names(call):
        await trio.lowlevel.checkpoint()
        if len(call.keys[0]) > 3:
            raise Conflict("too long")

    store.rule(On("put"), refuse_large_names)
    await store.put("abc", [b""])
    with pytest.raises(Conflict):
        await store.put("abcd", [b""])


async def test_a_healed_store_has_no_faults(store):
    store.fail(On())
    store.heal()
    await store.put("key", [b""])


async def events_of(seed):
    """What happens to 100 operations, one after the other."""
    store = FaultyStore(MemoryStore(), Random(seed))
    store.unreliable(0.5)
    events = []
    for number in range(100):
        try:
            await store.put_if_absent(f"{number % 50}", [b""])
            events.append((trio.current_time(), "done"))
        except StoreError as exc:
            events.append((trio.current_time(), type(exc).__name__))
    return events


async def test_a_seed_repeats_its_faults(autojump_clock):
    runs = []
    for seed in (1, 1, 2):
        started = trio.current_time()
        runs.append([(round(at - started, 6), event) for at, event in await events_of(seed)])
    assert runs[0] == runs[1] != runs[2]
    assert {event for _, event in runs[0]} == {"done", "StoreUnavailable", "SlowDown", "Conflict", "PreconditionFailed"}


async def test_a_truncated_body_reports_the_full_object_size(store):
    await store.put("key", [bytes(100)])
    store.truncate(On("get*", times=3))
    parts = [await store.get("key"), await store.get_range("key", 10, 50), await store.get_tail("key", 20)]
    assert all(len(part.data) < full for part, full in zip(parts, (100, 50, 20), strict=True))
    assert {part.object_size_bytes for part in parts} == {100}
    assert len((await store.get("key")).data) == 100


async def test_later_pages_of_a_listing_are_as_of_the_first(store, memory):
    store.page_max_count = 2
    for number in range(5):
        await store.put(f"{number}", [b""])
    pages = []
    async with aclosing(store.list("")) as listing:
        async for page in listing:
            pages.append([info.key for info in page])
            await memory.delete(["4"])
    assert pages == [["0", "1"], ["2", "3"], ["4"]]
    assert store.count("list") == 4  # the last one says that there are no more


async def test_one_rule_can_end_before_the_others(store):
    rules = [store.fail(On("put"), SlowDown), store.fail(On("get"), StoreUnavailable)]
    store.end(rules[0])
    store.end(rules[0])
    await store.put("key", [b""])
    with pytest.raises(StoreUnavailable):
        await store.get("key")
