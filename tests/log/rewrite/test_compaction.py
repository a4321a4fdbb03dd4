"""Compaction of a log in memory: what consumers see before, meanwhile, afterwards and after a restart."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from typing import Any

import attrs
import pytest
import trio

from kafscale.errors import CorruptBatch, DamagedObject, KafkaError
from kafscale.log.check.verification import Verifier
from kafscale.log.partition.partition import Partition
from kafscale.log.repair.verify_segment import check_segment
from kafscale.log.rewrite.compaction import FAILED_PAUSE_SECONDS, Compactor, first_dirty_offset
from kafscale.log.rewrite.retention import Retention
from kafscale.store.base import ObjectStore
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import compression
from kafscale.wire.batch_header import HEADER_BYTES, BatchHeader, batches, encode_batch, parse_header
from kafscale.wire.error_codes import OUT_OF_ORDER_SEQUENCE_NUMBER
from kafscale.wire.records import ProducerStamp, build_batch, iterate_records
from tests.devtools.fakes.memory_log import NOW_MS, MemoryLog, memory_log, topic_spec
from tests.devtools.fakes.simulated_store import SimulatedStore
from tests.log.keyed_log import append_batch, append_pairs, append_segments, fetched, pair, table_of

HOUR_MS = 3_600_000
COMPACT = {"cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.0}


def compactor(log: MemoryLog, *, now_ms: int = NOW_MS, **changes: Any) -> Compactor:
    settings: dict[str, Any] = {"map_bytes": 1 << 20, "target_bytes": 1 << 20, **changes}
    return Compactor(
        rewriter=log.log.merger.rewriter,
        footers=log.log.reader.footers,
        interval_seconds=15.0,
        now_ms=lambda: now_ms,
        **settings,
    )


async def compact(log: MemoryLog, found: Compactor) -> None:
    await found.compact_all(lambda: list(log.log.partitions.values()))


def header_of(*, sequence: int) -> BatchHeader:
    return parse_header(memoryview(build_batch([pair("a=1")], producer=ProducerStamp(7, 0, sequence))))


async def keys_of(store: ObjectStore) -> list[str]:
    return [info.key async for page in store.list("") for info in page]


async def test_the_latest_record_of_each_key_is_kept_at_its_offset(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        await append_segments(log, ["a=1", "b=1"], ["a=2", "c=1"], ["b=2"])
        await compact(log, compactor(log))
        assert await fetched(log) == {2: "a=2", 3: "c=1", 4: "b=2"}
        assert await fetched(log, max_bytes=1) == {2: "a=2", 3: "c=1", 4: "b=2"}
        assert len(log.partition().manifest.segments) == 1
        assert first_dirty_offset(log.partition()) == 5


async def test_a_compacted_bucket_verifies_as_whole(autojump_clock):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        await append_segments(log, ["a=1", "b=1"], ["a=2", "c=1"], ["b=2"], ["d=1", "a=3"])
        await compact(log, compactor(log))
    verifier = Verifier(store=store, namespace="default")
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    assert verifier.report.segments > 1
    assert verifier.report.is_whole, verifier.report.findings


async def test_records_that_are_not_in_the_bucket_yet_are_left_alone(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        await append_segments(log, ["a=1", "b=1"])
        await append_pairs(log.partition(), "a=2")
        await compact(log, compactor(log))
        assert await fetched(log) == {0: "a=1", 1: "b=1", 2: "a=2"}


async def test_a_topic_that_is_not_compacted_is_left_alone_and_nothing_is_read(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        await append_segments(log, ["a=1"], ["a=2"])
        found = compactor(log)
        await compact(log, found)
        assert await fetched(log) == {0: "a=1", 1: "a=2"}
        assert (found.rounds_count.value, found.read_bytes.value) == (0, 0)


async def test_a_restart_reads_compacted_records_and_the_first_dirty_offset(autojump_clock):
    store, disk = MemoryStore(), MemoryDisk()
    topics = [topic_spec(**COMPACT)]
    async with memory_log(store, disk, topics=topics) as log:
        await append_segments(log, ["a=1", "b=1"], ["a=2", "c=1"], ["b=2"])
        await compact(log, compactor(log))
        disk = disk.crash()
    async with memory_log(store, disk, topics=topics, leader_epoch=2) as log:
        assert len(log.partition().manifest.segments) == 1
        assert await fetched(log) == {2: "a=2", 3: "c=1", 4: "b=2"}
        assert first_dirty_offset(log.partition()) == 5
        again = compactor(log)
        await compact(log, again)
        assert again.read_bytes.value == 0
        await append_segments(log, ["a=3"])
        await compact(log, again)
        assert await fetched(log) == {3: "c=1", 4: "b=2", 5: "a=3"}


async def test_segments_of_one_topic_stay_apart_where_together_they_are_too_large(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        await append_segments(log, *([f"{number}={'x' * 1000}", "all=1"] for number in range(6)))
        await compact(log, compactor(log, target_bytes=2_500))
        assert len(log.partition().manifest.segments) == 3
        seen = await fetched(log, max_bytes=1)
        assert sorted(seen) == [0, 2, 4, 6, 8, 10, 11]
        assert [each.first_dirty_offset for each in log.partition().manifest.segments] == [0, 0, 12]


async def test_a_map_that_is_too_small_takes_several_rounds(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        await append_segments(log, *([f"{number}={round}" for number in range(20)] for round in range(3)))
        found = compactor(log, map_bytes=24 * 10)
        await compact(log, found)
        assert await fetched(log) == {40 + number: f"{number}=2" for number in range(20)}
        assert found.rounds_count.value == 9
        assert first_dirty_offset(log.partition()) == 60


async def test_a_segment_in_which_nothing_changes_is_not_written_again(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        found = compactor(log, target_bytes=100)
        await append_segments(log, ["a=1"], ["b=1"])
        await compact(log, found)
        first = log.partition().manifest.segments[0]
        await append_segments(log, ["c=1"], ["b=2"])
        await compact(log, found)
        assert log.partition().manifest.segments[0] == first
        assert await fetched(log) == {0: "a=1", 2: "c=1", 3: "b=2"}


async def test_a_tombstone_goes_when_its_time_has_come(autojump_clock):
    topics = [topic_spec(**COMPACT, delete_retention_ms=HOUR_MS)]
    async with memory_log(MemoryStore(), MemoryDisk(), topics=topics) as log:
        await append_segments(log, ["a=1", "b=1"], ["a"])
        await compact(log, compactor(log))
        assert await fetched(log) == {1: "b=1", 2: "a"}
        await append_segments(log, ["c=1"])
        await compact(log, compactor(log, now_ms=NOW_MS + HOUR_MS - 1))
        assert await fetched(log) == {1: "b=1", 2: "a", 3: "c=1"}
        await append_segments(log, ["d=1"])
        await compact(log, compactor(log, now_ms=NOW_MS + HOUR_MS))
        assert await fetched(log) == {1: "b=1", 3: "c=1", 4: "d=1"}


# ---- when -----------------------------------------------------------------------------------------------------------


async def test_a_partition_is_compacted_only_above_the_dirty_ratio(autojump_clock):
    topics = [topic_spec(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.5)]
    async with memory_log(MemoryStore(), MemoryDisk(), topics=topics) as log:
        found = compactor(log)
        await append_segments(log, ["a=1", "b=1", "c=1"])
        await compact(log, found)  # all of it is dirty the first time
        assert found.rounds_count.value == 1
        await append_segments(log, ["a=2"])
        await compact(log, found)
        assert found.rounds_count.value == 1
        assert 0 < found.max_dirty_ratio <= 0.5
        await append_segments(log, ["b=2", "c=2"])
        await compact(log, found)
        assert found.rounds_count.value == 2
        assert await fetched(log) == {3: "a=2", 4: "b=2", 5: "c=2"}


async def test_records_younger_than_the_minimum_compaction_lag_and_later_records_stay(autojump_clock):
    topics = [topic_spec(**COMPACT, min_compaction_lag_ms=HOUR_MS)]
    async with memory_log(MemoryStore(), MemoryDisk(), topics=topics) as log:
        partition = log.partition()
        for text, age_ms in (("a=1", 2 * HOUR_MS), ("a=2", HOUR_MS), ("a=3", HOUR_MS - 1), ("a=4", 2 * HOUR_MS)):
            await append_pairs(partition, text, timestamp_ms=NOW_MS - age_ms)
            await log.log.flusher.flush_all()
        await compact(log, compactor(log))
        assert await fetched(log) == {1: "a=2", 2: "a=3", 3: "a=4"}


async def test_timestamps_that_a_restart_has_not_read_are_read_for_the_lag(autojump_clock):
    store, disk = MemoryStore(), MemoryDisk()
    topics = [topic_spec(**COMPACT, min_compaction_lag_ms=HOUR_MS)]
    async with memory_log(store, disk, topics=topics) as log:
        await append_segments(log, ["a=1"], ["a=2"], ["a=3"])
        disk = disk.crash()
    async with memory_log(store, disk, topics=topics, leader_epoch=2) as log:
        await compact(log, compactor(log))
        assert len(await fetched(log)) == 3
        await compact(log, compactor(log, now_ms=NOW_MS + HOUR_MS))
        assert await fetched(log) == {2: "a=3"}


async def test_a_record_older_than_the_greatest_lag_is_compacted_however_little_is_dirty(autojump_clock):
    topics = [topic_spec(cleanup_policy=("compact",), min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=HOUR_MS)]
    async with memory_log(MemoryStore(), MemoryDisk(), topics=topics) as log:
        await append_segments(log, ["a=1"], ["a=2"])
        await compact(log, compactor(log, now_ms=NOW_MS + HOUR_MS))
        assert len(await fetched(log)) == 2
        await compact(log, compactor(log, now_ms=NOW_MS + HOUR_MS + 1))
        assert await fetched(log) == {1: "a=2"}


async def test_the_dirtiest_partition_goes_first(autojump_clock, caplog):
    caplog.set_level(logging.INFO, "kafscale.log.rewrite.compaction")
    topics = [topic_spec(3, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.4)]
    async with memory_log(MemoryStore(), MemoryDisk(), topics=topics) as log:
        found = compactor(log)
        for index in range(3):
            await append_pairs(log.partition(index), *(f"{key}=1" for key in range(10)))
        await log.log.flusher.flush_all()
        await compact(log, found)
        for index, count in enumerate((1, 9, 5)):
            await append_pairs(log.partition(index), *(f"{key}=2" for key in range(count)))
        await log.log.flusher.flush_all()
        caplog.clear()
        await compact(log, found)
        assert [record.args[0].index for record in caplog.records] == [1, 2]


# ---- what survives --------------------------------------------------------------------------------------------------


async def test_a_producers_sequences_survive_compaction_and_a_restart(autojump_clock):
    store, disk = MemoryStore(), MemoryDisk()
    topics = [topic_spec(**COMPACT, producer_id_expiration_ms=1 << 50)]
    async with memory_log(store, disk, topics=topics) as log:
        for sequence in range(3):
            await append_pairs(log.partition(), f"a={sequence}", producer=ProducerStamp(7, 0, sequence))
            await log.log.flusher.flush_all()
        await append_segments(log, ["a=9"])
        await compact(log, compactor(log))
        assert await fetched(log) == {3: "a=9"}
        disk = disk.crash()
    async with memory_log(store, disk, topics=topics, leader_epoch=2) as log:
        check = log.partition().producers.check
        assert check(header_of(sequence=3)) is None
        duplicate = check(header_of(sequence=2))
        assert duplicate is not None
        assert duplicate.base_offset == 2
        with pytest.raises(KafkaError) as refused:
            check(header_of(sequence=5))
        assert refused.value.code == OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_timestamp_search_finds_the_records_left_by_compaction(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        partition, reader = log.partition(), log.log.reader
        for text, timestamp_ms in (("a=1", 10), ("b=1", 20), ("a=2", 30), ("c=1", 25)):
            await append_pairs(partition, text, timestamp_ms=timestamp_ms, producer=ProducerStamp(timestamp_ms, 0, 0))
            await log.log.flusher.flush_all()
        await append_pairs(partition, "c=2", timestamp_ms=5)
        await log.log.flusher.flush_all()
        await compact(log, compactor(log))
        assert await fetched(log) == {1: "b=1", 2: "a=2", 4: "c=2"}
        found = [await reader.find_timestamp(partition, ms) for ms in (0, 5, 20, 21, 30, 31)]
        assert [None if each is None else each.offset for each in found] == [1, 1, 1, 2, 2, None]
        latest = await reader.find_max_timestamp(partition)
        assert latest is not None
        assert (latest.offset, latest.timestamp_ms) == (2, 30)


@pytest.mark.parametrize("codec", sorted(compression.NAMES))
async def test_compacted_batches_keep_their_codec_and_the_bucket_verifies(codec, autojump_clock):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        partition = log.partition()
        for round in range(3):
            texts = [f"{key}={'x' * 50}{round}" for key in range(round, 20)]
            await append_pairs(partition, *texts, codec=codec)
            await log.log.flusher.flush_all()
        await append_segments(log, ["19"])
        await compact(log, compactor(log))
        assert sorted(await fetched(log)) == [0, 20, *range(39, 56), 57]
        for segment in partition.manifest.segments:
            checked = await check_segment(store, segment.key)
            assert checked.findings == []
        slices = await log.log.reader.read(partition, 0, 1 << 30)
        codecs = [parse_header(batch).codec for batch in batches(memoryview(slices.buffers[0]))]
        assert codecs == [codec, codec, codec, 0]


# ---- what comes between ---------------------------------------------------------------------------------------------


async def test_a_fetch_that_reads_while_segments_are_exchanged_sees_the_same_table(autojump_clock):
    store = SimulatedStore(MemoryStore())
    topics = [topic_spec(**COMPACT, file_delete_delay_ms=60_000)]
    async with memory_log(store, MemoryDisk(), topics=topics) as log:
        expected: dict[str, str] = {}
        for round in range(6):
            for key in range(5):
                await append_pairs(log.partition(), f"{key}={round}.{key}")
                expected[str(key)] = f"{round}.{key}"
            await log.log.flusher.flush_all()
        seen: list[dict[int, str]] = []

        async def consume() -> None:
            for _ in range(10):
                seen.append(await fetched(log, max_bytes=1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.log.deleter.run)
            nursery.start_soon(compact, log, compactor(log, target_bytes=500))
            async with trio.open_nursery() as consumers:
                for _ in range(3):
                    consumers.start_soon(consume)
            nursery.cancel_scope.cancel()
        for records in seen:
            assert table_of(records) == expected
        assert len(seen[0]) > len(seen[-1]) == 5


async def test_sources_leave_the_bucket_after_the_delay(autojump_clock):
    topics = [topic_spec(**COMPACT, file_delete_delay_ms=60_000)]
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), topics=topics) as log, trio.open_nursery() as nursery:
        nursery.start_soon(log.log.deleter.run)
        await append_segments(log, ["a=1"], ["a=2"])
        await compact(log, compactor(log))
        await trio.sleep(59)
        assert len(await keys_of(store)) == 6
        await trio.sleep(2)
        assert sorted(await keys_of(store)) == sorted(
            key for each in log.partition().manifest.segments for key in (each.kfs_key, each.index_key)
        )
        nursery.cancel_scope.cancel()


async def test_a_topic_that_is_deleted_meanwhile_ends_its_compaction(autojump_clock):
    store = SimulatedStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        await append_segments(log, ["a=1"], ["a=2"])
        found = compactor(log)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact, log, found)
            await trio.sleep(1.5 * store.latency_seconds)
            log.log.close_topic("t")
        assert (found.rounds_count.value, found.failed_count.value) == (0, 0)


async def test_a_damaged_batch_is_reported_once_and_its_partition_left_alone(autojump_clock, caplog):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(2, **COMPACT)]) as log:
        await append_segments(log, ["a=1", "b=1"], ["a=2"])
        key = log.partition().manifest.segments[0].kfs_key
        damaged = bytearray((await store.get(key)).data)
        damaged[100] ^= 1
        await store.put(key, [damaged])
        await append_pairs(log.partition(1), "a=1")
        await append_pairs(log.partition(1), "a=2")
        await log.log.flusher.flush_all()
        found = compactor(log)
        await compact(log, found)
        assert found.failed_count.value == 1
        assert "t-0" in caplog.text
        assert len(log.partition().manifest.segments) == 2
        assert found.rounds_count.value == 1  # the other partition
        await compact(log, found)
        for _ in range(3):  # once more, as it might have come damaged only
            await trio.sleep(FAILED_PAUSE_SECONDS)
            await compact(log, found)
        assert found.failed_count.value == 2
        assert caplog.text.count("t-0 is not compacted any more") == 1


async def test_one_damaged_read_does_not_stop_compaction(autojump_clock):
    """One reply that ended early, and the partition was not compacted any more until the next start."""
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        await append_segments(log, ["a=1"], ["a=2"])
        log.log.reader.footers.forget(log.partition().manifest.segments[0])
        store.truncate(On("get_tail", times=1))
        found = compactor(log)
        await compact(log, found)
        assert (found.rounds_count.value, found.failed_count.value) == (0, 1)
        await trio.sleep(FAILED_PAUSE_SECONDS)
        await compact(log, found)
        assert (found.rounds_count.value, found.failed_count.value) == (1, 1)
        assert await fetched(log) == {1: "a=2"}


async def test_a_claim_that_comes_damaged_does_not_stop_compaction(autojump_clock):
    """It was taken for damage of the partition's."""
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        await append_segments(log, ["a=1"], ["a=2"])
        found = compactor(log)

        async def nobody_knows() -> None:
            raise DamagedObject("the claim is damaged")

        check_lead, found.rewriter.check_lead = found.rewriter.check_lead, nobody_knows
        for failed_count in (1, 2, 3):
            await compact(log, found)
            assert found.failed_count.value == failed_count
            await trio.sleep(FAILED_PAUSE_SECONDS)
        found.rewriter.check_lead = check_lead
        await compact(log, found)
        assert found.rounds_count.value == 1


