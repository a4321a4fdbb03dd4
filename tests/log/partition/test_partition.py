"""A partition's state, step by step: a journal and a pool, and no log around it."""

import pytest
import trio

from kafscale.errors import StorageFailed
from kafscale.formats.log_end import LogEnd
from kafscale.formats.manifest import segment_of
from kafscale.formats.segment import EpochStart, build_footer
from kafscale.formats.wal_entries import FileHeader, WalEntry, WalFile
from kafscale.log.flush.upload import _make_footer, segment_key_of
from kafscale.log.partition.chunks import ChunkPool
from kafscale.log.partition.log_config import LogConfig
from kafscale.log.partition.partition import CHUNK_GROWTH_MAX_BYTES, EpochEnd, FetchWaiter, FlushPlan, Partition
from kafscale.log.wal.journal import EntryJournal, FlushOnAppend, Round
from kafscale.wire.batch_header import MIN_TIMESTAMP_UNKNOWN, parse_header
from kafscale.wire.records import ProducerStamp, iterate_records
from tests.devtools.fakes.memory_log import NOW_MS, append_nowait, batch_of

CHUNK_BYTES = 4096


class HandDrivenWal(EntryJournal):
    """A write-ahead log that syncs when it is told to."""

    def __init__(self) -> None:
        self.file = WalFile("wal", FileHeader(1, 1, 0, 0), 1 << 20)
        self.queued: list[WalEntry] = []
        self.round = Round()
        self.closed = False

    def append(self, entry: WalEntry) -> Round:
        if self.closed:
            raise StorageFailed("closed")
        self.queued.append(entry)
        return self.round

    def release(self, file: WalFile, count: int = 1) -> None:
        file.pending_count -= count
        assert file.pending_count >= 0

    def sync(self, count: int | None = None) -> None:
        """As the real one calls `became_durable`."""
        group = self.queued[:count]
        del self.queued[:count]
        for batch in group:
            batch.file = self.file
            self.file.pending_count += 1
            if batch.owner.closed:
                batch.owner.release(batch)
            else:
                batch.owner.on_durable(batch.last_offset + 1, batch.size_bytes)
        self.round.succeed()
        self.round = Round()


class Bench:
    """A partition and what is around it."""

    def __init__(self, *, wal: bool = True, segment_bytes: int = 1 << 20, pool_bytes: int = 1 << 20) -> None:
        self.pool = ChunkPool(pool_bytes, CHUNK_BYTES, poison=True)
        self.wal = HandDrivenWal() if wal else None
        self.marks: list[int] = []
        self.now = 0.0
        self.partition = Partition(
            topic="t",
            topic_id=bytes(range(16)),
            index=0,
            namespace="default",
            leader_epoch=5,
            config=LogConfig(),
            segment_bytes=segment_bytes,
            pool=self.pool,
            journal=self.wal or FlushOnAppend(),
            on_dirty=lambda partition: self.marks.append(partition.flushable_bytes),
            clock=lambda: self.now,
        )

    def append(self, *values: bytes, **batch):
        appended, round = append_nowait(self.partition, *values, **batch)
        return appended, round

    def offsets(self) -> tuple[int, int, int]:
        partition = self.partition
        return partition.flushed_offset, partition.high_watermark, partition.next_offset

    async def commit(self, plan: FlushPlan) -> None:
        footer = await _make_footer(self.partition, plan, [batch.data for batch in plan.batches])
        self.partition.commit_flush(plan, segment_of(segment_key_of(self.partition, footer.identity), footer), footer)


async def test_a_batch_gets_the_next_offsets_and_its_epoch_in_place():
    bench = Bench()
    first, _ = bench.append(b"a", b"b")
    second, _ = bench.append(b"c")
    headers = [parse_header(batch.data) for batch in (first, second)]
    assert [(header.base_offset, header.leader_epoch) for header in headers] == [(0, 5), (2, 5)]
    assert [record.value for record in iterate_records(first.data)] == [b"a", b"b"]
    assert bench.offsets() == (0, 0, 3)
    assert bench.partition.traffic.records_in.value == 3


async def test_the_high_watermark_moves_with_durability_and_only_then_is_anything_readable():
    bench = Bench()
    bench.append(b"a")
    bench.append(b"b", b"c")
    assert bench.partition.select_tail(0, 1000) == []
    bench.wal.sync(1)
    assert bench.offsets() == (0, 1, 3)
    assert [batch.base_offset for batch in bench.partition.select_tail(0, 1000)] == [0]
    bench.wal.sync()
    assert bench.offsets() == (0, 3, 3)
    assert [batch.base_offset for batch in bench.partition.select_tail(2, 1000)] == [1]


