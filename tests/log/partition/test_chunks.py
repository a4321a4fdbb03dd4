"""The chunk pool: no overlap, nothing lost, first come first served."""

import random

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from trio.testing import wait_all_tasks_blocked

from kafscale.log.partition.chunks import CHUNK_BYTES, POISON, ChunkPool, Lease

CHUNK = 8


def test_a_lease_is_writable_and_has_the_requested_length():
    pool = ChunkPool(4 * CHUNK, CHUNK)
    lease = pool.acquire_nowait(CHUNK + 1)
    lease.view[:] = b"x" * (CHUNK + 1)
    assert (bytes(lease.view), pool.used_bytes) == (b"x" * (CHUNK + 1), 2 * CHUNK)
    lease.release()
    assert pool.used_bytes == 0


def test_chunks_are_free_after_as_many_releases_as_references():
    pool = ChunkPool(CHUNK, CHUNK)
    lease = pool.acquire_nowait(1)
    lease.retain()
    lease.release()
    assert pool.acquire_nowait(1) is None
    lease.release()
    assert pool.acquire_nowait(1) is not None


def test_use_after_the_last_release_is_caught():
    pool = ChunkPool(2 * CHUNK, CHUNK, poison=True)
    lease = pool.acquire_nowait(CHUNK)
    stale = lease.view
    lease.release()
    assert bytes(stale) == bytes([POISON]) * CHUNK
    for use in (lease.release, lease.retain, lambda: lease.view):
        with pytest.raises(AssertionError):
            use()


def test_large_and_small_requests_come_from_opposite_ends():
    pool = ChunkPool(16 * CHUNK, CHUNK)
    small = [pool.acquire_nowait(CHUNK) for _ in range(4)]
    large = [pool.acquire_nowait(6 * CHUNK) for _ in range(2)]
    assert [lease._first_chunk for lease in small] == [0, 1, 2, 3]
    assert [lease._first_chunk for lease in large] == [10, 4]


@pytest.mark.parametrize("size", [0, -1, 4 * CHUNK + 1])
async def test_an_impossible_size_is_refused_instead_of_waiting_for_ever(size):
    pool = ChunkPool(4 * CHUNK, CHUNK)
    with pytest.raises(ValueError, match="from a pool of 32"):
        pool.acquire_nowait(size)
    with pytest.raises(ValueError, match="from a pool of 32"):
        await pool.acquire(size)


def test_ten_thousand_partitions_with_one_small_batch_each_fit_the_default_pool():
    pool = ChunkPool(512 * 1024 * 1024)
    leases = [pool.acquire_nowait(100) for _ in range(10_000)]
    assert None not in leases
    assert pool.used_bytes == 10_000 * CHUNK_BYTES < pool.size_bytes // 2