def unreadable_batch(codec: int) -> memoryview:
    """One record whose key is longer than itself, in a batch with a correct CRC: versions that did not look took it."""
    good = build_batch([pair("a=1")])
    body = bytearray(good[HEADER_BYTES:])
    body[4] = 100  # the length of its key, doubled
    header = attrs.evolve(parse_header(memoryview(good)), attributes=codec)
    return memoryview(encode_batch(header, compression.compress(codec, body) if codec else body))


@pytest.mark.parametrize("codec", [compression.NONE, compression.LZ4])
async def test_records_that_were_stored_with_wrong_lengths_do_not_stop_compaction(codec, autojump_clock, caplog):
    """It stopped for good, and the partition grew without end. Nor is what a client has sent like that damage."""
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        await append_segments(log, ["a=1", "b=1"])
        batch = unreadable_batch(codec)
        with pytest.raises(CorruptBatch):
            list(iterate_records(batch))
        await append_batch(log.partition(), batch)
        await append_segments(log, ["a=2"], ["b=2"])
        found = compactor(log)
        await compact(log, found)
        assert (found.failed_count.value, found.rounds_count.value) == (0, 1)
        assert found.unreadable_count.value == 1
        assert first_dirty_offset(log.partition()) == 5
        slices = await log.log.reader.read(log.partition(), 0, 1 << 20)
        stored = {parse_header(each).base_offset: each for each in batches(memoryview(b"".join(slices.buffers)))}
        assert sorted(stored) == [2, 3, 4]
        assert stored[2][16:] == batch[16:], "it is not as its client sent it"
        slices.release()
        await append_segments(log, ["a=3"], ["c=1"])
        await compact(log, found)
        assert (found.failed_count.value, found.rounds_count.value) == (0, 2)
        assert caplog.text.count("as their clients sent them") == 1
        assert "offset 2" in caplog.text
    verifier = Verifier(store=store, namespace="default")
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    assert verifier.report.is_whole, verifier.report.findings