async def test_a_refused_append_changes_nothing_and_leaves_the_place_with_the_caller():
    bench = Bench()
    bench.wal.closed = True
    data = batch_of(b"a", producer=ProducerStamp(1, 0, 0))
    placed = bench.partition.place_nowait(data)
    with pytest.raises(StorageFailed):
        bench.partition.append(parse_header(data), placed, NOW_MS)
    assert bench.offsets() == (0, 0, 0)
    assert not bench.partition.tail.batches
    assert not bench.partition.producers.producers
    placed.lease.release()
    bench.partition.close()
    assert bench.pool.used_bytes == 0


async def test_small_batches_share_a_chunk_and_a_busy_partition_leases_more_at_a_time():
    bench = Bench(pool_bytes=8 << 20)
    appended = [bench.append(bytes(1000))[0] for _ in range(3)]
    assert len({id(batch.lease) for batch in appended}) == 1
    sizes = {len(appended[0].lease.view)}
    while len(bench.partition.tail.batches) < 3000:
        sizes.add(len(bench.append(bytes(1000))[0].lease.view))
    assert max(sizes) == CHUNK_GROWTH_MAX_BYTES
    assert min(sizes) == CHUNK_BYTES


async def test_an_exhausted_pool_places_no_batch_and_keeps_the_placed_batches():
    bench = Bench(pool_bytes=4 * CHUNK_BYTES)
    placed = 0
    while bench.partition.place_nowait(memoryview(bytes(1500))) is not None:
        placed += 1
    assert placed >= 4
    assert bench.pool.used_bytes == bench.pool.size_bytes


async def test_a_waiting_fetch_wakes_when_enough_became_readable():
    bench = Bench()
    waiter = FetchWaiter(2 * len(batch_of(b"a")))
    bench.partition.waiters.add(waiter)
    bench.append(b"a")
    bench.append(b"b")
    bench.wal.sync(1)
    assert not waiter.event.is_set()
    bench.wal.sync(1)
    assert waiter.event.is_set()


@pytest.mark.parametrize("change", [lambda p: p.delete_records(1), lambda p: p.close()])
async def test_a_waiting_fetch_wakes_when_records_are_deleted_and_when_the_topic_is(change):
    bench = Bench()
    waiter = FetchWaiter(1 << 30)
    bench.partition.waiters.add(waiter)
    change(bench.partition)
    assert waiter.event.is_set()


async def test_the_log_start_never_goes_back():
    bench = Bench()
    bench.partition.delete_records(7)
    bench.partition.delete_records(3)
    assert bench.partition.log_start_offset == 7


# ---- dirty --------------------------------------------------------------------------------------------------------


async def test_a_partition_is_marked_dirty_when_durable_and_again_at_segment_size():
    size = len(batch_of(b"a"))
    bench = Bench(segment_bytes=3 * size)
    for _ in range(4):
        bench.append(b"a")
    assert bench.marks == []
    for _ in range(4):
        bench.wal.sync(1)
    assert bench.marks == [size, 3 * size]


async def test_under_segment_durability_an_append_marks_the_partition_dirty():
    bench = Bench(wal=False)
    bench.append(b"a")
    bench.append(b"b")
    assert len(bench.marks) == 1


async def test_a_commit_keeps_batches_made_durable_during_the_flush_as_flushable():
    bench = Bench()
    size = bench.append(b"a")[0].size_bytes
    bench.wal.sync()
    plan = bench.partition.prepare_flush()
    bench.append(b"b")
    bench.append(b"c")
    bench.wal.sync(1)
    bench.now = 9.0
    await bench.commit(plan)
    assert (bench.partition.flushable_bytes, bench.partition.dirty_since) == (size, 9.0)
    assert bench.partition.flushable_offset == 2
    await bench.commit(bench.partition.prepare_flush())
    assert (bench.partition.flushable_bytes, bench.partition.dirty_since) == (0, None)


# ---- flush --------------------------------------------------------------------------------------------------------


async def test_a_flush_takes_only_durable_batches_and_at_most_one_segment():
    size = len(batch_of(b"a"))
    bench = Bench(segment_bytes=2 * size)
    for _ in range(4):
        bench.append(b"a")
    assert bench.partition.prepare_flush() is None
    bench.wal.sync(3)
    plan = bench.partition.prepare_flush()
    assert (plan.base_offset, plan.end_offset, plan.size_bytes) == (0, 2, 2 * size)


