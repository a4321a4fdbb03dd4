"""The memory tail: what is selected, how its bytes leave, and who holds the chunks meanwhile."""

import tracemalloc
from unittest.mock import sentinel

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.formats.wal_entries import FileHeader, WalFile
from kafscale.log.partition.chunks import ChunkPool
from kafscale.log.partition.tail import ALONE, Tail, TailBatch, coalesce
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.wire.batch_header import parse_header
from tests.devtools.fakes.memory_log import NOW_MS, batch_of, memory_log


def make_tail(pool: ChunkPool, layout: list[tuple[str, int]], *, records: int = 2) -> tuple[Tail, dict]:
    """Batches of (name of the lease, size) each; those of one lease behind each other, of lease "-" alone in theirs."""
    tail, leases, used = Tail(), {}, {}
    for index, (name, size) in enumerate(layout):
        if name == "-":
            lease, start = pool.acquire_nowait(size), ALONE
            view = lease.view
        else:
            if name not in leases:
                leases[name], used[name] = pool.acquire_nowait(4096), 0
            lease, start = leases[name], used[name]
            lease.retain()
            used[name] += size
            view = lease.view[start : start + size]
        view[:] = bytes([index + 1]) * size
        tail.append(make_batch(index * records, (index + 1) * records - 1, lease=lease, data=view, start=start))
    for lease in leases.values():
        lease.release()
    return tail, leases


def make_batch(first: int, last: int, *, lease=None, data=b"", start=ALONE, size_bytes=0) -> TailBatch:
    return TailBatch(
        topic_id=bytes(16),
        partition=0,
        leader_epoch=0,
        base_offset=first,
        data=data,
        owner=sentinel.partition,
        last_offset=last,
        max_timestamp_ms=0,
        min_timestamp_ms=0,
        size_bytes=len(data) or size_bytes,
        lease=lease,
        start=start,
    )


def content(tail: Tail) -> bytes:
    return b"".join(bytes([index + 1]) * batch.size_bytes for index, batch in enumerate(tail.batches))


layouts = st.lists(st.tuples(st.sampled_from("ab-"), st.integers(1, 60)), min_size=1, max_size=30)


@given(layouts, st.integers(0, 30))
def test_coalesced_buffers_are_the_batches_in_order_however_they_lie(layout, durable_count):
    pool = ChunkPool(1 << 20, 4096, poison=True)
    tail, _ = make_tail(pool, layout)
    for batch in tail.batches[:durable_count]:
        batch.became_durable()
    slices = coalesce(tail.batches)
    assert b"".join(slices.buffers) == content(tail)
    for batch in tail.drop_first(len(layout)):
        batch.lease.release()
    assert b"".join(slices.buffers) == b"".join(bytes([n + 1]) * size for n, (_, size) in enumerate(layout))
    slices.release()
    assert pool.used_bytes == 0


def test_neighbours_in_a_chunk_leave_as_one_buffer_and_one_lease():
    tail, _ = make_tail(ChunkPool(1 << 20), [("a", 10)] * 100)
    slices = coalesce(tail.batches)
    assert [len(buffer) for buffer in slices.buffers] == [1000]
    assert len(slices.leases) == 1


def test_batches_of_a_chunk_that_are_not_adjacent_are_not_joined():
    tail, _ = make_tail(ChunkPool(1 << 20), [("a", 10), ("b", 10), ("a", 10)])
    assert len(coalesce(tail.batches).buffers) == 3
    assert len(coalesce([tail.batches[0], tail.batches[2]]).buffers) == 1
    assert len(coalesce([tail.batches[2], tail.batches[0]]).buffers) == 2


def test_batches_that_were_received_into_a_frame_stay_apart():
    pool = ChunkPool(1 << 20)
    tail, _ = make_tail(pool, [("-", 10), ("-", 20)])
    assert [len(buffer) for buffer in coalesce(tail.batches).buffers] == [10, 20]


@given(layouts, st.integers(0, 70), st.integers(0, 70), st.integers(0, 500))
def test_selected_are_the_batches_from_an_offset_below_an_end_and_within_a_size(layout, offset, end_offset, max_bytes):
    tail, _ = make_tail(ChunkPool(1 << 20), layout)
    expected: list[TailBatch] = []
    for batch in tail.batches:
        if batch.last_offset < offset:
            continue
        too_large = expected and sum(each.size_bytes for each in expected) + batch.size_bytes > max_bytes
        if batch.last_offset >= end_offset or too_large:
            break
        expected.append(batch)
    assert list(tail.select(offset, end_offset, max_bytes)) == expected


def test_select_returns_the_first_batch_even_if_too_large():
    tail, _ = make_tail(ChunkPool(1 << 20), [("a", 50), ("a", 50)])
    assert [batch.base_offset for batch in tail.select(0, 100, 1)] == [0]
    assert [batch.base_offset for batch in tail.select(3, 100, 1)] == [2]


@given(layouts, st.data())
def test_the_sizes_of_the_tail_follow_dropped_and_spilled_batches(layout, data):
    tail, _ = make_tail(ChunkPool(1 << 20), layout)
    file = WalFile("wal", FileHeader(1, 1, 0, 0), 100)
    for batch in tail.batches:
        batch.file = file
    spilled_before = data.draw(st.integers(0, 2 * len(layout)))
    ended_before = [batch for batch in tail.batches if batch.last_offset < spilled_before]
    assert tail.spill_before(spilled_before) == sum(batch.size_bytes for batch in ended_before)
    assert [batch.lease is None for batch in tail.batches] == [batch in ended_before for batch in tail.batches]
    tail.drop_first(1)
    assert tail.size_bytes == sum(batch.size_bytes for batch in tail.batches)
    assert tail.pooled_bytes == sum(batch.size_bytes for batch in tail.batches if batch.lease is not None)


def test_spilled_batches_can_not_be_spilled_again():
    tail, _ = make_tail(ChunkPool(1 << 20), [("a", 50)])
    tail.batches[0].file = WalFile("wal", FileHeader(1, 1, 0, 0), 100)
    tail.batches[0].spill()
    with pytest.raises(AssertionError):
        tail.batches[0].spill()


async def test_a_small_batch_takes_little_memory_until_its_flush_and_almost_none_after(autojump_clock):
    """It used to be half as much again: each had a view of its bytes, which its lease has too."""
    count = 2000
    data = batch_of(b"x")
    header = parse_header(data)
    async with memory_log(MemoryStore(), MemoryDisk(), flush_interval_seconds=1e9) as log:
        partition = log.partition()

        async def append() -> None:
            for _ in range(count):
                partition.append(header, partition.place_nowait(data), NOW_MS)
            await partition.latest_round.wait()

        await append()  # what is made once
        await log.log.flusher.flush_all()
        tracemalloc.start()
        try:
            await append()
            kept_bytes, _ = tracemalloc.get_traced_memory()
            await log.log.flusher.flush_all()
            left_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        objects_bytes = count * len(data)  # in the memory store
        assert kept_bytes < 420 * count
        assert left_bytes - objects_bytes < 60 * count
