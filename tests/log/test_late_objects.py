"""Two brokers on one bucket, of which the older one goes on after the other has taken over: what it writes is late."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from kafscale.config import Durability
from kafscale.formats.footer_reading import read_footer
from kafscale.log.bucket.deletion import OrphanCollector
from kafscale.log.check.verification import Verifier
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey, parse_segment_key
from kafscale.testing.disk import MemoryDisk
from kafscale.wire.records import ProducerStamp
from tests.devtools.fakes.memory_log import NOW_MS, TOPIC, TOPIC_ID, MemoryLog, memory_log, merge
from tests.devtools.history.bucket import read_bucket

SHARED = [b"a0", b"a1", b"a2"]
OLDER = [b"a3", b"a4"]
NEWER = [b"b3", b"b4", b"b5"]


def key_at(base_offset: int, epoch: int, generation: int = 0) -> SegmentKey:
    return SegmentKey(
        topic=TOPIC, topic_id=TOPIC_ID, partition=0, base_offset=base_offset, epoch=epoch, generation=generation
    )


@asynccontextmanager
async def two_brokers(
    store: MemoryStore, *, older_disk: MemoryDisk | None = None, newer_disk: MemoryDisk | None = None
) -> AsyncIterator[tuple[MemoryLog, MemoryLog]]:
    """An older broker, with what both know in the bucket and its own in its log; and one that has taken over."""
    async with memory_log(store, older_disk or MemoryDisk(), leader_epoch=1) as older:
        await append_and_flush(older, SHARED)
        await append(older, OLDER)
        async with memory_log(store, newer_disk or MemoryDisk(), leader_epoch=2) as newer:
            yield older, newer


async def append(log: MemoryLog, values: list[bytes]) -> None:
    for value in values:
        await log.append(log.partition(), value)


async def flush(log: MemoryLog) -> None:
    await log.log.flusher.flush_all()


async def append_and_flush(log: MemoryLog, values: list[bytes]) -> None:
    await append(log, values)
    await flush(log)


async def assert_read(store: MemoryStore, values: list[bytes], *, late_count: int, epoch: int = 3) -> None:
    """By a reader without a broker, and by the next broker, which has no disk of before."""
    assert await read_without_a_broker(store) == values
    async with memory_log(store, MemoryDisk(), leader_epoch=epoch) as log:
        assert await log.values(log.partition()) == values
        assert log.log.late_count() == late_count
        assert log.partition().next_offset == len(values)


async def keys_of(store) -> list[tuple[int, int, int]]:
    """Base offset, epoch and generation of every `.kfs`."""
    keys = [parse_segment_key(info.key) async for page in store.list("default/") for info in page]
    return [(key.base_offset, key.epoch, key.generation) for key in keys if key.kind == "kfs"]


async def read_without_a_broker(store) -> list[bytes]:
    return [read.value.encode() for read in (await read_bucket(store, "default"))["t-0"].reads]


async def settled(store, newest: MemoryLog) -> list[bytes]:
    found, known = (await read_bucket(store, "default"))["t-0"], newest.partition()
    reads = found.settled(high_watermark=known.high_watermark, leader_epoch=known.leader_epoch)
    return [read.value.encode() for read in reads]


async def verified(store) -> list[tuple[str, str, bool]]:
    verifier = Verifier(store=store, namespace="default")
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    return [(finding.name, str(finding.kind), finding.damage) for finding in verifier.report.findings]


@pytest.mark.parametrize("restart", ["with its disk", "without"])
@pytest.mark.parametrize("order", ["older first", "newer first", "newer in its log only"])
async def test_a_late_flush_of_a_superseded_broker_does_not_replace_acknowledged_records(
    autojump_clock, caplog, order, restart
):
    store, newer_disk = MemoryStore(), MemoryDisk()
    async with two_brokers(store, newer_disk=newer_disk) as (older, newer):
        await append(newer, NEWER)
        if order == "newer first":
            await flush(newer)
        await flush(older)
        if order == "older first":
            await flush(newer)
        assert await newer.values(newer.partition()) == [*SHARED, *NEWER]
        newer_disk = newer_disk.crash()
    in_bucket = order != "newer in its log only"
    if in_bucket:
        assert await read_without_a_broker(store) == [*SHARED, *NEWER]
        assert await verified(store) == [(key_at(3, 1).key, "late", False)]
    if restart == "without":
        newer_disk = MemoryDisk()
    kept = in_bucket or restart == "with its disk"
    caplog.clear()
    async with memory_log(store, newer_disk, leader_epoch=3) as log:
        expected = [*SHARED, *(NEWER if kept else OLDER)]  # what was in a log that is lost can't win
        assert await log.values(log.partition()) == expected
        assert log.log.late_count() == kept
        assert caplog.text.count(key_at(3, 1).key) == kept
        assert await log.append(log.partition(), b"next") == len(expected)
        await flush(log)
        assert await log.values(log.partition()) == [*expected, b"next"]
        assert log.log.journal.pending_count == 0
    assert await read_without_a_broker(store) == [*expected, b"next"]
    assert (3, 1, 0) in await keys_of(store)


async def test_a_late_segment_at_the_end_is_unsettled_until_the_successor_flushes(autojump_clock):
    """The simulation took it for the log, as readers of the bucket alone do until the successor's segment is there."""
    store = MemoryStore()
    async with two_brokers(store) as (older, newer):
        await flush(older)
        assert await read_without_a_broker(store) == [*SHARED, *OLDER]
        assert await settled(store, newer) == SHARED
        await append_and_flush(newer, NEWER)
        assert await read_without_a_broker(store) == [*SHARED, *NEWER]
        assert await settled(store, newer) == [*SHARED, *NEWER]


