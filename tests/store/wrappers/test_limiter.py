import math
from collections import Counter
from contextlib import aclosing
from random import Random

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.errors import NotFound, SlowDown, StoreUnavailable
from kafscale.metrics import Metrics
from kafscale.store.memory import MemoryStore
from kafscale.store.wrappers.limiter import (
    CUT_FACTOR,
    POLICIES,
    Allowance,
    LimitedStore,
    PrefetchStore,
    StoreLimiter,
    WorkClass,
)
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.retrying import RetryingStore, RetryPolicy
from kafscale.testing.faulty_store import FaultyStore, On
from tests.devtools.fakes.simulated_store import SimulatedStore

QUEUEING = (WorkClass.ACKNOWLEDGE, WorkClass.FETCH, WorkClass.BACKGROUND)  # most important first
ACKNOWLEDGE, FETCH, BACKGROUND = QUEUEING
PREFETCH = WorkClass.PREFETCH


def limiter_of(concurrency, **options):
    return StoreLimiter(concurrency, StoreMetrics.register(Metrics()), **options)


def give_back(token, error=None):
    token.__exit__(type(error), error, None)


def may_take(work_class, statistics):
    share = max(1, POLICIES[work_class].share * statistics.allowed_count)
    return statistics.in_use[work_class] + 1 <= share


class WatchedLimiter(StoreLimiter):
    """Shows how things stand before each token that is granted."""

    def _grant(self, line, token):
        self.on_grant(token.work_class, self.statistics())
        super()._grant(line, token)


class Traffic:
    """Operations driven step by step, and what must hold of each token that is granted.

    passed: for each class, the tokens that went to others since its first in line could have had one.
    """

    def __init__(self, concurrency, nursery):
        self.limiter = WatchedLimiter(concurrency, StoreMetrics.register(Metrics()))
        self.limiter.on_grant = self.watch_grant
        self.broken = []
        self.nursery = nursery
        self.next_number = 0
        self.waiting = {}  # number -> class, in order of arrival
        self.scopes = {}
        self.tokens = {}  # number -> token, of those at the store
        self.last_granted = dict.fromkeys(QUEUEING, -1)
        self.passed = Counter()
        self.served, self.cancelled = 0, 0

    # ---- steps

    def start(self, work_class):
        self.nursery.start_soon(self._acquire, work_class)

    async def _acquire(self, work_class):
        self.next_number += 1
        number = self.next_number
        self.waiting[number] = work_class
        with trio.CancelScope() as scope:
            self.scopes[number] = scope
            self.tokens[number] = await self.limiter.acquire(work_class)
            self.last_granted[work_class] = max(self.last_granted[work_class], number)
            self.served += 1
        self.cancelled += scope.cancelled_caught
        del self.waiting[number]

    def start_nowait(self, work_class):
        free = self.limiter.statistics()
        token = self.limiter.try_acquire(work_class)
        has_room = free.in_use_count + 1 <= free.allowed_count and may_take(work_class, free)
        assert (token is not None) == has_room
        if token is not None:
            self.next_number += 1
            self.tokens[self.next_number] = token

    def end(self, index, error=None):
        """An operation at the store comes back, with this error."""
        if self.tokens:
            give_back(self.tokens.pop(sorted(self.tokens)[index % len(self.tokens)]), error)

    def slow_down(self, index):
        self.end(index, SlowDown("told by the store"))

    def cancel_running(self, index):
        self.end(index, KeyboardInterrupt())  # as good a BaseException as Cancelled, which can't be made

    def cancel_waiting(self, index):
        if self.waiting:
            self.scopes[sorted(self.waiting)[index % len(self.waiting)]].cancel()

    def end_and_cancel_all(self, index):
        """Some are granted a token, and all that wait, those included, are cancelled before they run again."""
        self.end(index)
        for number in self.waiting:
            self.scopes[number].cancel()

    def cancel_all_and_end(self, index):
        """All that wait are cancelled, and before they run again there is a token."""
        for number in self.waiting:
            self.scopes[number].cancel()
        self.end(index)

    # ---- what must hold

    def watch_grant(self, granted, before):
        """An error in the midst of the limiter's work would only bring forth others."""
        try:
            self.check_grant(granted, before)
        except AssertionError as exc:
            self.broken.append(exc)

    def check_grant(self, granted, before):
        assert before.in_use_count + 1 <= before.allowed_count <= before.limit
        assert may_take(granted, before)  # never above its share
        rivals = [each for each in QUEUEING if before.waiting[each] and may_take(each, before)]
        if granted in rivals:
            turns = [each for each in rivals if self.passed[each] >= POLICIES[each].patience_count]
            assert granted is (turns or rivals)[0], "a more important class waits"
            self.passed[granted] = 0
        else:
            assert not rivals, "who did not wait came before those that did"
        for rank, each in enumerate(QUEUEING):
            if each in rivals and each is not granted:
                self.passed[each] += 1
                assert self.passed[each] <= POLICIES[each].patience_count + rank, "starved"

    def check(self):
        """When all is at rest."""
        if self.broken:
            raise self.broken[0]
        found = self.limiter.statistics()
        assert found.in_use_count == len(self.tokens)
        for each in WorkClass:
            assert found.in_use[each] == sum(token.work_class is each for token in self.tokens.values())
        for each in QUEUEING:
            numbers = [number for number, work_class in self.waiting.items() if work_class is each]
            assert found.waiting[each] == len(numbers)
            assert self.last_granted[each] < min(numbers, default=math.inf), "not in order of arrival"
            if not numbers:
                self.passed[each] = 0
            idle = found.in_use_count + 1 <= found.allowed_count
            assert not (numbers and idle and may_take(each, found)), "a token is free and somebody waits for it"


steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from(QUEUEING)),
        st.tuples(st.just("start"), st.sampled_from(QUEUEING)),
        st.tuples(st.just("start_nowait"), st.sampled_from(list(WorkClass))),
        st.tuples(
            st.sampled_from(
                [
                    "end",
                    "end",
                    "slow_down",
                    "cancel_running",
                    "cancel_waiting",
                    "end_and_cancel_all",
                    "cancel_all_and_end",
                ]
            ),
            st.integers(0, 9),
        ),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([0, 1, 2, 5, 12]), st.integers(0, 30), steps)
async def test_the_limiter_grants_every_token_by_its_rules_and_loses_none(concurrency, crowd, steps):
    """A crowd of each class waits from the start, so that turns come up."""
    async with trio.open_nursery() as nursery:
        traffic = Traffic(concurrency, nursery)
        for number in range(crowd):
            traffic.start(QUEUEING[number % 3])
        await trio.testing.wait_all_tasks_blocked()
        for step, argument in steps:
            getattr(traffic, step)(argument)
            await trio.testing.wait_all_tasks_blocked()
            traffic.check()
        while traffic.tokens:
            traffic.end(0)
            await trio.testing.wait_all_tasks_blocked()
            traffic.check()
        assert not traffic.waiting
    assert traffic.served + traffic.cancelled == len(traffic.scopes)


@pytest.mark.parametrize("concurrency", [1, 2, 64])
async def test_no_class_starves_while_the_others_never_let_up(concurrency):
    """Always somebody waits in every class: each gets at least what its patience promises."""
    limiter = limiter_of(concurrency)
    served = Counter()

    async def work(work_class):
        while sum(served.values()) < 3000:
            with await limiter.acquire(work_class):
                await trio.lowlevel.checkpoint()
                served[work_class] += 1

    async with trio.open_nursery() as nursery:
        for work_class in QUEUEING:
            for _ in range(2 * concurrency):
                nursery.start_soon(work, work_class)
    assert served[ACKNOWLEDGE] > served[FETCH] > served[BACKGROUND]
    assert served[FETCH] > 3000 / (POLICIES[FETCH].patience_count + 3)
    assert served[BACKGROUND] > 3000 / (POLICIES[BACKGROUND].patience_count + 4)


