"""A start on what a bucket and a write-ahead log hold, in every state that a kill can leave them in."""

import logging

import attrs
import pytest
import trio
import trio.testing

from kafscale.config import Durability
from kafscale.errors import DamagedObject, KafkaError, StoreUnavailable
from kafscale.formats.footer_reading import read_footer, read_index
from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN
from kafscale.formats.segment import encode_footer
from kafscale.log.bucket.deletion import BuriedTopic
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey, topic_prefix
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.batch_header import parse_header
from kafscale.wire.error_codes import OUT_OF_ORDER_SEQUENCE_NUMBER
from kafscale.wire.records import ProducerStamp
from tests.devtools.fakes.memory_log import TOPIC, TOPIC_ID, MemoryLog, batch_of, memory_log, merge_segments, topic_spec

OTHER_ID = bytes(range(16, 32))
VALUES = [b"%d" % number for number in range(9)]
STAMPS = {"now_ms": 1 << 50}  # of producers that do not expire


def key_at(base_offset: int, generation: int = 0, epoch: int = 1) -> SegmentKey:
    return SegmentKey(
        topic=TOPIC, topic_id=TOPIC_ID, partition=0, base_offset=base_offset, epoch=epoch, generation=generation
    )


async def write(log: MemoryLog, *, per_segment: int = 3, flushed: int = 9, partition: int = 0) -> None:
    """The nine values, one batch each; the first `flushed` of them in segments."""
    for number, value in enumerate(VALUES):
        await log.append(log.partition(partition), value, producer=ProducerStamp(1, 0, number), **STAMPS)
        if (number + 1) % per_segment == 0 and number < flushed:
            await log.log.flusher.flush_all()


async def written(**how) -> tuple[MemoryStore, MemoryDisk]:
    """A bucket and a disk after a kill."""
    store, disk = MemoryStore(), MemoryDisk()
    async with memory_log(store, disk) as log:
        await write(log, **how)
        return store, disk.crash()


async def test_a_restart_restores_all_records_and_accepts_appends(autojump_clock):
    store, disk = await written(flushed=6)
    async with memory_log(store, disk, leader_epoch=2) as log:
        partition = log.partition()
        assert (partition.flushed_offset, partition.high_watermark, partition.next_offset) == (6, 9, 9)
        assert await log.values(partition) == VALUES
        assert log.log.pool.used_bytes == 0
        assert await log.append(partition, b"next", producer=ProducerStamp(1, 0, 9)) == 9
        await log.log.flusher.flush_all()
        assert await log.values(partition) == [*VALUES, b"next"]
        assert [start.epoch for start in (await read_footer(store, key_at(6, epoch=2))).epochs] == [1, 2]
        assert log.log.journal.pending_count == 0


@pytest.mark.parametrize("flushed", [0, 3, 9])
async def test_a_retry_after_the_restart_is_recognised_and_a_gap_refused(autojump_clock, flushed):
    store, disk = await written(flushed=flushed)
    async with memory_log(store, disk, leader_epoch=2) as log:
        states = log.partition().producers
        batch = parse_header(log_batch(8))
        assert states.check(batch).base_offset == 8
        with pytest.raises(KafkaError) as caught:
            states.check(parse_header(log_batch(10)))
        assert caught.value.code == OUT_OF_ORDER_SEQUENCE_NUMBER


def log_batch(sequence: int) -> memoryview:
    return batch_of(b"again", producer=ProducerStamp(1, 0, sequence))


async def test_only_the_last_footer_is_read_and_the_others_when_they_are_needed(autojump_clock):
    store, disk = await written()
    counted = FaultyStore(store)
    async with memory_log(counted, disk, leader_epoch=2) as log:
        assert (counted.count("get_tail"), counted.count("get"), counted.count("put*")) == (1, 1, 0)
        segments = log.partition().manifest.segments
        assert [(each.base_offset, each.last_offset) for each in segments] == [(0, 2), (3, 5), (6, 8)]
        assert [each.max_timestamp_ms == MAX_TIMESTAMP_UNKNOWN for each in segments] == [True, True, False]
        assert await log.values(log.partition()) == VALUES


# ---- halves of pairs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base_offset", [0, 3, 6])
async def test_a_missing_index_is_written_again(autojump_clock, base_offset, caplog):
    store, disk = await written()
    index = key_at(base_offset).of_kind("index").key
    before = bytes((await store.get(index)).data)
    await store.delete([index])
    async with memory_log(store, disk, leader_epoch=2) as log:
        assert bytes((await store.get(index)).data) == before
        assert await log.values(log.partition()) == VALUES
    assert caplog.text.count("writing it again") == 1