async def test_a_commit_frees_chunks_and_wal_entries_and_nothing_else():
    bench = Bench()
    for _ in range(10):
        bench.append(bytes(1000))
    bench.wal.sync(6)
    await bench.commit(bench.partition.prepare_flush())
    assert bench.offsets() == (6, 6, 10)
    assert bench.wal.file.pending_count == 0
    bench.wal.sync()
    assert [batch.base_offset for batch in bench.partition.select_tail(6, 1 << 20)] == [6, 7, 8, 9]
    await bench.commit(bench.partition.prepare_flush())
    assert bench.pool.used_bytes == 0
    assert bench.partition.manifest.size_bytes == bench.partition.size_bytes


async def test_the_footer_has_the_producers_and_epochs_as_they_were_at_its_end():
    bench = Bench()
    bench.partition.epochs = [EpochStart(2, 0)]
    for sequence in range(3):
        bench.append(b"a", producer=ProducerStamp(1, 0, sequence), now_ms=2 * NOW_MS)
    bench.wal.sync(2)
    plan = bench.partition.prepare_flush()
    assert [batch.base_sequence for batch in plan.producers[0].batches] == [0, 1]
    assert plan.epochs == [EpochStart(2, 0), EpochStart(5, 0)]


async def test_a_flush_ends_before_offsets_that_were_lost_with_files_of_the_log():
    bench = Bench()
    bench.append(b"a", b"b")
    bench.wal.sync()
    bench.partition.lost_offset = 100
    bench.partition.skip_missing()
    assert bench.offsets() == (0, 100, 100)
    bench.append(b"c")
    bench.wal.sync()
    for base_offset, end_offset in ((0, 2), (100, 101)):
        plan = bench.partition.prepare_flush()
        assert (plan.base_offset, plan.end_offset) == (base_offset, end_offset)
        assert [batch.base_offset for batch in bench.partition.select_tail(50, 1000)] == [100]
        await bench.commit(plan)
    assert bench.offsets() == (101, 101, 101)


async def test_producers_not_heard_of_are_left_out_of_a_flush():
    bench = Bench()
    bench.append(b"a", producer=ProducerStamp(1, 0, 0), now_ms=1)
    bench.append(b"a", producer=ProducerStamp(2, 0, 0), now_ms=2 * NOW_MS)
    bench.wal.sync()
    plan = bench.partition.prepare_flush()
    assert [producer.producer_id for producer in plan.producers] == [2]


# ---- segment durability -------------------------------------------------------------------------------------------


async def test_under_segment_durability_a_commit_acknowledges_only_the_flushed_batches():
    bench = Bench(wal=False)
    _, first = bench.append(b"a")
    plan = bench.partition.prepare_flush()
    _, second = bench.append(b"b")
    assert not first.done
    await bench.commit(plan)
    assert (first.done, second.done) == (True, False)
    assert bench.offsets() == (1, 1, 2)
    await bench.commit(bench.partition.prepare_flush())
    assert second.done


async def test_batches_appended_during_partial_flushes_do_not_delay_earlier_batches():
    bench = Bench(wal=False, segment_bytes=2 * len(batch_of(b"a")))
    rounds = [bench.append(b"a")[1] for _ in range(4)]
    for _ in range(2):
        plan = bench.partition.prepare_flush()
        late = bench.append(b"late")[1]
        await bench.commit(plan)
    assert [each.done for each in rounds] == [True] * 4
    assert not late.done


async def test_a_flush_that_succeeds_acknowledges_all_batches_kept_by_failed_flushes():
    bench = Bench(wal=False)
    rounds = []
    for _ in range(3):
        rounds.append(bench.append(b"a")[1])
        assert bench.partition.prepare_flush() is not None
        assert bench.partition.prepare_flush() is not None
    assert len(bench.partition.journal._waiting[bench.partition].taken) == 3
    await bench.commit(bench.partition.prepare_flush())
    assert [each.done for each in rounds] == [True] * 3


async def test_closing_under_segment_durability_fails_waiters_and_frees_the_pool():
    bench = Bench(wal=False)
    rounds = [bench.append(b"a")[1]]
    bench.partition.prepare_flush()
    rounds.append(bench.append(b"b")[1])
    bench.partition.close()
    for round in rounds:
        with pytest.raises(StorageFailed):
            await round.wait()
    assert bench.pool.used_bytes == 0
    assert bench.partition.prepare_flush() is None


# ---- spill, close -------------------------------------------------------------------------------------------------


async def test_only_durable_batches_are_spilled():
    bench = Bench()
    appended = [bench.append(bytes(3000))[0] for _ in range(4)]
    bench.wal.sync(2)
    used_bytes = bench.pool.used_bytes
    assert bench.partition.spill() == sum(batch.size_bytes for batch in appended[:2])
    assert [batch.lease is None for batch in appended] == [True, True, False, False]
    assert [len(batch.data) for batch in appended] == [0, 0, *(batch.size_bytes for batch in appended[2:])]
    assert bench.partition.tail.pooled_bytes == sum(batch.size_bytes for batch in appended[2:])
    assert bench.pool.used_bytes < used_bytes
    assert bench.wal.file.pending_count == 2