async def test_a_class_keeps_its_turn_when_its_first_in_line_is_cancelled():
    limiter = limiter_of(1)
    token = await limiter.acquire(ACKNOWLEDGE)
    granted = []

    async def want(work_class, scope):
        with scope:
            granted.append(await limiter.acquire(work_class))

    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()
        nursery.start_soon(want, FETCH, first)
        await trio.testing.wait_all_tasks_blocked()
        for work_class in [ACKNOWLEDGE] * 9 + [FETCH]:
            nursery.start_soon(want, work_class, trio.CancelScope())
        await trio.testing.wait_all_tasks_blocked()
        for count in range(5):
            if count == 3:
                first.cancel()
                await trio.testing.wait_all_tasks_blocked()
            give_back(token)
            await trio.testing.wait_all_tasks_blocked()
            token = granted[-1]
        nursery.cancel_scope.cancel()
    assert [each.work_class for each in granted] == [ACKNOWLEDGE] * 4 + [FETCH]


async def test_background_work_leaves_the_rest_of_the_tokens_alone():
    limiter = limiter_of(64)
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(limiter.acquire, BACKGROUND)
        await trio.testing.wait_all_tasks_blocked()
        found = limiter.statistics()
        assert (found.in_use[BACKGROUND], found.waiting[BACKGROUND]) == (16, 84)
        for _ in range(48):
            with trio.fail_after(1):
                await limiter.acquire(FETCH)
        nursery.cancel_scope.cancel()
    assert limiter.statistics().waiting_count == 0


async def test_prefetch_has_a_limited_share_and_yields_to_all_other_classes():
    limiter = limiter_of(8)
    tokens = [limiter.try_acquire(PREFETCH) for _ in range(3)]
    assert [token is not None for token in tokens] == [True, True, False]
    for _ in range(6):
        await limiter.acquire(FETCH)
    give_back(tokens[0])
    async with trio.open_nursery() as nursery:
        await limiter.acquire(ACKNOWLEDGE)
        nursery.start_soon(limiter.acquire, FETCH)
        await trio.testing.wait_all_tasks_blocked()
        assert limiter.try_acquire(PREFETCH) is None
        give_back(tokens[1])
        assert limiter.try_acquire(PREFETCH) is None  # it went to the fetch that waited


async def test_a_task_can_hold_several_tokens():
    limiter = limiter_of(2)
    with await limiter.acquire(FETCH):
        with await limiter.acquire(ACKNOWLEDGE):
            assert limiter.try_acquire(ACKNOWLEDGE) is None
        assert limiter.statistics().in_use_count == 1


async def test_without_a_limit_nothing_waits_and_slow_down_changes_nothing():
    metrics = StoreMetrics.register(Metrics())
    limiter = StoreLimiter(0, metrics)
    tokens = [await limiter.acquire(work_class) for _ in range(300) for work_class in QUEUEING]
    assert limiter.statistics().in_use_count == 900
    for token in tokens:
        give_back(token, SlowDown("too many"))
    found = limiter.statistics()
    assert (found.in_use_count, found.allowed_count, found.limit) == (0, math.inf, math.inf)
    assert {"kafscale_store_limit 0", "kafscale_store_allowed 0"} < set(metrics.registry.expose().splitlines())


@pytest.mark.parametrize(
    ("error", "lowers", "raises"),
    [
        (None, False, True),
        (NotFound("an answer"), False, True),
        (SlowDown("fewer, please"), True, False),
        (StoreUnavailable("says nothing of load"), False, False),
        (KeyboardInterrupt(), False, False),
    ],
)
async def test_the_outcome_of_an_operation_moves_the_allowed_count(error, lowers, raises):
    limiter = limiter_of(10)
    give_back(await limiter.acquire(FETCH), SlowDown("so that there is room above"))
    for _ in range(12):
        give_back(await limiter.acquire(FETCH))
    before = limiter.statistics().allowed_count
    assert 1 < before < 10
    for _ in range(before + 1):
        give_back(await limiter.acquire(FETCH), error)
    after = limiter.statistics().allowed_count
    assert (after < before, after > before) == (lowers, raises)


