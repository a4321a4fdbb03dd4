import math
from contextlib import aclosing, suppress

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.errors import NotFound
from kafscale.metrics import Metrics
from kafscale.store.limited import LimitedStore, LimiterStatistics, StoreLimiter
from kafscale.store.memory import MemoryStore
from kafscale.store.metered import StoreMetrics
from kafscale.testing.faulty_store import FaultyStore, On


def limiter_of(concurrency):
    return StoreLimiter(concurrency, StoreMetrics.register(Metrics()))


class Line:
    """Operations driven one by one through a limited store, beside the model of what they should do."""

    def __init__(self, concurrency, nursery):
        self.limit = concurrency or math.inf
        self.limiter = limiter_of(concurrency)
        self.faulty = FaultyStore(MemoryStore())
        self.store = LimitedStore(self.faulty, self.limiter)
        self.nursery = nursery
        self.gates = {}
        self.scopes = {}
        self.running = []
        self.waiting = []

    def start(self, number):
        key = f"{number}"
        self.gates[number] = self.faulty.hold(On("get", key))
        self.scopes[number] = trio.CancelScope()
        if len(self.running) < self.limit:
            self.running.append(number)
        else:
            self.waiting.append(number)
        self.nursery.start_soon(self._get, key, self.scopes[number])

    async def _get(self, key, scope):
        with scope:
            with suppress(NotFound):
                await self.store.get(key)

    def end(self, index):
        """An operation at the store comes back."""
        if self.running:
            number = self.running.pop(index % len(self.running))
            self.gates[number].open()
            self._promote()

    def cancel(self, index):
        """Any operation is cancelled, where it waits or where it runs."""
        everyone = self.running + self.waiting
        if everyone:
            number = everyone[index % len(everyone)]
            self.scopes[number].cancel()
            (self.running if number in self.running else self.waiting).remove(number)
            self._promote()

    def end_and_cancel_next(self, index):
        """A place is given to the first in line and its wait is cancelled in the same round."""
        if self.running and self.waiting:
            self.end(index)
            promoted = self.running.pop()
            self.scopes[promoted].cancel()
            self._promote()

    def try_acquire(self, index):
        """Succeeds only if there is room and nobody waits; the token goes back at once."""
        token = self.limiter.try_acquire()
        assert (token is not None) == (len(self.running) < self.limit)
        if token is not None:
            with token:
                assert self.limiter.statistics().in_use_count == len(self.running) + 1

    def _promote(self):
        if self.waiting and len(self.running) < self.limit:
            self.running.append(self.waiting.pop(0))

    def check(self):
        assert self.limiter.statistics() == LimiterStatistics(len(self.running), len(self.waiting), self.limit)
        at_the_store = {number for number, gate in self.gates.items() if gate.arrived_count}
        assert at_the_store >= set(self.running)
        assert at_the_store.isdisjoint(self.waiting)


actions = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "end", "cancel", "end_and_cancel_next", "try_acquire"]), st.integers(0, 9)
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), actions)
async def test_places_are_kept_in_order_and_given_back_whatever_is_cancelled(concurrency, steps):
    async with trio.open_nursery() as nursery:
        line = Line(concurrency, nursery)
        for number, (action, index) in enumerate(steps):
            getattr(line, action)(number if action == "start" else index)
            await trio.testing.wait_all_tasks_blocked()
            line.check()
        nursery.cancel_scope.cancel()
    assert line.limiter.statistics() == LimiterStatistics(0, 0, line.limit)


async def test_one_task_may_have_several_operations_under_way():
    limiter = limiter_of(2)
    with await limiter.acquire():
        with await limiter.acquire():
            assert limiter.try_acquire() is None
        assert limiter.statistics().in_use_count == 1


async def test_a_token_in_hand_is_used_at_the_store_behind():
    store = LimitedStore(MemoryStore(), limiter_of(1))
    await store.put("key", [b"data"])
    token = store.limiter.try_acquire()
    with token:
        part = await store.store.get("key")
    assert part.data == b"data"
    assert store.limiter.statistics().in_use_count == 0


async def test_a_listing_holds_a_token_for_each_page_only():
    store = LimitedStore(MemoryStore(), limiter_of(1))
    for number in range(1500):
        await store.put(f"{number:05d}", [])
    count = 0
    async with aclosing(store.list("")) as pages:
        async for page in pages:
            assert store.limiter.statistics().in_use_count == 0
            await store.head(page[0].key)  # would hang otherwise
            count += len(page)
    assert count == 1500


async def test_an_operation_that_fails_gives_its_token_back():
    store = LimitedStore(MemoryStore(), limiter_of(1))
    for _ in range(3):
        with pytest.raises(NotFound):
            await store.get("missing")
    assert store.limiter.statistics() == LimiterStatistics(0, 0, 1)


async def test_waits_are_measured_and_shown(autojump_clock):
    metrics = StoreMetrics.register(Metrics())
    faulty = FaultyStore(MemoryStore())
    faulty.delay(On("put"), 2.0)
    store = LimitedStore(faulty, StoreLimiter(1, metrics))
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(store.put, f"{number}", [b""])
        await trio.testing.wait_all_tasks_blocked()
        text = metrics.registry.expose()
        for line in ("kafscale_store_in_use 1", "kafscale_store_waiting 2", "kafscale_store_limit 1"):
            assert f"\n{line}\n" in text
    assert metrics.wait_seconds.total == pytest.approx(0 + 2 + 4)
    assert sum(metrics.wait_seconds.counts) == 3


async def test_without_a_limit_nothing_waits():
    metrics = StoreMetrics.register(Metrics())
    limiter = StoreLimiter(0, metrics)
    tokens = [await limiter.acquire() for _ in range(1000)]
    assert limiter.statistics() == LimiterStatistics(1000, 0, math.inf)
    for token in tokens:
        with token:
            pass
    assert "\nkafscale_store_limit 0\n" in metrics.registry.expose()