@pytest.mark.parametrize("damage", ["other attempt", "cut off", "empty"])
async def test_an_index_of_another_attempt_is_written_again(autojump_clock, damage):
    """Killed between `.kfs` and the replacing of an older `.index`: Spark plans from the `.index` alone."""
    store, disk = await written()
    index = key_at(6).of_kind("index").key
    before = bytes((await store.get(index)).data)
    footer = await read_footer(store, key_at(6))
    shorter = encode_footer(attrs.evolve(footer, last_offset=7, record_count=2))
    await store.put(index, [{"other attempt": shorter, "cut off": before[:-1], "empty": b""}[damage]])
    async with memory_log(store, disk, leader_epoch=2):
        assert bytes((await store.get(index)).data) == before


async def test_an_index_without_its_kfs_is_not_looked_at(autojump_clock, caplog):
    store, disk = await written(flushed=6)
    orphan = bytes((await store.get(key_at(3).of_kind("index").key)).data)
    await store.put(key_at(6).of_kind("index").key, [orphan])
    async with memory_log(store, disk, leader_epoch=2) as log:
        assert await log.values(log.partition()) == VALUES
        await log.log.flusher.flush_all()
        assert await read_index(store, key_at(6, epoch=2)) == await read_footer(store, key_at(6, epoch=2))
    assert caplog.text.count("have no .kfs") == 1


async def test_a_segment_uploaded_before_a_kill_is_kept_and_its_batches_are_not_replayed(autojump_clock):
    """Both halves are there and the WAL has the batches as well: they are not replayed, and their files go."""
    store, disk = MemoryStore(), MemoryDisk()
    faulty = FaultyStore(store)
    async with memory_log(faulty, disk) as log, trio.open_nursery() as nursery:
        await write(log, flushed=3)
        gate = faulty.hold(On("put*"), after_effect=True)
        nursery.start_soon(log.log.flusher.flush_all)
        await gate.wait_arrived(2)
        disk = disk.crash()
        nursery.cancel_scope.cancel()
    async with memory_log(store, disk, leader_epoch=2) as log:
        assert log.partition().flushed_offset == 9
        assert not log.partition().tail.batches
        assert await log.values(log.partition()) == VALUES
        assert log.log.journal.pending_count == 0


@pytest.mark.parametrize("half", ["kfs", "index"])
async def test_one_half_of_a_killed_upload_is_completed(autojump_clock, half):
    store, disk = MemoryStore(), MemoryDisk()
    faulty = FaultyStore(store)
    async with memory_log(faulty, disk) as log, trio.open_nursery() as nursery:
        await write(log, flushed=3)
        gate = faulty.hold(On("put*", f"*.{half}"))
        nursery.start_soon(log.log.flusher.flush_all)
        await gate.wait_arrived(1)
        await trio.testing.wait_all_tasks_blocked()
        disk = disk.crash()
        nursery.cancel_scope.cancel()
    async with memory_log(store, disk, leader_epoch=2) as log:
        assert log.partition().flushed_offset == (3 if half == "kfs" else 9)
        await log.append(log.partition(), b"next")
        await log.log.flusher.flush_all()
        assert await log.values(log.partition()) == [*VALUES, b"next"]
        for key in (key_at(0), key_at(9, epoch=2) if half == "index" else key_at(3, epoch=2)):
            assert await read_index(store, key) == await read_footer(store, key)


async def test_a_segment_that_arrives_after_the_restart_is_covered_by_the_replayed_batches(autojump_clock):
    """The PUT of the process before, still on its way: a prefix of what the WAL has."""
    store, disk = MemoryStore(), MemoryDisk()
    async with memory_log(store, disk) as log:
        await write(log, flushed=6)
        disk = disk.crash()
        await log.log.flusher.flush_all()
    late = [key_at(6).key, key_at(6).of_kind("index").key]
    contents = [bytes((await store.get(key)).data) for key in late]
    await store.delete(late)
    async with memory_log(store, disk, leader_epoch=2) as log:
        for key, content in zip(late, contents, strict=True):
            await store.put(key, [content])
        await log.append(log.partition(), b"next")
        await log.log.flusher.flush_all()
        assert [each.base_offset for each in log.partition().manifest.segments] == [0, 3, 6]
        assert await log.values(log.partition()) == [*VALUES, b"next"]
        assert log.log.journal.pending_count == 0
    async with memory_log(store, MemoryDisk(), leader_epoch=3) as log:
        assert [each.key.epoch for each in log.partition().manifest.segments] == [1, 1, 2]
        assert await log.values(log.partition()) == [*VALUES, b"next"]
        assert log.log.late_count() == 0  # it says the same