async def test_a_superseded_brokers_late_records_are_not_read_after_a_restart(autojump_clock):
    store, older_disk = MemoryStore(), MemoryDisk()
    async with two_brokers(store, older_disk=older_disk) as (older, newer):
        await append_and_flush(newer, NEWER)
        await flush(older)
        older_disk = older_disk.crash()
    async with memory_log(store, older_disk, leader_epoch=3) as log:
        assert await log.values(log.partition()) == [*SHARED, *NEWER]
        assert log.log.late_count() == 1


async def test_producer_states_and_epochs_ignore_late_segments(autojump_clock):
    """The producer's b3 to b5 are known, and its a3 and a4 are not, though a start has found these first."""
    store, newer_disk = MemoryStore(), MemoryDisk()
    async with memory_log(store, MemoryDisk(), leader_epoch=1) as older:
        await older.append(older.partition(), b"a0", producer=ProducerStamp(7, 0, 0), now_ms=2 * NOW_MS)
        await flush(older)
        await older.append(older.partition(), b"a1", b"a2", producer=ProducerStamp(7, 0, 1), now_ms=2 * NOW_MS)
        async with memory_log(store, newer_disk, leader_epoch=2) as newer:
            await newer.append(newer.partition(), b"b1", producer=ProducerStamp(8, 0, 0))
            await flush(older)
            newer_disk = newer_disk.crash()
    async with memory_log(store, newer_disk, leader_epoch=3) as log:
        partition = log.partition()
        assert [(start.epoch, start.start_offset) for start in partition.epochs] == [(1, 0), (2, 1)]
        assert {each: state.batches[-1].last_sequence for each, state in partition.producers.producers.items()} == {
            7: 0,
            8: 0,
        }
        assert partition.next_offset == 2


async def test_several_late_segments_are_ignored_even_past_the_end_of_the_log(autojump_clock):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), leader_epoch=1) as older:
        await append_and_flush(older, SHARED)
        async with memory_log(store, MemoryDisk(), leader_epoch=2) as newer:
            await append_and_flush(newer, NEWER)
            for count in (2, 9, 1):  # 3..4, 5..13 and 14
                await append_and_flush(older, [b"late"] * count)
            assert await read_without_a_broker(store) == [*SHARED, *NEWER]
            await append_and_flush(newer, [b"b6"])
    await assert_read(store, [*SHARED, *NEWER, b"b6"], late_count=3)