@pytest.mark.parametrize("operation", ["put_if_absent", "put", "get_range"])
async def test_a_compaction_that_fails_on_a_store_error_changes_nothing_and_is_retried(
    operation, autojump_clock, caplog
):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        await append_segments(log, ["a=1"], ["a=2"])
        found = compactor(log)
        store.fail(On(operation))
        await compact(log, found)
        store.heal()
        assert found.failed_count.value == 1
        assert await fetched(log) == {0: "a=1", 1: "a=2"}
        await trio.sleep(FAILED_PAUSE_SECONDS)
        await compact(log, found)
        assert await fetched(log) == {1: "a=2"}


@pytest.mark.parametrize("effect", ["before", "after"])
async def test_a_kill_at_every_operation_leaves_the_table_and_brings_nothing_back(effect, autojump_clock):
    """From some operation on none is done any more, or one more is whose reply is lost; then comes a restart."""
    topics = [topic_spec(**COMPACT, delete_retention_ms=0)]
    for done_count in count():
        store, disk = FaultyStore(MemoryStore()), MemoryDisk()
        async with memory_log(store, disk, topics=topics) as log:
            await append_segments(log, ["a=1", "b=1"], ["a", "c=1"], ["b=2", "d=1"], ["c"])
            await compact(log, compactor(log, target_bytes=300))
            await append_segments(log, ["e=1"], ["d"], ["e=2"])
            rules = [store.lose_reply(On(skip=done_count, times=1))] if effect == "after" else []
            rules.append(store.fail(On(skip=done_count + len(rules))))
            await compact(log, compactor(log, target_bytes=300, now_ms=NOW_MS + 1))
            store.heal()
            assert table_of(await fetched(log)) == {"b": "2", "e": "2"}
            disk = disk.crash()
        async with memory_log(store, disk, topics=topics, leader_epoch=2) as log:
            assert table_of(await fetched(log)) == {"b": "2", "e": "2"}
            for round in range(3):
                await append_segments(log, [f"f={round}"])
                await compact(log, compactor(log, target_bytes=300, now_ms=NOW_MS + 2 + round))
            assert set((await fetched(log)).values()) == {"b=2", "e=2", "f=2"}
        if not any(rule.met_count for rule in rules):
            break
    assert done_count > 10