# ---- damage, and what is not ours ---------------------------------------------------------------------------------


async def test_a_broker_starts_without_a_removed_last_segment_if_the_wal_has_its_records(autojump_clock):
    store, disk = MemoryStore(), MemoryDisk()
    async with memory_log(store, disk) as log:
        await write(log, flushed=6)
        disk = disk.crash()
        await log.log.flusher.flush_all()
    await store.delete([key_at(6).key, key_at(6).of_kind("index").key])
    async with memory_log(store, disk, leader_epoch=2) as log:
        assert await log.values(log.partition()) == VALUES


async def test_a_store_error_at_the_start_is_raised_unchanged(autojump_clock):
    store, disk = await written()
    faulty = FaultyStore(store)
    faulty.fail(On("get_tail"))
    with pytest.raises(StoreUnavailable):
        async with memory_log(faulty, disk, leader_epoch=2):
            raise AssertionError("it started")


async def test_objects_of_other_namespaces_topics_and_programs_are_left_alone(autojump_clock, caplog):
    store = MemoryStore()
    two = [topic_spec(), topic_spec(name="gone", topic_id=OTHER_ID)]
    async with memory_log(store, MemoryDisk(), topics=two) as log:
        await write(log)
        await log.append(log.partition(name="gone"), b"x")
        await log.log.flusher.flush_all()
    async with memory_log(store, MemoryDisk(), namespace="default2") as log:
        assert log.partition().next_offset == 0
        await log.append(log.partition(), b"elsewhere")
        await log.log.flusher.flush_all()
    foreign = [f"default/{TOPIC}/notes.txt", "_kafscale/default/x", "default/segment-1.kfs"]
    for key in foreign:
        await store.put(key, [b"foreign"])
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        assert await log.values(log.partition()) == VALUES
    async with memory_log(store, MemoryDisk(), namespace="default2", leader_epoch=2) as log:
        assert await log.values(log.partition()) == [b"elsewhere"]
    assert "1 deleted or unknown topics: gone" in caplog.text
    assert all([(await store.get(key)).data == b"foreign" for key in foreign])


async def test_deleting_a_topic_deletes_its_objects_and_no_others(autojump_clock):
    store = MemoryStore()
    topics = [topic_spec(2), topic_spec(name=TOPIC + "t", topic_id=OTHER_ID)]
    async with memory_log(store, MemoryDisk(), topics=topics) as log:
        await write(log, partition=1)
        await log.append(log.partition(name=TOPIC + "t"), b"stays")
        await log.log.flusher.flush_all()
        log.log.close_topic(TOPIC)
        await log.log.delete_objects(BuriedTopic(name=TOPIC, topic_id=TOPIC_ID))
        keys = [info.key async for page in store.list("") for info in page]
        assert len(keys) == 2
        assert all(key.startswith(topic_prefix(TOPIC + "t", OTHER_ID)) for key in keys)


async def test_the_wal_of_a_topic_that_was_deleted_is_let_go(autojump_clock):
    store, disk = await written(flushed=0)
    async with memory_log(store, disk, topics=[topic_spec(name="new", topic_id=OTHER_ID)], leader_epoch=2) as log:
        assert log.partition(name="new").next_offset == 0
        assert log.log.journal.pending_count == 0


# ---- generations --------------------------------------------------------------------------------------------------


async def test_a_last_segment_that_a_higher_generation_covers_is_not_read(autojump_clock):
    """Killed after a merge, before the deletion of what it covers: of that, any part may be left."""
    for left in ([], [0], [3], [0, 3]):
        store, disk = MemoryStore(), MemoryDisk()
        async with memory_log(store, disk) as log:
            await write(log, flushed=6)
            await merge_segments(log, [0, 3])
            disk = disk.crash()
        gone = [key_at(base) for base in (0, 3) if base not in left]
        await store.delete([key for each in gone for key in (each.key, each.of_kind("index").key)])
        async with memory_log(store, disk, leader_epoch=2) as log:
            manifest = log.partition().manifest
            assert [(each.base_offset, each.generation) for each in manifest.segments] == [(0, 1)]
            assert log.partition().flushed_offset == 6
            assert await log.values(log.partition()) == VALUES
            assert await read_index(store, key_at(0, 1)) == await read_footer(store, key_at(0, 1))
            await log.log.flusher.flush_all()
            assert await log.values(log.partition()) == VALUES