async def test_closing_frees_durable_batches_and_keeps_batches_the_wal_still_writes():
    bench = Bench()
    appended = [bench.append(bytes(3000))[0] for _ in range(4)]
    content = [bytes(batch.data) for batch in appended]
    bench.wal.sync(2)
    bench.partition.close()
    assert [bytes(batch.data) for batch in appended[2:]] == content[2:]
    assert bench.wal.file.pending_count == 0
    bench.wal.sync()
    assert bench.wal.file.pending_count == 0
    assert bench.pool.used_bytes == 0


async def test_space_given_back_keeps_no_chunk():
    """A request that waited while its topic was deleted left one, if the log still wrote what had come before."""
    bench = Bench()
    bench.append(bytes(100))
    bench.partition.close()
    placed = bench.partition.place_nowait(batch_of(b"late"))
    bench.partition.give_back(placed)
    bench.wal.sync()
    assert bench.pool.used_bytes == 0


# ---- epochs, restore ----------------------------------------------------------------------------------------------


async def test_the_end_of_an_epoch_is_where_the_next_one_began():
    bench = Bench()
    partition = bench.partition
    partition.epochs = [EpochStart(2, 10), EpochStart(4, 20)]
    partition.next_offset = partition.high_watermark = 25
    asked = {epoch: partition.epoch_end(epoch) for epoch in (1, 2, 3, 4, 5, 6)}
    assert asked == {
        1: EpochEnd(1, 10),
        2: EpochEnd(2, 20),
        3: EpochEnd(2, 20),
        4: EpochEnd(4, 25),
        5: EpochEnd(5, 25),
        6: None,
    }
    assert [partition.epoch_of(offset) for offset in (5, 10, 19, 20, 24, 25)] == [5, 2, 2, 4, 4, 5]


async def test_replayed_batches_go_on_behind_the_bucket_and_hold_no_memory():
    bench = Bench()
    data = batch_of(b"a", b"b", producer=ProducerStamp(1, 0, 7))
    bench.partition.next_offset = bench.partition.flushed_offset = bench.partition.high_watermark = 3
    entry = WalEntry(bytes(16), 0, 4, 3, data)
    entry.file, entry.position = bench.wal.file, 100
    batch = bench.partition.replay(entry, parse_header(data), NOW_MS)
    assert (batch.base_offset, batch.last_offset, batch.position) == (3, 4, 100)
    assert bench.offsets() == (3, 5, 5)
    assert bench.marks == [len(data)]
    assert bench.pool.used_bytes == 0
    assert bench.partition.epochs == [EpochStart(4, 3)]
    assert bench.partition.producers.producers[1].last_timestamp_ms == NOW_MS


async def test_the_earliest_time_of_a_batch_is_lost_in_a_replay_but_that_of_a_single_record():
    bench = Bench()
    for offset, values in ((0, (b"a",)), (1, (b"b", b"c"))):
        data = bytes(batch_of(*values))
        entry = WalEntry(bench.partition.topic_id, 0, 4, offset, data)
        bench.partition.replay(entry, parse_header(memoryview(data)), NOW_MS)
    plan = bench.partition.prepare_flush()
    index = (await _make_footer(bench.partition, plan, [bytes(batch.size_bytes) for batch in plan.batches])).index
    assert list(index.min_timestamps_ms) == [index.max_timestamps_ms[0], MIN_TIMESTAMP_UNKNOWN]


async def test_skip_to_moves_offsets_forward_to_the_log_start_and_never_back():
    bench = Bench()
    bench.partition.log_start_offset = 50
    bench.partition.skip_to(50)
    assert bench.offsets() == (50, 50, 50)
    bench.partition.skip_to(40)
    assert bench.offsets() == (50, 50, 50)


async def test_appends_to_a_restored_partition_do_not_change_the_footer(autojump_clock):
    bench = Bench()
    bench.append(b"a", producer=ProducerStamp(1, 0, 0), now_ms=2 * NOW_MS)
    bench.wal.sync()
    plan = bench.partition.prepare_flush()
    footer = await _make_footer(bench.partition, plan, [batch.data for batch in plan.batches])
    again = build_footer(footer.identity, plan.batches, producers=plan.producers, epochs=plan.epochs, marker_offsets=[])
    after = Bench()
    after.partition.restore([segment_of(segment_key_of(after.partition, footer.identity), footer)], LogEnd.of(footer))
    after.append(b"b", producer=ProducerStamp(1, 0, 1))
    assert after.offsets() == (1, 1, 2)
    assert footer == again
    await trio.lowlevel.checkpoint()
