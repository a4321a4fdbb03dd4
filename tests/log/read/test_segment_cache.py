"""The cache of ranges: what it holds, how much of it, and what it may let go."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafscale.concurrency.byte_budget import ByteBudget, Share
from kafscale.log.read.segment_cache import LARGEST_FRACTION, RANGE_OVERHEAD_BYTES, Range, SegmentCache
from kafscale.store.paths import SegmentKey

KEYS = [SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=base) for base in (0, 100)]
LIMIT = 40 * 1024


def share_of(budget: ByteBudget, size_bytes: int) -> Share:
    assert budget.acquire_nowait(size_bytes)
    return Share(budget, size_bytes)


def content(key: SegmentKey, start: int, end: int) -> bytes:
    """What a segment has at these positions."""
    return bytes((key.base_offset + position) % 251 for position in range(start, end))


def load(cache: SegmentCache, start: int, end: int, *, key: SegmentKey = KEYS[0]) -> Range:
    """A range that is there and pinned once."""
    wanted = cache.begin(key, start, end, share_of(ByteBudget(1 << 30), end - start))
    cache.landed(wanted, memoryview(content(key, start, end)))
    return wanted


def test_the_cache_joins_adjacent_ranges_and_returns_exactly_the_requested_bytes():
    cache = SegmentCache(LIMIT)
    for start, end in ((100, 200), (200, 300), (400, 500)):
        load(cache, start, end).release()
    slices = cache.take(KEYS[0], 150, 450)
    assert b"".join(slices.buffers) == content(KEYS[0], 150, 300)
    slices.release()
    assert b"".join(cache.take(KEYS[0], 100, 120).buffers) == content(KEYS[0], 100, 120)
    assert cache.take(KEYS[0], 300, 400) is None
    assert cache.take(KEYS[1], 100, 200) is None


def test_a_gap_ends_at_the_next_cached_or_loading_range():
    cache = SegmentCache(LIMIT)
    load(cache, 100, 200)
    cache.begin(KEYS[0], 300, 400, share_of(ByteBudget(100), 100))
    assert cache.gap_end(KEYS[0], 0, 1000) == 100
    assert cache.gap_end(KEYS[0], 0, 50) == 50
    assert cache.gap_end(KEYS[0], 150, 1000) == 150
    assert cache.gap_end(KEYS[0], 200, 1000) == 300
    assert cache.gap_end(KEYS[0], 400, 1000) == 1000
    assert cache.find(KEYS[0], 350).data is None
    assert cache.find(KEYS[0], 299) is None


def test_the_least_recently_used_segment_goes_first_and_pinned_ones_never():
    cache = SegmentCache(LIMIT)
    pinned = load(cache, 0, 9_000)
    load(cache, 10_000, 18_000).release()
    load(cache, 20_000, 28_000).release()
    load(cache, 30_000, 38_000).release()
    cache.take(KEYS[0], 10_000, 18_000).release()
    load(cache, 40_000, 49_000).release()
    assert cache.take(KEYS[0], 20_000, 28_000) is None
    for start, end in ((10_000, 18_000), (30_000, 38_000), (0, 9_000)):
        assert cache.take(KEYS[0], start, end) is not None
    assert (cache.statistics.evicted_count, cache.statistics.evicted_bytes) == (1, 8_000)
    pinned.release()


@pytest.mark.parametrize("size_bytes", [LIMIT, int(LIMIT * LARGEST_FRACTION)])
def test_a_segment_as_large_as_the_cache_stays_in_the_fetch_budget(size_bytes):
    cache, budget = SegmentCache(LIMIT), ByteBudget(1 << 20)
    load(cache, 0, 5_000).release()
    large = cache.begin(KEYS[0], 10_000, 10_000 + size_bytes, share_of(budget, size_bytes))
    cache.landed(large, memoryview(bytes(size_bytes)))
    assert budget.used_bytes == size_bytes
    again = cache.take(KEYS[0], 10_000, 10_100)  # who comes while it is there has it too
    large.release()
    assert budget.used_bytes == size_bytes
    again.release()
    assert budget.used_bytes == 0
    assert cache.take(KEYS[0], 10_000, 10_100) is None
    assert cache.take(KEYS[0], 0, 5_000) is not None


def test_pinned_segments_leave_no_room():
    cache, budget = SegmentCache(LIMIT), ByteBudget(1 << 20)
    pins = [load(cache, start, start + 10_000 - RANGE_OVERHEAD_BYTES) for start in range(0, 40_000, 10_000)]
    assert cache.pinned_bytes == 40_000
    assert cache.reserve(KEYS[1], 0, 1_000) is None
    cache.put(KEYS[1], 0, memoryview(bytes(1_000)))
    wanted = cache.begin(KEYS[1], 0, 1_000, share_of(budget, 1_000))
    cache.landed(wanted, memoryview(bytes(1_000)))
    assert budget.used_bytes == 1_000
    wanted.release()
    pins[0].release()
    assert cache.reserve(KEYS[1], 0, 1_000) is not None


def test_bytes_that_came_along_are_kept_where_nothing_is_yet():
    cache = SegmentCache(LIMIT)
    load(cache, 100, 200)
    cache.put(KEYS[0], 150, memoryview(bytes(10)))
    cache.put(KEYS[0], 50, memoryview(bytes(51)))
    assert cache.take(KEYS[0], 50, 60) is None
    cache.put(KEYS[0], 50, memoryview(content(KEYS[0], 50, 100)))
    assert b"".join(cache.take(KEYS[0], 50, 150).buffers) == content(KEYS[0], 50, 150)


def test_a_dropped_segment_in_use_is_freed_by_its_last_user():
    cache, budget = SegmentCache(LIMIT), ByteBudget(1 << 20)
    sent, idle = load(cache, 0, 1_000), load(cache, 1_000, 2_000)
    idle.release()
    wanted = cache.begin(KEYS[0], 2_000, 3_000, share_of(budget, 1_000))
    cache.forget(KEYS[0])
    assert cache.size_bytes == sent.counted_bytes
    assert cache.gap_end(KEYS[0], 0, 3_000) == 3_000
    cache.landed(wanted, memoryview(bytes(1_000)))
    assert budget.used_bytes == 1_000
    wanted.release()
    assert bytes(sent.data) == content(KEYS[0], 0, 1_000)
    sent.release()
    assert (cache.size_bytes, cache.pinned_bytes, budget.used_bytes) == (0, 0, 0)


@attrs.define(eq=False)
class _Held:
    """What a user of the machine below has in hand: slices and what they must be."""

    slices: object
    expected: bytes


class CacheMachine(RuleBasedStateMachine):
    """Loads, failures, hits, evictions and deletions in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cache, self.budget = SegmentCache(LIMIT), ByteBudget(1 << 20)
        self.loading: list[Range] = []
        self.users: list[_Held] = []
        self.pins: list[Range] = []

    @rule(key=st.sampled_from(KEYS), start=st.integers(0, 60), size=st.integers(1, 12), ahead=st.booleans())
    def begin(self, key: SegmentKey, start: int, size: int, ahead: bool) -> None:
        start, end = start * 1000, (start + size) * 1000
        end = self.cache.gap_end(key, start, end)
        if end == start:
            return
        if ahead:
            wanted = self.cache.reserve(key, start, end)
        else:
            wanted = self.cache.begin(key, start, end, share_of(self.budget, end - start))
        if wanted is not None:
            self.loading.append(wanted)

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), fails=st.booleans())
    def end(self, data: st.DataObject, fails: bool) -> None:
        wanted = self.loading.pop(data.draw(st.integers(0, len(self.loading) - 1)))
        if fails:
            self.cache.failed(wanted, None)
            wanted.release()
        else:
            self.cache.landed(wanted, memoryview(content(wanted.key, wanted.start, wanted.end)))
            self.pins.append(wanted)

    @rule(key=st.sampled_from(KEYS), start=st.integers(0, 70), size=st.integers(1, 20))
    def take(self, key: SegmentKey, start: int, size: int) -> None:
        start *= 1000
        slices = self.cache.take(key, start, start + size * 1000)
        if slices is not None:
            assert 0 < slices.size_bytes <= size * 1000
            self.users.append(_Held(slices, content(key, start, start + slices.size_bytes)))

    @precondition(lambda self: self.users or self.pins)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.users) + len(self.pins) - 1))
        if index < len(self.users):
            held = self.users.pop(index)
            assert b"".join(held.slices.buffers) == held.expected
            held.slices.release()
        else:
            self.pins.pop(index - len(self.users)).release()

    @rule(key=st.sampled_from(KEYS))
    def forget(self, key: SegmentKey) -> None:
        self.cache.forget(key)
        assert self.cache.gap_end(key, 0, 10**9) == 10**9

    @invariant()
    def is_within_its_limit(self) -> None:
        assert 0 <= self.cache.pinned_bytes <= self.cache.size_bytes <= LIMIT

    @invariant()
    def every_byte_is_counted_once(self) -> None:
        held = {*self.loading, *self.pins}
        for each in self.users:
            held |= set(each.slices.leases)
        assert self.budget.used_bytes == sum(each.size_bytes for each in held if not each.is_cached)
        assert self.cache.pinned_bytes == sum(each.counted_bytes for each in held if each.is_cached)

    @invariant()
    def no_two_ranges_overlap(self) -> None:
        for key in KEYS:
            position = 0
            while (end := self.cache.gap_end(key, position, 10**6)) < 10**6:
                position = self.cache.find(key, end).end
                assert position > end

    def teardown(self) -> None:
        for each in self.loading:
            self.cache.failed(each, None)
        for each in (*self.loading, *self.pins, *(user.slices for user in self.users)):
            each.release()
        assert (self.cache.pinned_bytes, self.budget.used_bytes) == (0, 0)
        for key in KEYS:
            self.cache.forget(key)
        assert self.cache.size_bytes == 0


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