async def test_a_segment_left_by_a_failed_compaction_does_not_restore_deleted_keys(autojump_clock):
    store, disk = FaultyStore(MemoryStore()), MemoryDisk()
    topics = [topic_spec(**COMPACT, delete_retention_ms=0)]
    async with memory_log(store, disk, topics=topics) as log:
        await append_segments(log, ["a=1"], ["b=1"], ["c=1"], ["d=1"])
        found = compactor(log)
        store.lose_reply(On("put_if_absent", "*.kfs", times=1))
        await compact(log, found)  # all four are in the bucket as one segment, and nobody knows
        found.target_bytes = 100
        for text in ("d", "e=1", "f=1"):
            await trio.sleep(FAILED_PAUSE_SECONDS)
            await append_segments(log, [text])
            await compact(log, found)
        expected = {0: "a=1", 1: "b=1", 2: "c=1", 5: "e=1", 6: "f=1"}
        assert await fetched(log) == expected
        disk = disk.crash()
    async with memory_log(store, disk, topics=topics, leader_epoch=2) as log:
        assert await fetched(log) == expected


async def test_a_merged_segment_is_compacted_and_a_compacted_one_merged(autojump_clock):
    topics = [topic_spec(**COMPACT)]
    async with memory_log(MemoryStore(), MemoryDisk(), topics=topics, segment_merge_bytes=10_000) as log:
        found = compactor(log, target_bytes=300)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.log.merger.run, [log.partition()])
            for round in range(4):
                await append_segments(log, *([f"{key}={round}"] for key in range(15)))
                await trio.sleep(1)
                await compact(log, found)
                await trio.sleep(1)
                assert await fetched(log) == {15 * round + key: f"{key}={round}" for key in range(15)}
                assert first_dirty_offset(log.partition()) == 15 * (round + 1)
            nursery.cancel_scope.cancel()
        assert log.log.merger.merges_count.value > 0
        assert found.rounds_count.value == 4