async def test_operations_above_a_lowered_allowance_are_left_to_finish():
    limiter = limiter_of(10)
    tokens = [await limiter.acquire(FETCH) for _ in range(10)]
    give_back(tokens.pop(), SlowDown("fewer, please"))
    assert limiter.statistics().allowed_count == 7
    assert limiter.try_acquire(FETCH) is None
    give_back(tokens.pop())
    give_back(tokens.pop())
    assert limiter.try_acquire(FETCH) is None  # seven are still there
    give_back(tokens.pop())
    assert limiter.try_acquire(FETCH) is not None


async def flood(is_adaptive):
    """200 writers, 20 writes each, over a store that slows down past 16 at once. Returns seconds and the store."""
    metrics = StoreMetrics.register(Metrics())
    simulated = SimulatedStore(MemoryStore(), latency_seconds=0.02, slows_past_count=16)
    limited = LimitedStore(simulated, StoreLimiter(64, metrics, is_adaptive=is_adaptive), ACKNOWLEDGE)
    store = RetryingStore(limited, RetryPolicy(deadline_seconds=math.inf), Random(7), metrics)
    started = trio.current_time()

    async def write(name):
        for number in range(20):
            await store.put(f"{name}/{number}", [b""])

    async with trio.open_nursery() as nursery:
        for name in range(200):
            nursery.start_soon(write, name)
    return trio.current_time() - started, simulated


async def test_slow_down_finds_the_concurrency_that_the_store_bears(autojump_clock):
    steady_seconds, steady = await flood(True)
    fixed_seconds, fixed = await flood(False)
    assert steady.answers["done"] == fixed.answers["done"] == 4000
    assert steady.answers["slow_down"] < 0.1 * fixed.answers["slow_down"], (steady.answers, fixed.answers)
    assert steady.answers["slow_down"] < 0.05 * 4000
    best_seconds = 4000 / 16 * 0.02
    assert steady_seconds < 1.4 * best_seconds
    assert steady_seconds < fixed_seconds, (steady_seconds, fixed_seconds)


def refuse(allowance, in_use_count=None):
    """A SlowDown to an operation that has just begun."""
    count = allowance.count if in_use_count is None else in_use_count
    allowance.slowed_down(cuts_before_count=allowance.cuts_count, in_use_count=count)


def test_a_refusal_cuts_and_answers_raise_up_to_the_limit():
    allowance = Allowance(64)
    refuse(allowance)
    assert allowance.count == math.floor(64 * CUT_FACTOR)
    for _ in range(10_000):
        allowance.answered()
        assert allowance.count <= 64
    assert allowance.count == 64


def test_one_window_of_answers_raises_the_allowance_by_about_one():
    allowance = Allowance(64)
    refuse(allowance, 30)
    before = allowance.count
    for _ in range(before + 2):
        allowance.answered()
    assert allowance.count == before + 1


def test_all_that_began_before_a_cut_cause_no_other():
    allowance = Allowance(64)
    for _ in range(64):
        allowance.slowed_down(cuts_before_count=0, in_use_count=64)
    assert allowance.cuts_count == 1
    refuse(allowance)
    assert allowance.count == math.floor(64 * CUT_FACTOR * CUT_FACTOR) - 1  # of whole operations


def test_a_cut_starts_from_the_operations_in_use():
    allowance = Allowance(64)
    refuse(allowance, 10)
    assert allowance.count == 7


def test_one_is_always_allowed():
    allowance = Allowance(3)
    for _ in range(20):
        refuse(allowance)
    assert allowance.count == 1


@pytest.mark.parametrize("allowance", [Allowance(math.inf), Allowance(64, is_adaptive=False)])
def test_an_allowance_without_a_limit_or_adaptation_never_changes(allowance):
    before = allowance.count
    allowance.slowed_down(cuts_before_count=0, in_use_count=10)
    allowance.answered()
    assert allowance.count == before
    assert allowance.cuts_count == 0


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
