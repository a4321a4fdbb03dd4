"""Merging over a whole log: what becomes of the objects, of readers meanwhile, and of what goes wrong half-way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from kafscale.errors import Fenced, SlowDown, StoreUnavailable
from kafscale.formats.footer_reading import read_footer, read_index
from kafscale.formats.manifest import fingerprint
from kafscale.log.bucket.deletion import BuriedTopic
from kafscale.log.flush.flusher import PRESSED_SECONDS
from kafscale.log.repair.verify_segment import check_segment
from kafscale.log.rewrite.merger import FAILED_MERGE_PAUSE_SECONDS
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey, parse_segment_key, version_1_topic_id
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.records import ProducerStamp
from tests.devtools.fakes.memory_log import NOW_MS, TOPIC_ID, MemoryLog, memory_log, merge_segments, topic_spec
from tests.devtools.fakes.segment_objects import make_batches, version_1_key, version_1_objects
from tests.devtools.world.determinism import run_here

DELAY_MS = 100_000
TARGET_BYTES = 4000
RECORD = bytes(50)  # a batch of one has 122 bytes


@asynccontextmanager
async def merging_log(store, disk=None, **options) -> AsyncIterator[MemoryLog]:
    """A log that merges, and deletes what it has merged."""
    topics = options.pop("topics", [topic_spec(file_delete_delay_ms=DELAY_MS)])
    check_lead = options.pop("check_lead", None)
    settings = {"segment_merge_bytes": TARGET_BYTES, "cache_bytes": 0} | options
    async with memory_log(store, disk or MemoryDisk(), topics=topics, **settings) as log:
        if check_lead is not None:
            log.log.merger.rewriter.check_lead = check_lead
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.log.merger.run, list(log.log.partitions.values()))
            nursery.start_soon(log.log.deleter.run)
            yield log
            nursery.cancel_scope.cancel()


async def flushed(log: MemoryLog, count: int, value: bytes = RECORD, **batch) -> None:
    """Segments of a batch each."""
    for _ in range(count):
        await log.append(log.partition(), b"%d." % log.partition().next_offset + value, **batch)
        await log.log.flusher.flush_all()


def key_of(base_offset: int, generation: int = 0, epoch: int = 1) -> SegmentKey:
    return SegmentKey(
        topic="t", topic_id=TOPIC_ID, partition=0, base_offset=base_offset, epoch=epoch, generation=generation
    )


async def keys_of(store) -> list[SegmentKey]:
    return [parse_segment_key(info.key) async for page in store.list("default/") for info in page]


async def kfs_of(store) -> list[tuple[int, int]]:
    """Base offset and generation of every `.kfs`."""
    return [(key.base_offset, key.generation) for key in await keys_of(store) if key.kind == "kfs"]


def read_from(log: MemoryLog) -> list[tuple[int, int, int]]:
    return [(each.base_offset, each.last_offset, each.generation) for each in log.partition().manifest.segments]


async def check_values(log: MemoryLog, *, first: int = 0, count: int) -> None:
    records = await log.records(log.partition(), first)
    assert [record.offset for record in records] == list(range(first, count))
    assert [int(record.value.partition(b".")[0]) for record in records] == list(range(first, count))


async def bodies_of(store, keys) -> bytes:
    found = b""
    for key in keys:
        end = (await read_footer(store, key)).end_position
        found += bytes((await store.get(key.key)).data)[32:end]
    return found


async def test_small_segments_become_one_with_the_same_bytes_and_go_after_a_while(autojump_clock):
    store = MemoryStore()
    async with merging_log(store) as log:
        await flushed(log, 9)
        await trio.sleep(1)
        assert len(read_from(log)) == 9
        before = await bodies_of(store, [key_of(offset) for offset in range(9)])
        await flushed(log, 1)
        before += await bodies_of(store, [key_of(9)])
        await trio.sleep(1)
        assert read_from(log) == [(0, 9, 1)]
        assert len(await keys_of(store)) == 22
        assert await bodies_of(store, [key_of(0, 1)]) == before
        await trio.sleep(DELAY_MS / 1000)
        assert await keys_of(store) == [key_of(0, 1).of_kind("index"), key_of(0, 1)]
        await check_values(log, count=10)
        merger = log.log.merger
        assert (merger.merges_count.value, merger.sources_count.value, merger.merged_bytes.value) == (
            1,
            10,
            len(before),
        )
        assert log.partition().manifest.size_bytes == len(before)


async def test_while_the_pool_runs_short_only_merges_that_take_away_many_objects_are_made(autojump_clock):
    third = bytes(TARGET_BYTES // 3)
    async with merging_log(MemoryStore()) as log:
        log.log.flusher.relieve()
        await flushed(log, 3, third)  # the last one does not fit: two are a group
        await trio.sleep(PRESSED_SECONDS - 2)
        assert [generation for _, _, generation in read_from(log)] == [0, 0, 0]
        await flushed(log, 11)
        await trio.sleep(1.5)
        assert read_from(log) == [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 13, 1)]
        await trio.sleep(2)
        assert read_from(log) == [(0, 1, 1), (2, 2, 0), (3, 13, 1)]
        await check_values(log, count=14)


async def test_a_merged_segment_is_whole_by_itself(autojump_clock):
    store, producer = MemoryStore(), ProducerStamp(7, 0, 0)
    async with merging_log(store) as log:
        for number in range(20):
            stamp = attrs.evolve(producer, base_sequence=number)
            await flushed(log, 1, timestamps_ms=[NOW_MS + 100 - number], producer=stamp)
        await trio.sleep(1)
        assert read_from(log) == [(0, 9, 1), (10, 19, 1)]
        last_source = await read_footer(store, key_of(19))
        for key in (key_of(0, 1), key_of(10, 1)):
            checked = await check_segment(store, key)
            assert checked.findings == []
            footer = await read_footer(store, key)
            assert await read_index(store, key) == footer
            assert len(footer.index.positions) == footer.record_count == footer.identity.batch_count == 10
        assert footer.producers == last_source.producers
        assert footer.epochs == last_source.epochs
        assert footer.last_offset == 19
        assert footer.identity.max_timestamp_ms == NOW_MS + 90
        assert list(footer.index.min_timestamps_ms) == [NOW_MS + 90 - number for number in range(10)]
        assert footer.identity.created_ms == last_source.identity.created_ms


async def test_merged_segments_are_merged_again_until_they_are_large_and_then_no_more(autojump_clock):
    store = MemoryStore()
    async with merging_log(store) as log:
        for _ in range(200):
            await flushed(log, 1)
            await trio.sleep(1)
        await trio.sleep(DELAY_MS / 1000)
        sizes = [each.size_bytes for each in log.partition().manifest.segments]
        large = [size for size in sizes if 2 * size >= TARGET_BYTES]
        assert sum(sizes) == log.partition().manifest.size_bytes > 200 * 120
        assert max(sizes) <= TARGET_BYTES
        assert sum(large) > 0.8 * sum(sizes)
        assert len(sizes) < 30
        assert len(await keys_of(store)) == 2 * len(sizes)
        assert log.log.merger.merged_bytes.value <= 2 * sum(sizes)
        await check_values(log, count=200)
    async with merging_log(store) as log:
        await check_values(log, count=200)


async def test_an_idle_log_does_nothing(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with merging_log(store) as log:
        await flushed(log, 10)
        await trio.sleep(DELAY_MS / 500)
        calls = len(store.calls)
        await trio.sleep(1e6)
        assert len(store.calls) == calls
        assert len(read_from(log)) == 1


async def test_nothing_is_merged_with_the_option_off(autojump_clock):
    async with merging_log(MemoryStore(), segment_merge_bytes=0) as log:
        await flushed(log, 30)
        await trio.sleep(100)
        assert len(read_from(log)) == 30


async def test_segments_found_at_the_start_are_merged_too(autojump_clock):
    store = MemoryStore()
    async with merging_log(store, segment_merge_bytes=0) as log:
        await flushed(log, 30)
    async with merging_log(store) as log:
        await trio.sleep(1)
        assert len(read_from(log)) <= 10
        await check_values(log, count=30)


async def test_the_partition_with_most_to_gain_goes_first(autojump_clock):
    topics = [topic_spec(3, file_delete_delay_ms=DELAY_MS)]
    store = FaultyStore(MemoryStore())
    async with merging_log(store, topics=topics, segment_merge_bytes=0) as log:
        for index, count in enumerate((13, 14, 12)):
            for _ in range(count):
                await log.append(log.partition(index), RECORD)
                await log.log.flusher.flush_all()
    store.calls.clear()
    async with merging_log(store, topics=topics, segment_merge_bytes=1 << 20):
        await trio.sleep(1)
        merged = [key for call in store.calls if call.operation == "put_if_absent" for key in call.keys]
        assert [parse_segment_key(key).partition for key in merged] == [1, 0, 2]


async def test_readers_are_not_disturbed_by_a_merge(autojump_clock):
    """While the new object is on its way, in the moment of the change, and when the old ones are gone."""
    store = FaultyStore(MemoryStore())
    gate = store.hold(On("put_if_absent", "*-00001.kfs"))
    async with merging_log(store, cache_bytes=0) as log:
        await flushed(log, 10)
        await gate.wait_arrived(1)
        await check_values(log, count=10)
        await flushed(log, 3)
        await check_values(log, count=13)
        fetch = store.hold(On("get_range", "*-00000000000000000003-*-00000.kfs"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(check_fetch, log)
            await fetch.wait_arrived(1)
            gate.open()
            await trio.sleep(DELAY_MS / 1000 + 1)  # the object that the fetch has found goes meanwhile
            assert (3, 0) not in await kfs_of(store)
            assert read_from(log)[0] == (0, 9, 1)
            fetch.open()
        await check_values(log, count=13)


async def check_fetch(log: MemoryLog) -> None:
    [record] = await log.read(log.partition(), 3, 1)
    assert record.offset == 3


async def test_segments_of_both_versions_and_of_several_generations_are_merged_into_one(autojump_clock, monkeypatch):
    monkeypatch.setattr(trio.to_thread, "run_sync", run_here)  # the clock would jump while a thread makes a footer
    store, topic_id = MemoryStore(), version_1_topic_id("t")
    batches = make_batches(0, 60)
    for first in range(0, 60, 5):
        await version_1_objects(version_1_key("t", 0, 3 * first), batches[first : first + 5]).put(store)
    topics = [topic_spec(topic_id=topic_id, file_delete_delay_ms=DELAY_MS)]
    async with merging_log(store, topics=topics, segment_merge_bytes=1200) as log:  # version 1 is too large for it
        await flushed(log, 40)
        await trio.sleep(1)
        before = log.partition().manifest.segments
        assert {each.generation for each in before} == {0, 1}
        assert {each.key.version for each in before if each.generation == 0} == {1, 2}
        values = await log.values(log.partition())
    async with merging_log(store, topics=topics, segment_merge_bytes=1 << 20) as log:
        await flushed(log, 30, producer=ProducerStamp(7, 0, 0))
        await trio.sleep(DELAY_MS / 1000 + 1)
        merged = log.partition().manifest.segments[0]
        assert merged.base_offset == 0
        assert merged.last_offset > 200
        assert merged.generation == 2
        assert merged.max_timestamp_ms == NOW_MS + 179  # of the last record of version 1
        assert (await log.values(log.partition()))[: len(values)] == values
        checked = await check_segment(store, merged.key)
        assert checked.findings == []
        assert (await read_footer(store, merged.key)).version == 2


# ---- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "cut off", "missing", "of another segment"])
async def test_a_damaged_source_is_logged_once_and_only_its_neighbours_are_merged(autojump_clock, caplog, damage):
    store = FaultyStore(MemoryStore())
    async with merging_log(store, segment_merge_bytes=0) as log:
        await flushed(log, 25)
    content = bytearray((await store.get(key_of(11).key)).data)
    content[50] ^= 1
    other = bytes((await store.get(key_of(12).key)).data)
    bad = {"flipped": bytes(content), "cut off": bytes(content[:200]), "missing": b"", "of another segment": other}
    async with merging_log(store, segment_merge_bytes=1 << 20) as log:
        await store.put(key_of(11).key, [bad[damage]])
        if damage == "missing":
            await store.delete([key_of(11).key])
        await trio.sleep(10)
        assert log.log.merger.failed_count.value == 1
        assert caplog.text.count("can't be merged") == 1
        assert read_from(log) == [(0, 10, 1), (11, 11, 0), (12, 24, 1)]
        gets = store.count("get", key_of(11).key)
        await flushed(log, 20)
        await trio.sleep(10)
        assert log.log.merger.failed_count.value == 1
        assert store.count("get", key_of(11).key) == gets
        await check_values(log, first=12, count=45)


async def test_a_source_that_comes_damaged_once_is_merged(autojump_clock, caplog):
    """One reply that ended early, and the segment stayed as it was until the next start."""
    store = FaultyStore(MemoryStore())
    async with merging_log(store) as log:
        await flushed(log, 9)
        cut = store.truncate(On("get", "*.kfs", times=1))
        await flushed(log, 1)
        await trio.sleep(10)
        assert cut.met_count == 1
        assert read_from(log) == [(0, 9, 1)]
        assert (log.log.merger.failed_count.value, "can't be merged" in caplog.text) == (0, False)


@pytest.mark.parametrize("operation", ["get", "put_if_absent", "put"])
async def test_a_store_that_fails_is_tried_again_after_a_pause(autojump_clock, operation, caplog):
    store = FaultyStore(MemoryStore())
    async with merging_log(store) as log:
        await flushed(log, 9)
        pattern = "*-0000[1-9].*" if operation.startswith("put") else "*"
        rule = store.fail(On(operation, pattern), SlowDown)
        await flushed(log, 1)
        await trio.sleep(FAILED_MERGE_PAUSE_SECONDS * 2.5)
        assert 1 <= rule.met_count <= 3 * 4
        assert len(read_from(log)) == 10
        await check_values(log, count=10)
        store.heal()
        await trio.sleep(FAILED_MERGE_PAUSE_SECONDS)
        assert len(read_from(log)) == 1
        await check_values(log, count=10)
        assert log.log.merger.failed_count.value == caplog.text.count("is tried again") == 3


async def test_a_merged_segment_left_by_a_lost_reply_is_covered_by_the_next_generation(autojump_clock):
    """Nobody reads it, and it goes with the parts when it is found as an orphan; a start finds both and reads one."""
    store = FaultyStore(MemoryStore())
    async with merging_log(store) as log:
        store.lose_reply(On("put_if_absent", "*-00001.kfs", times=1), StoreUnavailable)
        await flushed(log, 10)
        await trio.sleep(1)
        assert len(read_from(log)) == 10
        await flushed(log, 2)
        await trio.sleep(FAILED_MERGE_PAUSE_SECONDS)
        assert read_from(log) == [(0, 11, 2)]
        await trio.sleep(DELAY_MS / 1000)
        assert await kfs_of(store) == [(0, 1), (0, 2)]
        await check_values(log, count=12)
    async with merging_log(store) as log:
        assert read_from(log) == [(0, 11, 2)]
        await check_values(log, count=12)


async def test_a_merge_that_keeps_failing_to_write_its_index_leaves_one_object(autojump_clock):
    """Each attempt took another generation, and after five of them none was left until the next start."""
    store = FaultyStore(MemoryStore())
    async with merging_log(store) as log:
        rule = store.fail(On("put", "*.index"), SlowDown)
        await flushed(log, 10)
        await trio.sleep(FAILED_MERGE_PAUSE_SECONDS * 9.5)
        assert rule.met_count >= 9
        assert [each for each in await kfs_of(store) if each[1]] == [(0, 1)]
        store.heal()
        await trio.sleep(FAILED_MERGE_PAUSE_SECONDS)
        assert read_from(log) == [(0, 9, 1)]
        info = await store.head(key_of(0, 1).key)
        assert log.partition().manifest.segments[0].fingerprint == fingerprint(info.size_bytes, info.etag)
        assert await read_index(store, key_of(0, 1)) == await read_footer(store, key_of(0, 1))
        await check_values(log, count=10)


async def test_failing_merges_of_a_growing_log_take_one_generation_each(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with merging_log(store) as log:
        rule = store.fail(On("put", "*.index"), SlowDown)
        for count in (10, *[1] * 7):
            await flushed(log, count)
            await trio.sleep(FAILED_MERGE_PAUSE_SECONDS)
        assert rule.met_count >= 8
        store.heal()
        await trio.sleep(FAILED_MERGE_PAUSE_SECONDS)
        assert read_from(log) == [(0, 16, 8)]
        await check_values(log, count=17)
    async with merging_log(store) as log:
        assert read_from(log) == [(0, 16, 8)]
        await check_values(log, count=17)


async def test_a_damaged_object_of_an_earlier_merge_is_not_taken(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with merging_log(store) as log:
        rule = store.fail(On("put", "*.index"), SlowDown)
        await flushed(log, 10)
        await trio.sleep(FAILED_MERGE_PAUSE_SECONDS / 2)
        assert rule.met_count
        await store.put(key_of(0, 1).key, [b"damaged"])
        store.heal()
        await trio.sleep(FAILED_MERGE_PAUSE_SECONDS)
        assert read_from(log) == [(0, 9, 2)]
        await check_values(log, count=10)


CRASH_POINTS = {
    "before the .kfs": (On("put_if_absent", "*-00001.kfs"), False),
    "after the .kfs": (On("put_if_absent", "*-00001.kfs"), True),
    "before the .index": (On("put", "*-00001.index"), False),
    "after the .index": (On("put", "*-00001.index"), True),
    "before the .kfs of a source is deleted": (On("delete", "*.kfs"), False),
    "after the .kfs of the sources are deleted": (On("delete", "*.kfs"), True),
    "after their .index are deleted": (On("delete", "*.index"), True),
}


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_crash_at_any_step_leaves_a_log_that_reads_the_same(autojump_clock, point):
    memory, disk = MemoryStore(), MemoryDisk()
    store = FaultyStore(memory)
    on, after_effect = CRASH_POINTS[point]
    gate = store.hold(on, after_effect=after_effect)
    async with merging_log(store, disk) as log:
        await flushed(log, 12)
        await gate.wait_arrived(1)
        disk = disk.crash()
    async with merging_log(memory, disk, leader_epoch=2) as log:
        await check_values(log, count=12)
        merged = point not in ("before the .kfs",)
        assert len(read_from(log)) == (3 if merged else 12)
        await trio.sleep(DELAY_MS / 500)
        await check_values(log, count=12)
        for key in await keys_of(memory):
            if key.generation and key.kind == "kfs":
                assert await read_index(memory, key) == await read_footer(memory, key)
        await flushed(log, 20)
        await trio.sleep(DELAY_MS / 500)
        await check_values(log, count=32)


async def test_a_merged_object_that_arrives_after_a_restart_has_listed_is_covered_by_the_next_generation(
    autojump_clock,
):
    store = MemoryStore()
    async with merging_log(store, segment_merge_bytes=0) as log:
        await flushed(log, 9)
    async with merging_log(store) as log:
        await merge_segments(log, range(9))
        await flushed(log, 9)
        await trio.sleep(1)
        merged = read_from(log)[0]
        assert merged[0] == 0
        assert merged[1] >= 9
        assert merged[2] == 2
        await check_values(log, count=18)
    async with merging_log(store) as log:
        assert read_from(log)[0] == merged
        await check_values(log, count=18)


# ---- what others do meanwhile -------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("log_start", [4, 10, 12])
async def test_segments_deleted_by_retention_during_a_merge_do_not_come_back(autojump_clock, log_start, restarted):
    """Some of the sources, all of them, or all but the last segment of the log."""
    memory, disk = MemoryStore(), MemoryDisk()
    store = FaultyStore(memory)
    gate = store.hold(On("put_if_absent", "*-00001.kfs"))
    async with merging_log(store, disk) as log:
        await flushed(log, 9)
        await flushed(log, 1)
        await gate.wait_arrived(1)
        await flushed(log, 2)
        log.partition().delete_records(log_start)
        log.log.deleter.drop(log.partition().drop_deleted(), 0)
        await trio.sleep(1)
        gate.open()
        await trio.sleep(1)
        left = [(0, 9, 1)] if log_start == 4 else []
        last = [(10, 10, 0), (11, 11, 0)] if log_start < 12 else [(11, 11, 0)]
        assert read_from(log) == left + last
        await check_values(log, first=log_start, count=12)
        if restarted:
            disk = disk.crash()
        else:
            await trio.sleep(DELAY_MS / 1000)
            assert await kfs_of(memory) == [(base, generation) for base, _, generation in read_from(log)]
    topics = [topic_spec(file_delete_delay_ms=DELAY_MS, log_start_offsets={0: log_start})]
    async with merging_log(memory, disk, topics=topics, leader_epoch=2) as log:
        await check_values(log, first=log_start, count=12)
        log.log.deleter.drop(log.partition().drop_deleted(), 0)
        assert read_from(log) == left + last
        await trio.sleep(DELAY_MS / 1000)
        await check_values(log, first=log_start, count=12)


@asynccontextmanager
async def log_whose_topic_is_deleted(store: FaultyStore, during: On) -> AsyncIterator[MemoryLog]:
    """A log whose first merge has come so far when its topic and its objects are deleted, and then goes on."""
    gate = store.hold(during)
    async with merging_log(store) as log:
        await flushed(log, 10)
        await gate.wait_arrived(1)
        log.log.close_topic("t")
        await log.log.delete_objects(BuriedTopic(name="t", topic_id=TOPIC_ID))
        gate.open()
        yield log


async def test_a_topic_that_is_deleted_during_a_merge_leaves_no_object(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with log_whose_topic_is_deleted(store, On("put_if_absent", "*-00001.kfs")) as log:
        await trio.sleep(1)
        assert await keys_of(store) == []
        assert log.log.merger.failed_count.value == 0


async def test_a_topic_that_is_deleted_while_sources_are_read_is_not_merged(autojump_clock, caplog):
    store = FaultyStore(MemoryStore())
    async with log_whose_topic_is_deleted(store, On("get", "*.kfs")):
        await trio.sleep(FAILED_MERGE_PAUSE_SECONDS / 2)
        assert await keys_of(store) == []
        assert store.count("put_if_absent", "*-00001.kfs") == 0
        assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@attrs.define(eq=False)
class Leadership:
    """Who leads, as the claim in the bucket tells."""

    lost: bool = False

    async def check(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.lost:
            raise Fenced("superseded")


async def test_a_broker_that_is_superseded_during_a_merge_leaves_the_sources_to_its_successor(autojump_clock):
    """The successor has listed the bucket before the merged object came, and goes on reading the sources."""
    memory, lead = MemoryStore(), Leadership()
    store = FaultyStore(memory)
    gate = store.hold(On("put_if_absent", "*-00001.kfs"))
    with pytest.RaisesGroup(Fenced, flatten_subgroups=True):
        async with merging_log(store, topics=[topic_spec(file_delete_delay_ms=0)], check_lead=lead.check) as older:
            await flushed(older, 10)
            await gate.wait_arrived(1)
            lead.lost = True
            async with memory_log(memory, MemoryDisk(), leader_epoch=2) as newer:
                gate.open()
                await trio.sleep(1000)
                await check_values(newer, count=10)
    assert (5, 0) in await kfs_of(memory)


async def test_a_broker_that_is_superseded_writes_no_more_merged_segments(autojump_clock):
    store, lead = FaultyStore(MemoryStore()), Leadership()
    with pytest.RaisesGroup(Fenced, flatten_subgroups=True):
        async with merging_log(store, check_lead=lead.check) as log:
            lead.lost = True
            await flushed(log, 10)
            await trio.sleep(1)
    assert store.count("put*", "*-00001.*") == 0


async def test_a_merge_of_sources_compacted_meanwhile_has_no_effect(autojump_clock):
    """Compaction, say. The next merge has what that made; a start finds the one that is newer."""
    store = FaultyStore(MemoryStore())
    gate = store.hold(On("put_if_absent", "*-00001.kfs"))
    async with merging_log(store) as log:
        await flushed(log, 10)
        await gate.wait_arrived(1)
        sources = [each for each in log.partition().manifest.segments if 3 <= each.base_offset <= 5]
        compacted = await merge_segments(log, [3, 4, 5], generation=7)
        log.partition().manifest.replace(sources, compacted)
        gate.open()
        await trio.sleep(1)
        expected = [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 5, 7), (6, 6, 0), (7, 7, 0), (8, 8, 0), (9, 9, 0)]
        assert read_from(log) == expected
        await check_values(log, count=10)
        await flushed(log, 30)
        await trio.sleep(1)
        await check_values(log, count=40)
        assert (3, 5, 7) not in read_from(log)
    async with merging_log(store) as log:
        await check_values(log, count=40)