async def test_segments_made_small_by_compaction_are_merged(autojump_clock):
    """The merger used to remember that it had been too large, and not to look again before the next start."""
    topics = [topic_spec(**COMPACT)]
    async with memory_log(MemoryStore(), MemoryDisk(), topics=topics, segment_merge_bytes=1_000) as log:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.log.merger.run, [log.partition()])
            await append_segments(log, *([f"key={number:600}"] for number in range(8)))
            await trio.sleep(1)
            assert log.log.merger.merges_count.value == 0
            await compact(log, compactor(log, target_bytes=1))
            assert len(log.partition().manifest.segments) == 8
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert log.log.merger.merges_count.value == 1
        assert len(log.partition().manifest.segments) == 2
        assert await fetched(log) == {7: f"key={7:600}"}


async def test_retention_deletes_nothing_if_the_cleanup_policy_is_only_compact(autojump_clock):
    for policy, left in ((("compact",), ["a=1", "b=1", "c=2"]), (("compact", "delete"), [])):
        topics = [topic_spec(**{**COMPACT, "cleanup_policy": policy}, retention_ms=1, retention_bytes=0)]
        async with memory_log(MemoryStore(), MemoryDisk(), topics=topics) as log:
            await append_segments(log, ["a=1", "c=1"], ["b=1"], ["c=2"])
            await compact(log, compactor(log))
            await retention(log).enforce()
            assert list((await fetched(log)).values()) == left