@pytest.mark.parametrize("merges", ["older", "newer", "both"])
async def test_merges_of_either_broker_change_nothing(autojump_clock, merges):
    """The older one merges what it took for the log; the newer one the first segment with its own."""
    store = MemoryStore()
    async with two_brokers(store) as (older, newer):
        await append_and_flush(newer, NEWER)
        await flush(older)
        for log in (older, newer):
            if merges in ("both", "older" if log is older else "newer"):
                await merge(log)
    assert await read_without_a_broker(store) == [*SHARED, *NEWER]
    async with memory_log(store, MemoryDisk(), leader_epoch=3) as log:
        assert await log.values(log.partition()) == [*SHARED, *NEWER]
        await merge(log)
        assert await log.values(log.partition()) == [*SHARED, *NEWER]
    assert await read_without_a_broker(store) == [*SHARED, *NEWER]


async def test_orphan_collection_keeps_a_late_segment_and_logs_its_key_once(autojump_clock, caplog):
    def clock_ms() -> int:
        return NOW_MS + round(trio.current_time() * 1000)

    async def on_gone(topic_ids) -> None:
        await trio.lowlevel.checkpoint()

    caplog.set_level(logging.ERROR)
    store = MemoryStore(clock_ms=clock_ms)
    async with two_brokers(store) as (older, newer):
        await append_and_flush(newer, NEWER)
        await flush(older)
        collector = OrphanCollector(
            store=store,
            namespace="default",
            find_partition=newer.log.partition,
            deleted_topics=frozenset,
            on_gone=on_gone,
            interval_seconds=3600,
            grace_seconds=100,
            now_ms=clock_ms,
        )
        for _ in range(3):
            await collector.collect()
            await trio.sleep(101)
        assert await keys_of(store) == [(0, 1, 0), (3, 1, 0), (3, 2, 0)]
        assert newer.log.late_count() == 1
        assert caplog.text.count(key_at(3, 1).key) == 1
        newer.partition().delete_records(6)  # retention takes it with the others
        await collector.collect()
        assert (3, 1, 0) not in await keys_of(store)
        assert newer.log.late_count() == 0


async def test_a_segment_flushed_by_both_brokers_under_s3_wal_is_an_orphan_and_not_late(autojump_clock):
    """In `s3-wal` the newer broker has replayed what the older one flushes."""
    store, wal = MemoryStore(), Durability.S3_WAL
    async with memory_log(store, MemoryDisk(), leader_epoch=1, durability=wal) as older:
        await append(older, [*SHARED, *OLDER])
        async with memory_log(store, MemoryDisk(), leader_epoch=2, durability=wal) as newer:
            await append_and_flush(newer, [b"b5"])
        await flush_nothing_else(older)
    assert await keys_of(store) == [(0, 1, 0), (0, 2, 0)]
    assert await read_without_a_broker(store) == [*SHARED, *OLDER, b"b5"]
    assert [kind for _, kind, _ in await verified(store)] == ["superseded"]
    async with memory_log(store, MemoryDisk(), leader_epoch=3, durability=wal) as log:
        assert await log.values(log.partition()) == [*SHARED, *OLDER, b"b5"]
        assert log.log.late_count() == 0
        assert [each.key.epoch for each in log.partition().manifest.segments] == [2]


async def flush_nothing_else(log: MemoryLog) -> None:
    plan = log.partition().prepare_flush()
    assert plan is not None
    await log.log.flusher.uploader.flush(log.partition(), plan)
    assert (await read_footer(log.store, key_at(0, 1))).last_offset == 4


async def test_the_third_broker_ignores_records_the_second_writes_late(autojump_clock):
    """The second was suspended before it wrote anything; so the third found what the first had written meanwhile."""
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), leader_epoch=1) as first:
        await append_and_flush(first, SHARED)
        async with memory_log(store, MemoryDisk(), leader_epoch=2) as second:
            await append_and_flush(first, OLDER)
            async with memory_log(store, MemoryDisk(), leader_epoch=3) as third:
                await append_and_flush(third, [b"c5"])
                await append_and_flush(second, [b"b3"])
    await assert_read(store, [*SHARED, *OLDER, b"c5"], late_count=1, epoch=4)
