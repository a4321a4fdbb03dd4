"""Each kind of damage to each half of a segment, wherever it lies: a start succeeds, and serves what is good.

What must hold: reads return nothing wrong, and everything that is whole; offsets that were acknowledged are not given
out again; each damage is told once; nothing is deleted; and the next start comes to the same.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest
import trio
from crc32c import crc32c

from kafscale.config import Durability
from kafscale.errors import DamagedObject, NewerVersion, StartupError, StoreUnavailable
from kafscale.formats import segment
from kafscale.formats.footer_reading import read_footer, read_index
from kafscale.formats.segment import HEADER, SECTION, TRAILER
from kafscale.log.bucket.deletion import OrphanCollector
from kafscale.log.repair.repair import UNKNOWN_END_GAP
from kafscale.log.repair.verify_segment import FindingKind, check_segment
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.records import ProducerStamp
from tests.devtools.fakes.memory_log import TOPIC, TOPIC_ID, MemoryLog, memory_log, merge_segments, topic_spec
from tests.devtools.fakes.segment_objects import make_batches, version_1_key, version_1_objects

VALUES = [b"%d" % number for number in range(12)]  # four segments of three batches
STAMPS = {"now_ms": 1 << 50}
POSITIONS = {"first": 0, "middle": 3, "last": 9}
DURABILITIES = [Durability.WAL, Durability.SEGMENT]


def key_at(base_offset: int, generation: int = 0, kind: str = "kfs", epoch: int = 1) -> SegmentKey:
    return SegmentKey(
        topic=TOPIC,
        topic_id=TOPIC_ID,
        partition=0,
        base_offset=base_offset,
        epoch=epoch,
        generation=generation,
        kind=kind,
    )


def offsets_of(position: str) -> range:
    return range(POSITIONS[position], POSITIONS[position] + 3)


BUCKETS: dict[object, MemoryStore] = {}  # as they were written once: that takes longer than the rest of a case


async def written(*, durability: Durability = Durability.WAL, checkpoint: bool = False) -> MemoryStore:
    """All twelve in the bucket; the disk is lost, or has nothing."""
    asked = durability, checkpoint
    if asked not in BUCKETS:
        BUCKETS[asked] = await write(durability, checkpoint)
    return BUCKETS[asked].copy()


async def write(durability: Durability, checkpoint: bool) -> MemoryStore:
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), durability=durability) as log:
        for number, value in enumerate(VALUES):
            stamp = ProducerStamp(1, 0, number)
            log.append_nowait(log.partition(), value, producer=stamp, **STAMPS)
            if number % 3 == 2:
                await trio.testing.wait_all_tasks_blocked()
                await log.log.flusher.flush_all()
        assert [each.base_offset for each in log.partition().manifest.segments] == [0, 3, 6, 9]
        if checkpoint:
            await log.log.manifest_checkpointer.write_if_changed()
    return store


async def content_of(store, key: SegmentKey) -> bytes:
    return bytes((await store.get(key.key)).data)


async def snapshot(store) -> dict[str, bytes]:
    """The segments' objects."""
    return {info.key: bytes((await store.get(info.key)).data) async for page in store.list("default/") for info in page}