async def test_a_segment_partly_covered_by_a_merged_one_ends_where_that_begins(autojump_clock):
    store, disk = MemoryStore(), MemoryDisk()
    async with memory_log(store, disk) as log:
        await write(log, per_segment=2, flushed=8)
        await merge_segments(log, [2, 4])
        disk = disk.crash()
    await store.delete([each for base in (2, 4) for each in (key_at(base).key, key_at(base).of_kind("index").key)])
    async with memory_log(store, disk, leader_epoch=2) as log:
        segments = log.partition().manifest.segments
        assert [(each.base_offset, each.last_offset) for each in segments] == [(0, 1), (2, 5), (6, 7)]
        assert await log.values(log.partition()) == VALUES


# ---- holes --------------------------------------------------------------------------------------------------------


async def test_a_hole_between_bucket_and_wal_stops_the_start_with_advice(autojump_clock):
    store, disk = await written(flushed=6)
    await store.delete([key_at(3).key, key_at(3).of_kind("index").key])
    async with memory_log(store, disk, leader_epoch=2) as log:  # entries that are flushed are in the WAL's file still
        assert await log.values(log.partition()) == VALUES
    store, disk = await with_short_wal()
    with pytest.raises(DamagedObject, match=r"t-0: .* offset 14, .* before 0; .*bring back.*default/t/.*/0/") as caught:
        async with memory_log(store, disk, leader_epoch=2):
            raise AssertionError("it started")
    assert "--data-dir" in str(caught.value)


async def with_short_wal() -> tuple[MemoryStore, MemoryDisk]:
    """Of 20 records the first 16 were flushed and are gone from the bucket; the WAL begins at 14."""
    store, disk = MemoryStore(), MemoryDisk()
    async with memory_log(store, disk, wal_segment_bytes=64 << 10) as log:
        for number in range(20):
            await log.append(log.partition(), bytes(9000))
            if number == 15:
                await log.log.flusher.flush_all()
        await trio.testing.wait_all_tasks_blocked()
        disk = disk.crash()
    await store.delete([key_at(0).key, key_at(0).of_kind("index").key])
    return store, disk


@pytest.mark.parametrize("log_start_offset", [13, 14, 15, 20])
async def test_a_wal_that_begins_after_the_bucket_is_whole_if_the_log_start_covers_the_gap(
    autojump_clock, log_start_offset
):
    store, disk = await with_short_wal()
    topics = [topic_spec(log_start_offsets={0: log_start_offset})]
    if log_start_offset < 14:
        with pytest.raises(DamagedObject):
            async with memory_log(store, disk, topics=topics, leader_epoch=2):
                raise AssertionError("it started")
        return
    async with memory_log(store, disk, topics=topics, leader_epoch=2) as log:
        partition = log.partition()
        assert (partition.flushed_offset, partition.high_watermark) == (14, 20)
        offsets = [record.offset for record in await log.records(partition, log_start_offset)]
        assert offsets == list(range(log_start_offset, 20))
        await log.log.flusher.flush_all()
        assert [each.base_offset for each in partition.manifest.segments] == [14]


async def test_segments_missing_at_the_front_are_logged(autojump_clock, caplog):
    store, disk = await written()
    await store.delete([key_at(0).key, key_at(0).of_kind("index").key])
    async with memory_log(store, disk, leader_epoch=2) as log:
        assert await log.values(log.partition()) == VALUES[3:]
    assert [r.message for r in caplog.records if r.levelno == logging.ERROR] == [
        "t-0 begins at offset 0, and the bucket's first segment of it at 3: objects are missing"
    ]


