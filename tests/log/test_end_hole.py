"""A hole at the end of the log: what was there has gone, and consumers come to the high watermark all the same."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kafscale.config import Durability
from kafscale.log.partition.tail import Slices
from kafscale.log.read.reader import OFFSETS_MAX_COUNT, empty_batch
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.disk import MemoryDisk
from kafscale.wire.batch_header import BatchHeader, compute_crc, parse_header
from kafscale.wire.records import iterate_records
from tests.devtools.fakes.memory_log import ALL_BYTES, TOPIC, TOPIC_ID, MemoryLog, memory_log, topic_spec

DURABILITIES = [Durability.WAL, Durability.SEGMENT]


def key_at(base_offset: int) -> SegmentKey:
    return SegmentKey(topic=TOPIC, topic_id=TOPIC_ID, partition=0, base_offset=base_offset, epoch=1)


async def flushed(log: MemoryLog, *values: bytes) -> None:
    for value in values:
        log.append_nowait(log.partition(), value)
    await trio.testing.wait_all_tasks_blocked()
    await log.log.flusher.flush_all()


async def written(*, quarantined: bool = False, durability: Durability = Durability.WAL) -> MemoryStore:
    """Offsets 0 to 2 and 3 to 5, of which the latter have gone, or can't be read; the disk is lost."""
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), durability=durability) as log:
        await flushed(log, b"0", b"1", b"2")
        await flushed(log, b"3", b"4", b"5")
        await log.log.manifest_checkpointer.write_if_changed()
    await store.delete([key_at(3).of_kind("index").key])
    await (store.put(key_at(3).key, [b"garbage"]) if quarantined else store.delete([key_at(3).key]))
    return store


async def fetch(log: MemoryLog, offset: int) -> tuple[list[int], int]:
    """The offsets of the records that one fetch returns, and where every client goes on by the batches' headers."""
    slices = await log.log.reader.read(log.partition(), offset, ALL_BYTES)
    assert isinstance(slices, Slices)
    offsets: list[int] = []
    following = offset
    for buffer in slices.buffers:
        header = checked_header(memoryview(buffer))
        offsets += [each.offset for each in iterate_records(memoryview(buffer))]
        following = header.next_offset
    assert not slices.buffers or following == slices.end_offset
    slices.release()
    return offsets, following


def checked_header(batch: memoryview) -> BatchHeader:
    header = parse_header(batch)
    assert header.crc == compute_crc(batch)
    assert header.size_bytes == len(batch)
    return header


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("quarantined", [False, True])
async def test_a_consumer_in_a_hole_at_the_end_is_led_to_the_high_watermark(autojump_clock, durability, quarantined):
    store = await written(quarantined=quarantined, durability=durability)
    async with memory_log(store, MemoryDisk(), leader_epoch=2, durability=durability) as log:
        assert log.partition().high_watermark == 6
        assert await fetch(log, 3) == ([], 6)
        assert await fetch(log, 5) == ([], 6)
        assert await fetch(log, 6) == ([], 6)
        await flushed(log, b"6")
        assert await fetch(log, 3) == ([6], 7)  # as anywhere in the log


async def test_a_segment_at_the_end_that_turns_out_to_be_damaged_is_led_over(autojump_clock):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk()) as log:
        await flushed(log, b"0", b"1", b"2")
        await flushed(log, b"3", b"4", b"5")
        await store.put(key_at(3).key, [b"garbage"])
        await store.delete([key_at(3).of_kind("index").key])
        log.log.reader.footers.forget(log.partition().manifest.segments[-1])
        assert await fetch(log, 4) == ([], 6)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_offsets_of_a_lost_last_segment_are_not_reused_after_a_later_checkpoint(
    autojump_clock, durability, caplog
):
    store = await written(durability=durability)
    for epoch in (2, 3, 4):
        async with memory_log(store, MemoryDisk(), leader_epoch=epoch, durability=durability) as log:
            assert log.partition().high_watermark == 6
            await log.log.manifest_checkpointer.write_if_changed()
    assert caplog.text.count("offsets 3 to 5 of partition 0 of topic t are missing") == 3
    async with memory_log(store, MemoryDisk(), leader_epoch=5, durability=durability) as log:
        await flushed(log, b"6")
        await log.log.manifest_checkpointer.write_if_changed()
    async with memory_log(store, MemoryDisk(), leader_epoch=6, durability=durability) as log:
        assert log.log.restored.missing_segment_count == 0  # the segment behind it keeps its offsets
        assert await fetch(log, 3) == ([6], 7)


async def test_a_hole_at_the_end_is_forgotten_once_the_log_start_passes_the_hole(autojump_clock):
    store = await written()
    topics = [topic_spec(log_start_offsets={0: 6})]
    async with memory_log(store, MemoryDisk(), topics=topics, leader_epoch=2) as log:
        assert (log.partition().missing, log.partition().high_watermark) == ({}, 6)


def test_a_hole_that_no_batch_can_span_is_led_over_in_steps():
    batch, end_offset = empty_batch(5, 5 + OFFSETS_MAX_COUNT + 7, 3)
    header = checked_header(memoryview(batch))
    assert (header.next_offset, header.leader_epoch, header.record_count) == (end_offset, 3, 0)
    assert end_offset == 5 + OFFSETS_MAX_COUNT
    assert empty_batch(end_offset, end_offset + 7, 3)[1] == end_offset + 7