def test_pressure_is_reported_once_for_each_crossing_of_three_quarters():
    calls = []
    pool = ChunkPool(8 * CHUNK, CHUNK)
    pool.on_pressure.append(lambda: calls.append(pool.used_bytes // CHUNK))
    leases = [pool.acquire_nowait(CHUNK) for _ in range(8)]
    assert calls == [6]
    for lease in leases[:3]:
        lease.release()
    pool.acquire_nowait(CHUNK)
    assert calls == [6, 6]


async def acquire_into(pool: ChunkPool, size: int, order: list[int], leases: list[Lease]) -> None:
    leases.append(await pool.acquire(size))
    order.append(size)


async def start_waiting(nursery, pool, size, order, leases):
    nursery.start_soon(acquire_into, pool, size, order, leases)
    await wait_all_tasks_blocked()


async def test_a_big_waiter_is_not_starved_by_small_ones(nursery):
    pool = ChunkPool(4 * CHUNK, CHUNK)
    first = [pool.acquire_nowait(CHUNK) for _ in range(3)]
    order, leases = [], []
    await start_waiting(nursery, pool, 4 * CHUNK, order, leases)
    await start_waiting(nursery, pool, CHUNK, order, leases)
    assert pool.acquire_nowait(CHUNK) is None, "a chunk is free, but others came first"
    assert pool.waiting_count == 2
    for lease in first:
        lease.release()
        await wait_all_tasks_blocked()
    assert order == [4 * CHUNK]
    leases[0].release()
    await wait_all_tasks_blocked()
    assert order == [4 * CHUNK, CHUNK]


async def test_a_waiter_reports_pressure(nursery):
    calls = []
    pool = ChunkPool(2 * CHUNK, CHUNK)
    lease = pool.acquire_nowait(2 * CHUNK)
    pool.on_pressure.append(lambda: calls.append(1))
    await start_waiting(nursery, pool, CHUNK, [], [])
    assert calls == [1]
    lease.release()


async def test_a_cancelled_waiter_unblocks_later_smaller_requests(nursery):
    pool = ChunkPool(4 * CHUNK, CHUNK)
    held = pool.acquire_nowait(3 * CHUNK)
    order, leases = [], []
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as impatient:
            await start_waiting(impatient, pool, 2 * CHUNK, order, leases)
            await start_waiting(nursery, pool, CHUNK, order, leases)
            scope.cancel()
    await wait_all_tasks_blocked()
    assert order == [CHUNK]
    assert pool.waiting_count == 0
    held.release()


async def test_a_waiter_cancelled_after_being_served_keeps_its_lease():
    pool = ChunkPool(CHUNK, CHUNK)
    held = pool.acquire_nowait(CHUNK)
    order, leases = [], []
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await start_waiting(nursery, pool, CHUNK, order, leases)
            held.release()
            scope.cancel()
    assert order == [CHUNK], "otherwise nobody would know that the chunk is taken"
    leases[0].release()
    assert pool.used_bytes == 0


async def test_a_waiter_served_between_its_cancellation_and_its_end_gives_the_lease_back(nursery):
    """It used to end with a ValueError, and its chunks were lost."""
    pool = ChunkPool(CHUNK, CHUNK)
    held = pool.acquire_nowait(CHUNK)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as impatient:
            await start_waiting(impatient, pool, CHUNK, [], [])
            scope.cancel()
            held.release()
    assert scope.cancelled_caught
    assert pool.used_bytes == pool.waiting_count == 0


class PoolMachine(RuleBasedStateMachine):
    """Acquire, retain and release at random beside a set of chunk numbers as the model."""

    def __init__(self):
        super().__init__()
        self.pool = ChunkPool(64 * CHUNK, CHUNK, poison=True)
        self.references: list[Lease] = []
        self.contents: dict[Lease, bytes] = {}

    def owned(self):
        return [set(range(x._first_chunk, x._first_chunk + x._chunk_count)) for x in set(self.references)]

    @rule(size=st.one_of(st.integers(1, 5 * CHUNK), st.integers(1, 64 * CHUNK)), fill=st.binary(min_size=1, max_size=1))
    def acquire(self, size, fill):
        taken = set().union(*self.owned())
        lease = self.pool.acquire_nowait(size)
        if lease is None:
            count, run, longest = -(-size // CHUNK), 0, 0
            for chunk in range(64):
                run = 0 if chunk in taken else run + 1
                longest = max(longest, run)
            assert longest < count, "refused although a run is free"
            return
        lease.view[:] = fill * size
        self.references.append(lease)
        self.contents[lease] = fill * size

    @rule(data=st.data())
    def retain(self, data):
        if self.references:
            lease = data.draw(st.sampled_from(self.references))
            lease.retain()
            self.references.append(lease)

    @rule(data=st.data())
    def release(self, data):
        if self.references:
            lease = self.references.pop(data.draw(st.integers(0, len(self.references) - 1)))
            lease.release()

    @invariant()
    def nothing_overlaps_and_the_books_balance(self):
        owned = self.owned()
        taken = set().union(*owned)
        assert len(taken) == sum(map(len, owned))
        assert self.pool.used_bytes == len(taken) * CHUNK
        assert sum(self.pool._free_counts) == 64 - len(taken)
        assert self.pool._lease_count == len(owned)
        for lease in set(self.references):
            assert bytes(lease.view) == self.contents[lease]

    def teardown(self):
        for lease in self.references:
            lease.release()
        assert (self.pool._free_starts, self.pool._free_counts) == ([0], [64]), "free runs did not merge"


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("seed", range(20))
async def test_acquire_release_and_cancel_at_random_loses_nothing(seed, autojump_clock):
    rng = random.Random(seed)
    pool = ChunkPool(16 * CHUNK, CHUNK)
    held_bytes = 0
    served = 0

    async def worker(delay: float, size: int, patience: float, hold: float) -> None:
        nonlocal held_bytes, served
        await trio.sleep(delay)
        with trio.move_on_after(patience):
            lease = await pool.acquire(size)
            held_bytes += size
            served += 1
            assert held_bytes <= pool.used_bytes <= pool.size_bytes
            try:
                await trio.sleep(hold)
            finally:
                held_bytes -= size
                lease.release()

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(
                worker, rng.random(), rng.randint(1, 12 * CHUNK), rng.choice([0.01, 0.3, 9]), rng.random() / 5
            )
    assert served > 20
    assert (pool.used_bytes, len(pool._free_starts)) == (0, 1)