@pytest.mark.parametrize("log_start_offset", [1, 3, 7, 8, 9])
@pytest.mark.parametrize("objects_left", [True, False])
async def test_segments_below_the_log_start_offset_can_be_missing(
    autojump_clock, log_start_offset, objects_left, caplog
):
    """DeleteRecords up to any offset, flushed or not; then retention has deleted what it could, or has not yet."""
    store, disk = await written(flushed=6)
    if not objects_left:
        for base, last in ((0, 2), (3, 5)):
            if last < log_start_offset:
                await store.delete([key_at(base).key, key_at(base).of_kind("index").key])
    topics = [topic_spec(log_start_offsets={0: log_start_offset})]
    async with memory_log(store, disk, topics=topics, leader_epoch=2) as log:
        partition = log.partition()
        assert (partition.log_start_offset, partition.high_watermark) == (log_start_offset, 9)
        assert await log.values(partition, log_start_offset) == VALUES[log_start_offset:]
        assert await log.append(partition, b"next") == 9
        await log.log.flusher.flush_all()
        assert await log.values(partition, log_start_offset) == [*VALUES[log_start_offset:], b"next"]
    assert not [r for r in caplog.records if r.levelno == logging.ERROR]


async def test_an_empty_partition_continues_at_its_log_start_offset(autojump_clock):
    """Everything is deleted and gone from the bucket, and no entry of the WAL is left."""
    store, topics = MemoryStore(), [topic_spec(log_start_offsets={0: 9})]
    async with memory_log(store, MemoryDisk(), topics=topics) as log:
        partition = log.partition()
        assert (partition.log_start_offset, partition.high_watermark, partition.next_offset) == (9, 9, 9)
        assert await log.append(partition, b"next") == 9
        await log.log.flusher.flush_all()
        assert await log.values(partition, 9) == [b"next"]


async def test_under_segment_durability_the_bucket_alone_is_enough(autojump_clock):
    store = MemoryStore()
    for start in range(3):
        segment_mode = {"durability": Durability.SEGMENT, "leader_epoch": start + 1}
        async with memory_log(store, MemoryDisk(), **segment_mode) as log:
            assert await log.values(log.partition()) == VALUES[: 3 * start]
            for number in range(3 * start, 3 * start + 3):
                stamp = ProducerStamp(1, 0, number)
                await log.append(log.partition(), VALUES[number], producer=stamp, **STAMPS)
            log.append_nowait(log.partition(), b"not acknowledged")
    async with memory_log(store, MemoryDisk(), durability=Durability.SEGMENT, leader_epoch=4) as log:
        assert await log.values(log.partition()) == VALUES
        assert log.partition().producers.check(parse_header(log_batch(8))).base_offset == 8


# ---- what is deleted while a start looks ----------------------------------------------------------------------------


async def deleted_after_listing(store: MemoryStore, *base_offsets: int) -> FaultyStore:
    """A way to a bucket from which the sources of a merge go when its segments have been listed."""
    faulty = FaultyStore(store)

    async def delete(call) -> None:
        keys = [key_at(base_offset) for base_offset in base_offsets]
        await store.delete([key.of_kind(kind).key for key in keys for kind in ("kfs", "index")])

    faulty.rule(On("list", "default/*", times=1), delete, after_effect=True)
    return faulty


async def test_a_merged_segment_deleted_after_listing_does_not_stop_the_start(autojump_clock, caplog):
    """The broker before had merged them and decided to delete them while it led."""
    store, disk = await written()
    async with memory_log(store, disk, leader_epoch=2) as log:
        await merge_segments(log, [3, 6])
    async with memory_log(await deleted_after_listing(store, 3, 6), disk, leader_epoch=3) as log:
        assert await log.values(log.partition()) == VALUES
        assert [each.base_offset for each in log.partition().manifest.segments] == [0, 3]
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


async def test_the_replacement_of_deleted_segments_is_found_though_not_listed(autojump_clock):
    store, disk = await written()
    async with memory_log(store, disk, leader_epoch=2) as log:
        merged = (await merge_segments(log, [3, 6])).key
    content = (await store.get(merged.key)).data
    await store.delete([merged.key])
    faulty = await deleted_after_listing(store, 3, 6)

    async def arrive(call) -> None:
        await store.put(merged.key, [content])

    faulty.rule(On("list", "default/*", times=1), arrive, after_effect=True)
    async with memory_log(faulty, disk, leader_epoch=3) as log:
        assert await log.values(log.partition()) == VALUES


async def test_a_segment_lost_after_listing_does_not_stop_the_start(autojump_clock):
    store, _ = await written()
    async with memory_log(await deleted_after_listing(store, 6), MemoryDisk(), leader_epoch=3) as log:
        assert await log.values(log.partition()) == VALUES[:6]