async def test_segments_that_retention_takes_meanwhile_do_not_come_back(autojump_clock):
    store = SimulatedStore(MemoryStore())
    topics = [topic_spec(**{**COMPACT, "cleanup_policy": ("compact", "delete")}, retention_ms=-1, retention_bytes=140)]
    async with memory_log(store, MemoryDisk(), topics=topics) as log:
        await append_segments(log, ["a=1"], ["b=1"], ["c=1"], ["d=1"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact, log, compactor(log))
            await trio.sleep(3.5 * store.latency_seconds)
            await retention(log).enforce()
        assert log.partition().log_start_offset == 2
        assert list((await fetched(log)).values()) == ["c=1", "d=1"]


@pytest.mark.parametrize("gets", [1.5, 4.5, 5.5])
async def test_objects_that_retention_has_deleted_meanwhile_are_not_missed(gets, autojump_clock, nursery):
    """It used to be taken for a failure of the store."""
    store = SimulatedStore(MemoryStore())
    topics = [
        topic_spec(
            **{**COMPACT, "cleanup_policy": ("compact", "delete")},
            retention_ms=-1,
            retention_bytes=140,
            file_delete_delay_ms=0,
        )
    ]
    async with memory_log(store, MemoryDisk(), topics=topics) as log:
        nursery.start_soon(log.log.deleter.run)
        await append_segments(log, ["a=1"], ["b=1"], ["c=1"], ["d=1"])
        found = compactor(log, target_bytes=1)
        async with trio.open_nursery() as compacting:
            compacting.start_soon(compact, log, found)
            await trio.sleep(gets * store.latency_seconds)
            await retention(log).enforce()
        assert (found.failed_count.value, log.partition().log_start_offset) == (0, 2)
        assert list((await fetched(log)).values()) == ["c=1", "d=1"]


async def test_a_partition_left_without_segments_by_quarantine_is_not_compacted(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**COMPACT)]) as log:
        await append_segments(log, ["a=1"])

        def partitions() -> Iterator[Partition]:
            yield log.partition()
            for segment in tuple(log.partition().manifest.segments):  # when it has been looked at
                log.partition().quarantine(segment)

        await compactor(log).compact_all(partitions)
        assert not log.partition().manifest.segments


def retention(log: MemoryLog) -> Retention:
    async def set_log_start_offset(topic_id: bytes, partition: int, offset: int) -> None:
        pass

    return Retention(
        store=log.store,
        deleter=log.log.deleter,
        examiner=log.log.reader.examiner,
        partitions=lambda: list(log.log.partitions.values()),
        set_log_start_offset=set_log_start_offset,
        interval_seconds=1.0,
    )
