"""ListOffsets for the greatest timestamp: the first live record that has it, whatever has happened to the log."""

from __future__ import annotations

import pytest
import trio

from kafscale.config import Durability
from kafscale.log.rewrite.compaction import Compactor
from kafscale.log.rewrite.retention import Retention
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import compression
from tests.devtools.fakes.memory_log import MemoryLog, memory_log, merge, topic_spec
from tests.log.keyed_log import append_pairs
from tests.log.read.test_reader import forget_footers, recording

pytestmark = pytest.mark.parametrize("durability", list(Durability))
TIMES_MS = ([1, 9, 5, 6], [4, 8, 8, 2], [7, 3])
COUNT = sum(map(len, TIMES_MS))


async def append(log: MemoryLog, *timestamps_ms: int, flush: bool = False) -> None:
    await log.append(log.partition(), *[b""] * len(timestamps_ms), timestamps_ms=timestamps_ms)
    if flush:
        await log.log.flusher.flush_all()


async def expect_latest(log: MemoryLog) -> None:
    """Compare the answer with what a consumer of the whole partition finds."""
    partition = log.partition()
    live = await log.records(partition, partition.log_start_offset)
    latest = max(live, key=lambda each: (each.timestamp_ms, -each.offset), default=None)
    found = await log.log.reader.find_max_timestamp(partition)
    assert (found and (found.offset, found.timestamp_ms)) == (latest and (latest.offset, latest.timestamp_ms))


async def expect_latest_from_every_log_start(log: MemoryLog) -> None:
    for log_start_offset in range(COUNT + 1):
        log.partition().delete_records(log_start_offset)
        await expect_latest(log)


@pytest.mark.parametrize("place", ["tail", "segments", "one segment", "spilled"])
async def test_the_latest_record_is_a_live_one_after_delete_records(
    autojump_clock: object, durability: Durability, place: str
) -> None:
    """It was none at all while the segment or batch of a deleted record with a greater timestamp was there."""
    async with memory_log(MemoryStore(), MemoryDisk(), durability=durability) as log:
        for times_ms in TIMES_MS:
            await append(log, *times_ms, flush=place == "segments")
        if place == "one segment":
            await log.log.flusher.flush_all()
        elif place == "spilled":
            log.partition().spill()
        await expect_latest_from_every_log_start(log)


async def test_the_latest_record_is_a_live_one_after_a_restart(autojump_clock: object, durability: Durability) -> None:
    for log_start_offset in range(COUNT + 1):
        store, disk = MemoryStore(), MemoryDisk()
        async with memory_log(store, disk, durability=durability) as log:
            for times_ms in TIMES_MS[:-1]:
                await append(log, *times_ms, flush=True)
            await append(log, *TIMES_MS[-1])
        spec = topic_spec(log_start_offsets={0: log_start_offset})
        async with memory_log(store, disk.crash(), topics=[spec], durability=durability, leader_epoch=2) as log:
            assert log.partition().log_start_offset == log_start_offset
            await expect_latest(log)


async def test_the_latest_record_is_a_live_one_after_a_merge(autojump_clock: object, durability: Durability) -> None:
    async with memory_log(MemoryStore(), MemoryDisk(), durability=durability) as log:
        for times_ms in TIMES_MS:
            await append(log, *times_ms, flush=True)
        assert await merge(log)
        await expect_latest_from_every_log_start(log)


async def test_the_latest_record_is_a_live_one_after_retention(autojump_clock: object, durability: Durability) -> None:
    spec = topic_spec(retention_bytes=150)
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[spec], durability=durability) as log:
        for times_ms in TIMES_MS:
            await append(log, *times_ms, flush=True)

        async def keep(topic_id: bytes, index: int, offset: int) -> None:
            await trio.lowlevel.checkpoint()

        retention = Retention(
            store=log.store,
            deleter=log.log.deleter,
            examiner=log.log.reader.examiner,
            partitions=lambda: list(log.log.partitions.values()),
            set_log_start_offset=keep,
            interval_seconds=1,
            now_ms=lambda: 10,
        )
        await retention.enforce()
        assert 0 < log.partition().log_start_offset < COUNT
        await expect_latest_from_every_log_start(log)


async def test_the_latest_record_is_a_live_one_after_compaction(autojump_clock: object, durability: Durability) -> None:
    spec = topic_spec(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[spec], durability=durability) as log:
        partition = log.partition()
        for text, timestamp_ms in (("a=1", 9), ("b=1", 7), ("c=1", 8), ("d=1", 5), ("a=2", 3), ("e=1", 4)):
            await append_pairs(partition, text, "z=1", timestamp_ms=timestamp_ms)
            await log.log.flusher.flush_all()
        compactor = Compactor(
            rewriter=log.log.merger.rewriter,
            footers=log.log.reader.footers,
            interval_seconds=15.0,
            now_ms=lambda: 10,
            map_bytes=1 << 20,
            target_bytes=1 << 20,
        )
        await compactor.compact_all(lambda: list(log.log.partitions.values()))
        assert len(await log.records(partition)) < partition.high_watermark
        for log_start_offset in range(partition.high_watermark + 1):
            partition.delete_records(log_start_offset)
            await expect_latest(log)


@pytest.mark.parametrize("codec", sorted(compression.NAMES))
async def test_the_latest_record_of_a_compressed_batch_in_which_the_log_starts(
    autojump_clock: object, durability: Durability, codec: int
) -> None:
    async with memory_log(MemoryStore(), MemoryDisk(), durability=durability) as log:
        times_ms = [each % 3_001 for each in range(5_000)]  # more records than are searched at a stretch
        await append(log, *times_ms)
        await append_pairs(log.partition(), *["a=1"] * 5_000, timestamp_ms=2_500, codec=codec)
        await log.log.flusher.flush_all()
        for log_start_offset in (0, 3_000, 3_001, 4_999, 5_000, 7_000, 9_999, 10_000):
            log.partition().delete_records(log_start_offset)
            await expect_latest(log)


async def test_only_a_segment_in_which_the_log_starts_is_read_for_the_latest_record(
    autojump_clock: object, durability: Durability
) -> None:
    store, reads = recording(MemoryStore())
    async with memory_log(store, MemoryDisk(), cache_bytes=0, durability=durability) as log:
        for number in range(50):
            await append(log, 50 - number, 100 - number, flush=True)
        for log_start_offset, latest, parts_count in ((4, 5, 2), (5, 5, 4), (6, 7, 2)):
            forget_footers(log)
            reads.clear()
            log.partition().delete_records(log_start_offset)
            found = await log.log.reader.find_max_timestamp(log.partition())
            assert found is not None
            assert found.offset == latest
            assert len(reads) <= parts_count, reads


async def test_a_search_for_the_latest_record_survives_a_flush(autojump_clock: object, durability: Durability) -> None:
    """A segment without timestamps was read while a flush took the newest records from the tail."""
    store, disk = FaultyStore(MemoryStore()), MemoryDisk()
    async with memory_log(store, disk, durability=durability) as log:
        for number in range(3):
            await append(log, number, flush=True)
    async with memory_log(store, disk.crash(), durability=durability, leader_epoch=2) as log:
        forget_footers(log)
        await append(log, 9)
        gate = store.hold(On("get_tail"))
        found = []

        async def look() -> None:
            found.append(await log.log.reader.find_max_timestamp(log.partition()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await gate.wait_arrived(1)
            await log.log.flusher.flush_all()
            gate.open()
        assert [each.timestamp_ms for each in found if each] == [9]