async def damage(store, key: SegmentKey, kind: str) -> None:
    """Do this to one object."""
    content = await content_of(store, key)
    other = await content_of(store, key_at(6, kind=key.kind))
    body_end = segment.decode_footer(content, "x").end_position if key.kind == "kfs" else len(content)
    changed = {
        "empty": b"",
        "few bytes": content[:10],
        "half": content[: (HEADER.size + body_end) // 2],
        "cut off": content[:-1],
        "without footer": content[:body_end],
        "longer": content + b"x",
        "garbage": b"garbage" * 100,
        "foreign": other,
        "flipped at the end": content[:-20] + bytes([content[-20] ^ 1]) + content[-19:],
        "flipped in the middle": _flipped(content, len(content) // 2),
    }
    if kind == "missing":
        await store.delete([key.key])
    else:
        await store.put(key.key, [changed[kind]])


def _flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


def told(caplog) -> list[str]:
    """Warnings and errors of the start, each of one line."""
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return [record.getMessage() for record in records]


async def appended(log: MemoryLog) -> int:
    """One more record, in the bucket."""
    _, round = log.append_nowait(log.partition(), b"next")
    await trio.testing.wait_all_tasks_blocked()
    await log.log.flusher.flush_all()
    await round.wait()
    return log.partition().high_watermark - 1


async def expect(log: MemoryLog, offsets) -> None:
    """Consumers read these of the twelve, from the log start on."""
    records = await log.records(log.partition(), log.partition().log_start_offset)
    found = [(record.offset, record.value) for record in records if record.value != b"next"]
    assert found == [(offset, VALUES[offset]) for offset in offsets]


KFS_REBUILT = ["cut off", "without footer", "longer", "flipped at the end"]
KFS_LOST = ["empty", "few bytes", "half", "garbage"]


@pytest.mark.parametrize("checkpoint", [False, True], ids=["without checkpoint", "with checkpoint"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", [*KFS_REBUILT, *KFS_LOST, "foreign"])
async def test_a_kfs_that_is_damaged_is_rebuilt_or_left_out(autojump_clock, kind, position, checkpoint, caplog) -> None:
    store = await written(checkpoint=checkpoint)
    whole = await snapshot(store)
    key = key_at(POSITIONS[position])
    await damage(store, key, kind)
    damaged = await content_of(store, key)
    caplog.clear()
    is_lost = kind not in KFS_REBUILT
    good = [offset for offset in range(12) if not (is_lost and offset in offsets_of(position))]
    for epoch in (2, 3):
        async with memory_log(store, MemoryDisk(), leader_epoch=epoch) as log:
            found_at_start = checkpoint or position == "last"
            assert log.log.quarantined_count() == (is_lost and found_at_start)
            assert log.partition().high_watermark == 12
            await expect(log, good)
            assert log.log.quarantined_count() == is_lost
            if is_lost:
                assert len(lines := told(caplog)) == 1
                assert key.key in lines[0]
                assert "quarantined" in lines[0]
                assert await content_of(store, key) == damaged
            else:
                assert len(told(caplog)) == (1 if epoch == 2 else 0)
                assert await snapshot(store) == whole
            await expect(log, good)
            assert told(caplog) == []
    async with memory_log(store, MemoryDisk(), leader_epoch=4) as log:
        assert await appended(log) == 12


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", ["missing", "empty", "half", "cut off", "longer", "garbage", "foreign"])
async def test_an_index_that_is_damaged_is_written_again(autojump_clock, kind, position, caplog) -> None:
    """Without a checkpoint, one in the middle is looked at only if it is missing: nobody needs it."""
    for checkpoint in (False, True):
        store = await written(checkpoint=checkpoint)
        whole = await snapshot(store)
        await damage(store, key_at(POSITIONS[position], kind="index"), kind)
        caplog.clear()
        now = await snapshot(store)
        key = key_at(POSITIONS[position], kind="index").key
        seen_in_listing = checkpoint and len(now.get(key, b"")) != len(whole[key])  # a foreign one may be as large
        rebuilt = position == "last" and (not checkpoint or seen_in_listing)
        rebuilt = rebuilt or seen_in_listing or kind == "missing"
        async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
            assert log.log.reader.examiner.rebuilt_index_count.value == rebuilt
            assert (await snapshot(store) == whole) == rebuilt
            assert len(told(caplog)) == rebuilt
            await expect(log, range(12))
            assert log.log.quarantined_count() == 0


async def test_a_rebuilt_index_keeps_sections_of_later_versions() -> None:
    store = await written()
    key = key_at(POSITIONS["middle"])
    index = key.of_kind("index")
    content, end = await content_of(store, key), len(await content_of(store, index))
    body, footer, trailer = content[:-end], content[-end : -TRAILER.size], content[-TRAILER.size :]
    footer += SECTION.pack(99, 1, 5, crc32c(b"added")) + b"added"
    trailer = len(footer).to_bytes(4) + bytes(4) + trailer[8:]
    crc = crc32c(trailer[8:], crc32c(trailer[:4], crc32c(footer)))
    later = footer + trailer[:4] + crc.to_bytes(4) + trailer[8:]
    await store.put(key.key, [body, later])
    await store.delete([index.key])
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        assert log.log.reader.examiner.rebuilt_index_count.value == 1
        await expect(log, range(12))
    assert await content_of(store, index) == later
    assert (await content_of(store, key)) == body + later


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("index", ["missing", "empty", "half", "foreign"])
@pytest.mark.parametrize("kfs", [*KFS_LOST, "foreign"])
async def test_a_gap_is_left_if_the_end_of_the_last_segment_is_unknown(
    autojump_clock, kfs, index, durability, caplog
) -> None:
    store = await written(durability=durability)
    await damage(store, key_at(9), kfs)
    await damage(store, key_at(9, kind="index"), index)
    caplog.clear()
    for epoch in (2, 3):
        async with memory_log(store, MemoryDisk(), leader_epoch=epoch, durability=durability) as log:
            partition = log.partition()
            assert partition.high_watermark == 9 + UNKNOWN_END_GAP
            await expect(log, range(9))
            assert len(told(caplog)) == 1
            assert partition.quarantined.keys() == {key_at(9)}
    async with memory_log(store, MemoryDisk(), leader_epoch=4, durability=durability) as log:
        assert await appended(log) == 9 + UNKNOWN_END_GAP
        assert (await log.records(log.partition(), 9))[0].offset == 9 + UNKNOWN_END_GAP


@pytest.mark.parametrize("generation", [0, 1])
async def test_the_checkpoint_gives_the_end_if_the_index_is_damaged_too(autojump_clock, generation) -> None:
    store = await merged([6, 9], checkpoint=True, delete=[6, 9]) if generation else await written(checkpoint=True)
    base_offset = 6 if generation else 9
    for half in ("kfs", "index"):
        await store.put(key_at(base_offset, generation, half).key, [b"garbage"])
    for epoch in (4, 5):
        async with memory_log(store, MemoryDisk(), leader_epoch=epoch) as log:
            assert log.partition().high_watermark == 12
            await expect(log, range(base_offset))
            await log.log.manifest_checkpointer.write_if_changed()  # two are kept: in the end, none knows it as whole
    async with memory_log(store, MemoryDisk(), leader_epoch=6) as log:
        assert await appended(log) == 12


@pytest.mark.parametrize("kfs", [*KFS_REBUILT[:2], *KFS_LOST, "foreign"])
async def test_a_broker_starts_when_the_only_segment_of_a_partition_is_damaged(autojump_clock, kfs) -> None:
    store = await written()
    others = [key_at(base, kind=kind).key for base in (3, 9) for kind in ("kfs", "index")]
    await damage(store, key_at(0), kfs)
    await store.delete([*others, key_at(6).key, key_at(6, kind="index").key])
    for epoch in (2, 3):
        async with memory_log(store, MemoryDisk(), leader_epoch=epoch) as log:
            assert log.partition().high_watermark == 3
            await expect(log, range(3) if kfs in KFS_REBUILT else [])
    async with memory_log(store, MemoryDisk(), leader_epoch=4) as log:
        assert await appended(log) == 3


# ---- what the write-ahead log still has -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KFS_LOST, "foreign"])
async def test_records_of_a_damaged_segment_are_served_from_the_write_ahead_log(autojump_clock, kind, caplog) -> None:
    """Its files still hold batches that were flushed. The object stays; the new one is of a later epoch."""
    store, disk = MemoryStore(), MemoryDisk()
    async with memory_log(store, disk) as log:
        for number, value in enumerate(VALUES):
            await log.append(log.partition(), value, producer=ProducerStamp(1, 0, number), **STAMPS)
            if number % 3 == 2:
                await log.log.flusher.flush_all()
        disk = disk.crash()
    await damage(store, key_at(9), kind)
    damaged = await content_of(store, key_at(9))
    async with memory_log(store, disk, leader_epoch=2) as log:
        assert log.partition().flushed_offset == 9
        await expect(log, range(12))
        assert await appended(log) == 12
        last = log.partition().manifest.segments[-1]
        assert (last.base_offset, last.epoch, last.generation) == (9, 2, 0)
        assert await content_of(store, key_at(9)) == damaged
    caplog.clear()
    for epoch in (3, 4):
        async with memory_log(store, MemoryDisk(), leader_epoch=epoch) as log:
            await expect(log, range(12))
            assert log.partition().high_watermark == 13
            assert log.log.quarantined_count() == 0
            assert told(caplog) == []


async def test_the_wal_continues_after_a_damaged_segment(autojump_clock) -> None:
    """Of offsets 9 to 11 it has nothing any more, and of what comes then, all."""
    store, disk = MemoryStore(), MemoryDisk()
    big = bytes(30_000)
    async with memory_log(store, disk, wal_segment_bytes=64 << 10, segment_bytes=1 << 20) as log:
        for number in range(12):
            await log.append(log.partition(), b"%d" % number + big)
            if number % 3 == 2:
                await log.log.flusher.flush_all()
        for number in range(12, 15):
            await log.append(log.partition(), b"%d" % number + big)
        await trio.testing.wait_all_tasks_blocked()
        disk = disk.crash()
    await store.put(key_at(9).key, [b"garbage"])
    await store.delete([key_at(9, kind="index").key])
    async with memory_log(store, disk, leader_epoch=2, wal_segment_bytes=64 << 10) as log:
        offsets = [record.offset for record in await log.records(log.partition())]
        assert offsets[:9] == list(range(9))
        assert offsets[-3:] == [12, 13, 14]
        assert log.partition().high_watermark == 15
        assert await log.append(log.partition(), b"next") == 15


@pytest.mark.parametrize("kind", [*KFS_LOST, "foreign"])
async def test_records_of_a_damaged_segment_are_served_from_the_log_in_the_bucket(autojump_clock, kind) -> None:
    store = await written(durability=Durability.S3_WAL)
    await damage(store, key_at(9), kind)
    await damage(store, key_at(9, kind="index"), "missing")
    for epoch in (2, 3):
        async with memory_log(store, MemoryDisk(), leader_epoch=epoch, durability=Durability.S3_WAL) as log:
            assert log.partition().high_watermark == 12
            await expect(log, range(12))
            await log.log.flusher.flush_all()


async def test_a_flush_leaves_a_damaged_object_and_writes_the_next_generation(autojump_clock, caplog) -> None:
    """Half of an upload of the process before, that arrived late on a store that shows halves."""
    store = MemoryStore()
    async with memory_log(store, MemoryDisk()) as log:
        await store.put(key_at(0).key, [b"half"])
        await log.append(log.partition(), b"0")
        await log.log.flusher.flush_all()
        await expect(log, [0])
        assert await content_of(store, key_at(0)) == b"half"
        assert await read_index(store, key_at(0, 1)) == await read_footer(store, key_at(0, 1))
    assert caplog.text.count("its batches go to generation 1") == 1


# ---- newer generations ----------------------------------------------------------------------------------------------


async def merged(sources: list[int], *, checkpoint: bool = False, delete: list[int] | None = None) -> MemoryStore:
    """The twelve with these segments merged into one of generation 1; those of `delete` are gone."""
    asked = *sources, checkpoint
    if asked not in BUCKETS:
        BUCKETS[asked] = await write_merged(sources, checkpoint)
    store = BUCKETS[asked].copy()
    gone = [key_at(base, kind=kind).key for base in delete or () for kind in ("kfs", "index")]
    await store.delete(gone)
    return store


async def write_merged(sources: list[int], checkpoint: bool) -> MemoryStore:
    store = await written()
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        await merge_segments(log, sources)
    async with memory_log(store, MemoryDisk(), leader_epoch=3) as log:
        if checkpoint:
            await log.log.manifest_checkpointer.write_if_changed()
    return store


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("kind", [*KFS_LOST, "foreign"])
@pytest.mark.parametrize("sources", [[0, 3], [3, 6], [6, 9], [0, 3, 6, 9]])
async def test_the_sources_of_a_damaged_merged_segment_are_read(
    autojump_clock, sources, kind, checkpoint, caplog
) -> None:
    store = await merged(sources, checkpoint=checkpoint)
    await damage(store, key_at(sources[0], 1), kind)
    caplog.clear()
    for epoch in (4, 5):
        async with memory_log(store, MemoryDisk(), leader_epoch=epoch) as log:
            await expect(log, range(12))
            assert log.partition().high_watermark == 12
            assert log.partition().quarantined.keys() == {key_at(sources[0], 1)}
            lines = told(caplog)
            assert len(lines) == 1
            assert "are read instead" in lines[0]
    async with memory_log(store, MemoryDisk(), leader_epoch=6) as log:
        assert await appended(log) == 12


@pytest.mark.parametrize("sources", [[0, 3], [3, 6], [6, 9]])
async def test_records_are_skipped_if_the_sources_are_gone(autojump_clock, sources, caplog) -> None:
    for deleted in ([sources[0]], [sources[1]], sources):
        store = await merged(sources, delete=deleted)
        await store.put(key_at(sources[0], 1).key, [b"garbage"])
        caplog.clear()
        for epoch in (4, 5):
            async with memory_log(store, MemoryDisk(), leader_epoch=epoch) as log:
                lost = [offset for base in deleted for offset in range(base, base + 3)]
                await expect(log, [offset for offset in range(12) if offset not in lost])
                assert log.partition().high_watermark == 12
                assert len([line for line in told(caplog) if "quarantined" in line]) == 1
        async with memory_log(store, MemoryDisk(), leader_epoch=6) as log:
            assert await appended(log) == 12


async def test_a_damaged_source_of_a_whole_merged_segment_is_of_no_interest(autojump_clock, caplog) -> None:
    for sources in ([0, 3], [6, 9]):
        store = await merged(sources)
        for base_offset in sources:
            await store.put(key_at(base_offset).key, [b"garbage"])
            await store.delete([key_at(base_offset, kind="index").key])
        caplog.clear()
        async with memory_log(store, MemoryDisk(), leader_epoch=4) as log:
            await expect(log, range(12))
            assert log.log.quarantined_count() == 0
            assert told(caplog) == []


# ---- the log start --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kfs", ["empty", "missing"])
async def test_segments_below_the_log_start_are_not_opened(autojump_clock, kfs, caplog) -> None:
    store = FaultyStore(await written())
    for base_offset in (0, 3):
        await store.delete([key_at(base_offset, kind="index").key])
        await damage_kfs(store, base_offset, kfs)
    caplog.clear()
    before = len(store.calls)
    topics = [topic_spec(log_start_offsets={0: 6})]
    async with memory_log(store, MemoryDisk(), topics=topics, leader_epoch=2) as log:
        read = {call.keys[0] for call in store.calls[before:] if call.operation in ("get", "get_tail")}
        assert read == {key_at(9).key, key_at(9, kind="index").key}
        await expect(log, range(6, 12))
        assert told(caplog) == []


async def damage_kfs(store, base_offset: int, kind: str) -> None:
    if kind == "missing":
        await store.delete([key_at(base_offset).key])
    else:
        await store.put(key_at(base_offset).key, [b""])


# ---- version 1 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", ["body", "trailer", "all"])
async def test_the_header_of_version_1_tells_where_a_damaged_segment_ends(autojump_clock, damaged) -> None:
    key = version_1_key("orders", 0, 100)
    objects = version_1_objects(key, make_batches(100, 4))
    store = MemoryStore()
    await objects.put(store)
    body = {"body": objects.kfs[:-40], "trailer": _flipped(objects.kfs, len(objects.kfs) - 1), "all": b"?"}[damaged]
    await store.put(key.key, [body])
    topic = topic_spec(name="orders", topic_id=key.topic_id, log_start_offsets={0: 100})
    async with memory_log(store, MemoryDisk(), topics=[topic]) as log:
        partition = log.partition(name="orders")
        assert partition.high_watermark == (112 if damaged != "all" else 100 + UNKNOWN_END_GAP)
        assert log.log.quarantined_count() == (damaged != "trailer")
        assert len(await log.records(partition, 100)) == (12 if damaged == "trailer" else 0)


# ---- errors on the way ----------------------------------------------------------------------------------------------


async def test_a_segment_of_a_newer_version_stops_the_start(autojump_clock) -> None:
    """It is no damage, and skipping what an older KafScale can't read would lose it for consumers."""
    store = await written()
    content = await content_of(store, key_at(9))
    footer = await read_footer(store, key_at(9))
    await store.put(key_at(9).key, [content[: footer.end_position] + newer(footer)])
    with pytest.raises(StartupError, match="a newer KafScale has written it"):
        async with memory_log(store, MemoryDisk(), leader_epoch=2):
            raise AssertionError("it started")


def newer(footer: segment.Footer) -> bytes:
    """A footer whose sections have the next version."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "SECTION_VERSION", segment.SECTION_VERSION + 1)
        return segment.encode_footer(footer)


async def test_a_crash_while_a_segment_is_examined_or_rebuilt_leaves_nothing_worse(autojump_clock) -> None:
    for kind in ("cut off", "half"):
        for stop_at in range(20):
            store = FaultyStore(await written())
            await damage(store, key_at(9), kind)
            store.fail(On("*", skip=stop_at), StoreUnavailable)
            try:
                async with memory_log(store, MemoryDisk(), leader_epoch=2):
                    pass
            except StoreUnavailable:
                pass
            store.heal()
            async with memory_log(store, MemoryDisk(), leader_epoch=3) as log:
                assert log.partition().high_watermark == 12
                await expect(log, range(12) if kind == "cut off" else range(9))


@pytest.mark.parametrize("kind", ["garbage", "cut off"])
async def test_a_timestamp_search_skips_damaged_segments(autojump_clock, kind) -> None:
    store = await written()
    await damage(store, key_at(3), kind)
    for first in ("find_timestamp", "find_max_timestamp"):
        async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
            partition, reader = log.partition(), log.log.reader
            if first == "find_max_timestamp":
                found = await reader.find_max_timestamp(partition)
            else:
                found = await reader.find_timestamp(partition, 1)
            assert found is not None
            assert found.offset == 0
            await expect(log, range(12) if kind == "cut off" else [0, 1, 2, *range(6, 12)])


async def test_damage_in_transit_fails_only_one_fetch(autojump_clock, caplog) -> None:
    store = MemoryStore()
    async with memory_log(store, MemoryDisk()) as log:
        await log.append(log.partition(), b"0")
        await log.log.flusher.flush_all()
        (found,) = log.partition().manifest.segments
        with pytest.raises(DamagedObject, match="on its way"):
            await log.log.reader.examiner.settle(log.partition(), found, DamagedObject("on its way"))
        with pytest.raises(NewerVersion):
            await log.log.reader.examiner.settle(log.partition(), found, NewerVersion("x"))
        assert log.partition().manifest.segments == [found]
        assert (await read_footer(store, found.key)).end_position > HEADER.size


async def test_a_sound_segment_that_comes_damaged_twice_in_a_row_is_not_passed_over(autojump_clock) -> None:
    """The second reply that ended early was that of the closer look: consumers skipped what was acknowledged."""
    store = FaultyStore(await written())
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        for cut_count in range(1, 6):
            (first, *_) = log.partition().manifest.segments
            log.log.reader.footers.forget(first)
            cut = store.truncate(On("get_tail", "*.kfs", times=cut_count))
            try:
                records = await log.read(log.partition(), 0)
            except (DamagedObject, StoreUnavailable):
                pass
            else:
                assert records[0].offset == 0, cut_count
            store.end(cut)
            assert first in log.partition().manifest.segments, cut_count
            assert cut.met_count == cut_count
        await expect(log, range(12))


async def test_a_sound_segment_is_not_passed_over_for_a_footer_that_comes_damaged_behind_each_look(
    autojump_clock,
) -> None:
    """Of seed 64751: both looks had found it whole, and could not read its footer then."""
    store = FaultyStore(await written())
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        (first, *_) = log.partition().manifest.segments
        log.log.reader.footers.forget(first)
        cuts = [store.truncate(On("get_tail", "*.kfs", skip=skipped, times=1)) for skipped in (0, 1, 2)]
        with suppress(DamagedObject, StoreUnavailable):
            await log.read(log.partition(), 0)
        assert [cut.met_count for cut in cuts] == [1, 1, 1]
        assert first in log.partition().manifest.segments
        await expect(log, range(12))


async def test_a_sound_segment_that_comes_damaged_is_not_written_again(autojump_clock) -> None:
    """Where its `.index` came damaged too, a footer was made that knew less; and the `.index` was left as it was."""
    store = FaultyStore(await written())
    before = await snapshot(store)
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        for part in ("get_tail", "get_range", "get"):
            (_, second, *_) = log.partition().manifest.segments
            log.log.reader.footers.forget(second)
            cuts = [store.truncate(On("get_tail", "*.kfs", times=2)), store.truncate(On("get", "*.index", times=1))]
            if part == "get_range":
                cuts.append(store.truncate(On("get_range", "*.kfs", times=1)))
            with suppress(DamagedObject, StoreUnavailable):
                await log.read(log.partition(), 3)
            for cut in cuts:
                store.end(cut)
        await expect(log, range(12))
    assert await snapshot(store) == before


@pytest.mark.parametrize("index", ["missing", "garbage", "foreign"])
async def test_a_rebuilding_that_is_interrupted_leaves_no_index_of_another_footer(autojump_clock, index) -> None:
    for skipped_count in range(4):
        store = FaultyStore(await written())
        await damage(store, key_at(3), "cut off")
        await damage(store, key_at(3, kind="index"), index)
        store.fail(On("put*", "*-00000.*", skip=skipped_count), StoreUnavailable)
        with suppress(StoreUnavailable):
            async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
                with suppress(StoreUnavailable):
                    await log.read(log.partition(), 3)
        store.heal()
        async with memory_log(store, MemoryDisk(), leader_epoch=3) as log:
            await expect(log, range(12))
        assert await read_index(store, key_at(3)) == await read_footer(store, key_at(3)), skipped_count


async def test_a_header_that_comes_cut_off_is_a_finding() -> None:
    """It raised struct.error, and ended the broker, where footer and `.index` had come cut off too."""
    store = FaultyStore(await written())
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        key = log.partition().manifest.segments[0].key
    for _ in range(5):
        cuts = [store.truncate(On(operation, times=1)) for operation in ("get_tail", "get_range", "get")]
        checked = await check_segment(store, key)
        assert checked.has(FindingKind.FOOTER)
        assert [cut.met_count for cut in cuts] == [1, 1, 1]


async def test_a_check_ends_where_all_replies_come_cut_off(autojump_clock) -> None:
    """It asked for ever for the bytes that were missing, and so did the fetch that waited for it."""
    store = FaultyStore(await written())
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        (first, *_) = log.partition().manifest.segments
        store.truncate(On("get*"))
        with trio.fail_after(3600):
            with pytest.raises(StoreUnavailable, match="replies of the store come cut off"):
                await check_segment(store, first.key)
            log.log.reader.footers.forget(first)
            with pytest.raises(StoreUnavailable):
                await log.read(log.partition(), 0)
        store.heal()
        await expect(log, range(12))


async def test_the_collection_of_orphans_leaves_a_quarantined_segment_alone(autojump_clock) -> None:
    """Nothing refers to it, and nobody can tell what is in it."""
    store = await written()
    await damage(store, key_at(9), "half")
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        await appended(log)
        before = await snapshot(store)
        collector = OrphanCollector(
            store=store,
            namespace="default",
            find_partition=log.log.partition,
            deleted_topics=list,
            on_gone=gone,
            interval_seconds=1,
            grace_seconds=1,
            now_ms=lambda: 1 << 60,
        )
        for _ in range(3):
            await collector.collect()
            await trio.sleep(3600)
        assert await snapshot(store) == before


async def gone(topic_ids) -> None:
    await trio.lowlevel.checkpoint()
