"""One partition leaves the log and comes back: everything of it is in the bucket, and the others do not notice."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from kafscale.config import Durability
from kafscale.errors import KafkaError, StoreUnavailable
from kafscale.formats.manifest import Manifest
from kafscale.formats.segment import EpochStart
from kafscale.log.hand_over import (
    TOLD_SEGMENTS_MAX_COUNT,
    Acquisition,
    acquire_partition,
    contents_of,
    known_from,
    release_partition,
)
from kafscale.log.partition.partition import FetchWaiter
from kafscale.log.rewrite.merger import merged_footer, read_source
from kafscale.log.rewrite.retention import Retention
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import parse_segment_key, version_1_topic_id
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.error_codes import NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION
from kafscale.wire.records import ProducerStamp
from tests.devtools.fakes.memory_log import TOPIC, TOPIC_ID, MemoryLog, memory_log, topic_spec
from tests.devtools.fakes.segment_objects import make_batches, version_1_key, version_1_objects

TWO = topic_spec(2)
LATER = attrs.evolve(TWO, leader_epochs={0: 5, 1: 5})
EVERY_MODE = pytest.mark.parametrize("durability", list(Durability))
STAMPS = {"timestamps_ms": [1], "now_ms": 1 << 45}  # producers are not forgotten for their age
NEVER_SECONDS = 1e9


async def release(log: MemoryLog, index: int = 0) -> None:
    await release_partition(log.log, log.partition(index))


def segment_epochs(log: MemoryLog, index: int = 0) -> list[int]:
    return [segment.key.epoch for segment in log.partition(index).manifest.segments]


@EVERY_MODE
async def test_a_released_partition_is_complete_when_acquired_again(autojump_clock, durability):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[TWO], durability=durability) as log:
        for number in range(5):
            await log.append(log.partition(), b"%d" % number, producer=ProducerStamp(7, 0, number), **STAMPS)
        before = log.partition()
        _, round = log.append_nowait(before, b"5", producer=ProducerStamp(7, 0, 5), **STAMPS)
        await release(log)
        assert round.done
        assert before.closed
        assert log.log.partition_named(TOPIC, 0) is None
        assert log.log.partition(TOPIC_ID, 0) is None
        partition = await acquire_partition(log.log, LATER, 0)
        assert log.partition() is partition is log.log.partition(TOPIC_ID, 0)
        assert (partition.next_offset, partition.high_watermark, partition.flushed_offset) == (6, 6, 6)
        assert await log.values(partition) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert partition.producers.producers[7].batches[-1].last_sequence == 5
        assert await log.append(partition, b"6", producer=ProducerStamp(7, 0, 6), **STAMPS) == 6
        assert await log.values(partition, 5) == [b"5", b"6"]


@EVERY_MODE
async def test_a_manifest_passed_at_hand_over_is_not_read_from_the_store(autojump_clock, durability):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[TWO], durability=durability) as log:
        before = log.partition()
        for number in range(4):
            await log.append(before, b"%d" % number, producer=ProducerStamp(7, 0, number), **STAMPS)
            await log.log.flusher.flush_all()
        await release(log)
        known = known_from(await contents_of(before), before.partition_id, 4)
        assert known is not None
        outage = store.fail(On())
        partition = await acquire_partition(log.log, LATER, 0, Acquisition(known=known))
        store.end(outage)
        assert partition.manifest.segments == before.manifest.segments
        assert len(partition.manifest.segments) == 4
        assert (partition.next_offset, partition.high_watermark, partition.flushed_offset) == (4, 4, 4)
        assert partition.epochs == before.epochs
        assert partition.producers.producers[7].batches[-1].last_sequence == 3
        assert await log.append(partition, b"4", producer=ProducerStamp(7, 0, 4), **STAMPS) == 4
        assert await log.values(partition) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_passed_manifest_is_used_only_for_its_partition_and_end_offset(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[TWO]) as log:
        partition = log.partition()
        await log.append(partition, b"a")
        await release(log)
        contents = await contents_of(partition)
        partition_id = partition.partition_id
        assert known_from(contents, partition_id, 1) is not None
        assert known_from(contents, partition_id, 2) is None
        assert known_from(contents, (TOPIC_ID, 1), 1) is None
        assert known_from(contents[:-1], partition_id, 1) is None
        assert known_from(b"", partition_id, 0) is None


async def test_an_empty_large_damaged_or_late_partition_passes_no_manifest(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[TWO]) as log:
        assert await contents_of(log.partition(1)) == b""
        partition = log.partition()
        await log.append(partition, b"a")
        await log.log.flusher.flush_all()
        (segment,) = partition.manifest.segments
        assert await contents_of(partition) != b""
        for known in (partition.quarantined, partition.missing):
            known[segment.key] = 0
            assert await contents_of(partition) == b""
            known.clear()
        partition.late.add(segment.key)
        assert await contents_of(partition) == b""
        partition.late.clear()
        partition.manifest = Manifest([segment] * (TOLD_SEGMENTS_MAX_COUNT + 1))
        assert await contents_of(partition) == b""


@EVERY_MODE
async def test_records_of_a_later_leader_epoch_keep_their_epoch_in_bucket_and_wal(autojump_clock, durability):
    disk, store = MemoryDisk(), MemoryStore()
    async with memory_log(store, disk, topics=[TWO], durability=durability) as log:
        await log.append(log.partition(), b"a")
        await release(log)
        partition = await acquire_partition(log.log, LATER, 0)
        assert partition.leader_epoch == 5
        await log.append(partition, b"b")
        await log.log.flusher.flush_all()
        assert segment_epochs(log) == [1, 5]
        await log.append(partition, b"c")
        await log.append(log.partition(1), b"other")
        assert [(each.epoch, each.start_offset) for each in partition.epochs] == [(1, 0), (5, 1)]
        assert [record.offset for record in await log.read(partition, 0)] == [0]
        assert partition.epoch_end(1).end_offset == 1
        disk = disk.crash()
    async with memory_log(store, disk, topics=[TWO], leader_epoch=6, durability=durability) as log:
        assert await log.values(log.partition()) == [b"a", b"b", b"c"]
        assert [(each.epoch, each.start_offset) for each in log.partition().epochs] == [(1, 0), (5, 1)]
        assert await log.values(log.partition(1)) == [b"other"]


@EVERY_MODE
async def test_the_others_of_its_topic_stay_as_they_are(autojump_clock, durability):
    settings = {"durability": durability, "flush_interval_seconds": NEVER_SECONDS}
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[TWO], **settings) as log:
        other = log.partition(1)
        await log.append(other, b"before")
        await log.append(log.partition(), b"x")
        await release(log)
        assert log.partition(1) is other
        assert not other.closed
        assert other.flushed_offset == (1 if durability is Durability.SEGMENT else 0)
        await log.append(other, b"after")
        log.log.open_topic(TWO)  # as any change of its configs does
        assert log.log.partition_named(TOPIC, 0) is None, "opened empty, where the bucket has records of it"
        assert await log.values(other) == [b"before", b"after"]


@EVERY_MODE
async def test_the_wal_keeps_no_entry_of_a_released_partition(autojump_clock, durability):
    disk, store = MemoryDisk(), MemoryStore()
    settings = {"durability": durability, "flush_interval_seconds": NEVER_SECONDS}
    async with memory_log(store, disk, topics=[TWO], **settings) as log:
        await log.append(log.partition(), b"a", b"b")
        await release(log)
        assert log.log.journal.pending_count == 0
        assert log.log.pool.used_bytes == 0
    async with memory_log(store, MemoryDisk(), topics=[TWO], leader_epoch=2, durability=Durability.WAL) as log:
        assert await log.values(log.partition()) == [b"a", b"b"]


async def test_open_topic_opens_only_the_partitions_that_the_broker_leads(autojump_clock):
    some = attrs.evolve(topic_spec(3), leader_epochs={1: 4})
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(name="o", topic_id=b"o" * 16)]) as log:
        log.log.open_topic(some)
        assert [log.log.partition_named(TOPIC, index) is None for index in range(3)] == [True, False, True]
        assert log.partition(1).leader_epoch == 4
        log.log.open_topic(attrs.evolve(some, partition_count=5, leader_epochs={0: 9, 1: 9, 3: 9}))
        assert [log.log.partition_named(TOPIC, index) is None for index in range(5)] == [True, False, True, False, True]
        assert log.partition(1).leader_epoch == 4, "an epoch is given when a partition is opened"
        assert [each.index for each in log.log.close_topic(TOPIC)] == [1, 3]
        assert log.log.partition_named(TOPIC, 1) is None


async def test_produces_and_fetches_that_come_during_the_last_flush_find_no_leader(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), flush_interval_seconds=NEVER_SECONDS) as log, trio.open_nursery() as all:
        partition = log.partition()
        await log.append(partition, b"a")
        waiting = FetchWaiter(1 << 20)
        partition.waiters.add(waiting)
        first = store.hold(On("put_if_absent", "*.kfs", times=1))
        last = store.hold(On("put_if_absent", "*.kfs", skip=1))
        all.start_soon(release, log)
        await first.wait_arrived()
        assert log.partition() is partition, "it is served until little is left to flush"
        await log.append(partition, b"b")
        first.open()
        await last.wait_arrived()
        assert log.log.partition_named(TOPIC, 0) is None
        assert log.log.partitions == {}
        assert not partition.closed
        assert waiting.event.is_set(), "a fetch that waits would learn of it at the end only"
        _, round = log.append_nowait(partition, b"c")  # of a request that had begun before
        last.open()
        await round.wait()
        while not partition.closed:
            await trio.sleep(0.1)
        assert (await acquire_partition(log.log, topic_spec(), 0)).next_offset == 3
        assert await log.values(log.partition()) == [b"a", b"b", b"c"]


@EVERY_MODE
async def test_a_release_that_is_cancelled_leaves_the_partition_open(autojump_clock, durability):
    """The store is away: who can't flush must go on leading, or what only this broker has would have no leader."""
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[TWO], durability=durability) as log:
        partition = log.partition()
        if durability is not Durability.SEGMENT:
            await log.append(partition, b"a")
        outage = store.fail(On("put_if_absent", "*.kfs"), StoreUnavailable)
        _, round = log.append_nowait(partition, b"b")
        with trio.move_on_after(60) as limit:
            await release(log)
        assert limit.cancelled_caught
        assert log.partition() is partition is log.log.partition(TOPIC_ID, 0)
        assert not partition.closed
        assert log.log.moving == {}
        store.end(outage)
        await round.wait()
        await log.append(partition, b"c")
        assert (await log.values(partition))[-2:] == [b"b", b"c"]
        await release(log)
        assert partition.closed


async def test_a_small_tail_is_flushed_once_at_release_if_the_store_is_reachable(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[TWO], flush_interval_seconds=NEVER_SECONDS) as log:
        for index in range(2):  # the first finds out that the store is there
            partition = log.partition(index)
            await log.append(partition, b"a")
            gate = store.hold(On("put_if_absent", "*.kfs", times=1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(release, log, index)
                await gate.wait_arrived()
                assert (log.log.partition_named(TOPIC, index) is None) == bool(index)
                log.append_nowait(partition, b"b")
                await trio.sleep(0.1)
                gate.open()
            assert await log.values(await acquire_partition(log.log, LATER, index)) == [b"a", b"b"]


async def test_records_durable_during_the_last_flush_join_its_segment(autojump_clock):
    store = FaultyStore(MemoryStore())
    settings = {"durability": Durability.S3_WAL, "flush_interval_seconds": NEVER_SECONDS}
    async with memory_log(store, MemoryDisk(), topics=[TWO], **settings) as log, trio.open_nursery() as nursery:
        await log.append(log.partition(1), b"x")
        await log.log.flusher.flush_all()  # the store is there
        partition = log.partition()
        await log.append(partition, b"a")
        gate = store.hold(On("put_if_absent", "*.wal"))
        log.append_nowait(partition, b"b")
        nursery.start_soon(release, log)
        await gate.wait_arrived()
        store.calls.clear()
        await trio.sleep(1.0)
        assert not partition.closed
        gate.open()
        await trio.sleep(1.0)
        assert partition.closed
        assert store.count("put_if_absent", "*.kfs") == 1


async def test_a_partition_is_served_again_if_the_store_fails_during_its_last_flush(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[TWO], flush_interval_seconds=NEVER_SECONDS) as log:
        await log.append(log.partition(1), b"x")
        await release(log, 1)
        partition = log.partition()
        await log.append(partition, b"a")
        outage = store.fail(On("put_if_absent", "*.kfs"), StoreUnavailable)
        before = trio.current_time()
        with pytest.raises(StoreUnavailable, match="in 10 s"):
            await release(log)
        assert trio.current_time() - before == 10.0
        assert log.partition() is partition
        await log.append(partition, b"b")
        with trio.move_on_after(60):
            await release(log)
        assert log.partition() is partition, "it waits to be taken, and is served meanwhile"
        store.end(outage)
        await release(log)
        assert await log.values(await acquire_partition(log.log, LATER, 0)) == [b"a", b"b"]


async def test_a_topic_can_be_deleted_while_one_of_its_partitions_is_released(autojump_clock):
    store = FaultyStore(MemoryStore())
    for during_last_flush in (False, True):
        async with memory_log(store, MemoryDisk(), topics=[TWO], flush_interval_seconds=NEVER_SECONDS) as log:
            partition = log.partition()
            await log.append(partition, b"a")
            first, last = store.hold(On("put_if_absent", times=2)), store.hold(On("put_if_absent", skip=2))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(release, log)
                await first.wait_arrived()
                if during_last_flush:
                    await log.append(partition, b"b")
                    first.open()
                    await last.wait_arrived()
                assert (partition in log.log.moving.values()) == during_last_flush
                log.log.close_topic(TOPIC)
                assert partition.closed_error == UNKNOWN_TOPIC_OR_PARTITION
                log.log.open_topic(attrs.evolve(TWO, topic_id=b"n" * 16))
                first.open()
                last.open()
            assert log.log.moving == {}
            assert log.partition().topic_id == b"n" * 16
        store.heal()


async def test_a_topic_can_be_deleted_while_one_of_its_partitions_is_acquired(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[TWO]) as log:
        await log.append(log.partition(), b"a")
        await release(log)
        gate = store.hold(On("list"))

        async def acquire() -> None:
            with pytest.raises(KafkaError) as caught:
                await acquire_partition(log.log, LATER, 0)
            assert caught.value.code == UNKNOWN_TOPIC_OR_PARTITION

        async with trio.open_nursery() as nursery:
            nursery.start_soon(acquire)
            await gate.wait_arrived()
            log.log.close_topic(TOPIC)
            log.log.open_topic(attrs.evolve(TWO, topic_id=b"n" * 16))
            gate.open()
        assert log.log.moving == {}
        assert log.partition().topic_id == b"n" * 16
        assert log.partition().next_offset == 0


async def test_configs_changed_during_an_acquisition_apply_to_the_partition(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[TWO]) as log, trio.open_nursery() as nursery:
        await log.append(log.partition(), b"a")
        await release(log)
        gate = store.hold(On("list"))
        nursery.start_soon(acquire_partition, log.log, LATER, 0)
        await gate.wait_arrived()
        log.log.open_topic(topic_spec(2, max_message_bytes=77))
        assert log.log.partition_named(TOPIC, 0) is None, "nobody may see it before it is restored"
        gate.open()
        await trio.sleep(1)
        assert log.partition().config.max_message_bytes == 77


async def test_an_acquisition_that_fails_can_be_tried_again(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[TWO]) as log:
        await log.append(log.partition(), b"a")
        await release(log)
        store.fail(On("list", times=1), StoreUnavailable)
        with pytest.raises(StoreUnavailable):
            await acquire_partition(log.log, LATER, 0)
        assert log.log.partition_named(TOPIC, 0) is None
        await acquire_partition(log.log, LATER, 0)
        assert await log.values(log.partition()) == [b"a"]


async def test_an_acquired_partition_does_not_reuse_acknowledged_offsets(autojump_clock):
    """Where its last segment has gone from the bucket, its offsets are not given again."""
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), topics=[TWO]) as log:
        for number in range(3):
            await log.append(log.partition(), b"%d" % number)
        await release(log)
        await store.delete(
            [each.key async for page in store.list("") for each in page if ".index" in each.key or ".kfs" in each.key]
        )
        partition = await acquire_partition(log.log, LATER, 0, Acquisition(acknowledged_before=3))
        assert await log.append(partition, b"3") == 3


async def test_a_waiting_read_fails_with_not_leader_when_the_partition_is_released(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), flush_interval_seconds=NEVER_SECONDS) as log:
        await log.append(log.partition(), b"a")
        async with log.waiting_read(NOT_LEADER_OR_FOLLOWER):
            await release(log)


async def test_a_merge_that_is_under_way_ends_first_and_none_begins(autojump_clock):
    store = FaultyStore(MemoryStore())
    topics = [topic_spec(2, file_delete_delay_ms=60_000)]
    settings = {"segment_merge_bytes": 1 << 20}
    async with memory_log(store, MemoryDisk(), topics=topics, **settings) as log, trio.open_nursery() as nursery:
        for number in range(12):
            await log.append(log.partition(), b"%d" % number)
            await log.log.flusher.flush_all()
        gate = store.hold(On("put_if_absent", "*-00001.kfs"))
        nursery.start_soon(log.log.merger.run, [])
        nursery.start_soon(log.log.deleter.run)
        await gate.wait_arrived()
        ended = trio.Event()

        async def release_it() -> None:
            await release(log)
            ended.set()

        nursery.start_soon(release_it)
        await trio.sleep(10)
        assert not ended.is_set()
        gate.open()
        await ended.wait()
        assert log.log.deleter.waiting_count == 0, "who leads it next deletes what was merged"
        count = len(store.calls)
        await trio.sleep(1000)
        assert not any(call.operation.startswith(("put", "delete")) for call in store.calls[count:])
        partition = await acquire_partition(log.log, attrs.evolve(LATER, config=topics[0].config), 0)
        assert partition.manifest.segments[0].generation == 1
        assert await log.values(partition) == [b"%d" % number for number in range(12)]
        nursery.cancel_scope.cancel()


async def test_a_rewrite_that_meets_the_last_flush_changes_nothing(autojump_clock):
    """Its object would come, and be deleted again, under the eyes of the next leader."""
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[TWO], flush_interval_seconds=NEVER_SECONDS) as log:
        partition, rewriter = log.partition(), log.log.merger.rewriter
        for value in (b"a", b"b"):
            await log.append(partition, value)
            await log.log.flusher.flush_all()
        segments = list(partition.manifest.segments)
        sources = [await read_source(store, segment) for segment in segments]
        footer = await merged_footer(partition, sources)
        await log.append(partition, b"c")
        gate = store.hold(On("put_if_absent", "*-00000.kfs"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(release, log)
            await gate.wait_arrived()
            assert not await rewriter.replace(partition, segments, footer, [source.body for source in sources])
            gate.open()
        assert store.count("*", "*-00001.*") == 0


async def test_retention_under_way_deletes_no_segment_of_a_released_partition(autojump_clock):
    topic = topic_spec(2, retention_ms=1, file_delete_delay_ms=0)
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic]) as log:
        for value in (b"a", b"b"):
            await log.append(log.partition(), value)
            await log.log.flusher.flush_all()
        log_starts = []

        async def set_meanwhile(topic_id: bytes, index: int, offset: int) -> None:
            log_starts.append(offset)
            await release(log)

        retention = Retention(
            store=log.store,
            deleter=log.log.deleter,
            examiner=log.log.reader.examiner,
            partitions=lambda: [log.partition()],
            set_log_start_offset=set_meanwhile,
            interval_seconds=1,
        )
        await retention.enforce()
        assert log_starts == [2]
        assert log.log.deleter.waiting_count == 0


async def test_caches_drop_the_data_of_a_released_partition(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[TWO]) as log:
        for index in (0, 1):
            for _ in range(20):
                await log.append(log.partition(index), bytes(5000))
                await log.log.flusher.flush_all()
        reader = log.log.reader
        for index in (0, 1):
            await log.records(log.partition(index), max_bytes=5000)
        assert {place[0].index for place in reader.read_ahead._streams} == {0, 1}
        await release(log)
        assert {place[0].index for place in reader.read_ahead._streams} == {1}
        assert {key.partition for key in reader.footers._cached} == {1}
        assert reader.ranges.cache.size_bytes > 0
        await release(log, 1)
        assert reader.read_ahead.held_bytes == reader.footers.size_bytes == reader.ranges.cache.size_bytes == 0


async def test_an_acquired_partition_keeps_its_log_start_and_its_version_1_segments(autojump_clock):
    store, topic_id = MemoryStore(), version_1_topic_id(TOPIC)
    await version_1_objects(version_1_key(TOPIC, 0, 0), make_batches(0, 4)).put(store)
    await version_1_objects(version_1_key(TOPIC, 1, 0), make_batches(0, 2)).put(store)
    topic = topic_spec(2, topic_id=topic_id, log_start_offsets={0: 2})
    async with memory_log(store, MemoryDisk(), topics=[topic]) as log:
        before = await log.records(log.partition(), 2)
        await log.append(log.partition(), b"x")
        await release(log)
        partition = await acquire_partition(log.log, topic, 0)
        assert partition.log_start_offset == 2
        assert [key.version for key in (each.key for each in partition.manifest.segments)] == [1, 2]
        after = await log.records(partition, 2)
        assert after[:-1] == before
        assert after[-1].value == b"x"


async def test_only_the_objects_of_the_partition_are_listed(autojump_clock):
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(12)]) as log:
        for index in (1, 10, 11):
            await log.append(log.partition(index), b"%d" % index)
        await log.log.flusher.flush_all()
        await release(log, 1)
        del store.calls[:]
        await acquire_partition(log.log, topic_spec(12), 1)
        assert await log.values(log.partition(1)) == [b"1"]
        touched = {key for call in store.calls for key in call.keys}
        assert {parse_segment_key(key).partition for key in touched if parse_segment_key(key)} == {1}
        assert len(touched) == 3, touched  # the listing's prefix, one footer, and its copy


@pytest.mark.parametrize("seed", range(2))
@EVERY_MODE
async def test_many_move_at_once_under_load(autojump_clock, durability, seed):
    """Whatever was acknowledged is read back, in order and once, while every partition comes and goes."""
    store = FaultyStore(MemoryStore())
    store.random.seed(seed)
    store.delay(On("put*"), 0.05)
    store.delay(On("get*"), 0.02)
    store.delay(On("list"), 0.03)
    settings = {"durability": durability, "flush_interval_seconds": 0.3, "segment_merge_bytes": 1 << 20}
    acknowledged: dict[int, list[bytes]] = {index: [] for index in range(4)}
    spec = topic_spec(4)

    async def append(log: MemoryLog, index: int, deadline: float) -> None:
        number = 0
        while trio.current_time() < deadline:
            partition = log.log.partition_named(TOPIC, index)
            if partition is not None:
                offset = await log.append(partition, value := b"%d" % number)
                assert offset == number
                acknowledged[index].append(value)
                number += 1
            await trio.sleep(store.random.random() / 20)

    async def move(log: MemoryLog, index: int, deadline: float) -> None:
        epoch = 1
        while trio.current_time() < deadline:
            await trio.sleep(store.random.random())
            await release(log, index)
            await trio.sleep(store.random.random() / 10)
            epoch += 1
            await acquire_partition(log.log, attrs.evolve(spec, leader_epochs={index: epoch}), index)

    async with memory_log(store, MemoryDisk(), topics=[spec], **settings) as log:
        async with trio.open_nursery() as background:
            background.start_soon(log.log.merger.run, [])
            async with trio.open_nursery() as nursery:
                for index in acknowledged:
                    nursery.start_soon(append, log, index, trio.current_time() + 5)
                    if index:
                        nursery.start_soon(move, log, index, trio.current_time() + 5)
            background.cancel_scope.cancel()
        for index, values in acknowledged.items():
            assert await log.values(log.partition(index)) == values
            assert log.partition(index).leader_epoch > (1 if index else 0)
            epochs = [each.epoch for each in log.partition(index).epochs]
            assert epochs == sorted(set(epochs))
    assert min(map(len, acknowledged.values())) > 10
    async with memory_log(store, log.disk.crash(), topics=[spec], leader_epoch=100, durability=durability) as log:
        for index, values in acknowledged.items():
            assert await log.values(log.partition(index)) == values


# ---- what an earlier epoch wrote last, and a later one has written nothing behind ----------------------------------


async def test_the_last_flush_before_an_epoch_without_records_stays_though_a_reply_is_cut_off(autojump_clock):
    """It was taken for late, and acknowledged records were lost: how far it goes is in its footer alone."""
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk(), topics=[TWO], durability=Durability.SEGMENT) as log:
        await log.append(log.partition(), b"a", b"b")
        await release(log)
        store.truncate(On("get*", "*.kfs", times=1))
        partition = await acquire_partition(log.log, LATER, 0, Acquisition(begun=[EpochStart(3, 2)]))
        assert await log.values(partition) == [b"a", b"b"]


async def test_a_damaged_segment_below_the_later_epoch_start_is_quarantined(autojump_clock, caplog):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), topics=[TWO], durability=Durability.SEGMENT) as log:
        await log.append(log.partition(), b"a", b"b")
        (segment,) = log.partition().manifest.segments
        await release(log)
        await store.put(segment.key.key, [b"x" * 100])
        await store.delete([segment.key.of_kind("index").key])
        partition = await acquire_partition(log.log, LATER, 0, Acquisition(begun=[EpochStart(3, 2)]))
        assert partition.next_offset == 2
        assert "damaged and quarantined" in caplog.text


async def test_a_segment_that_begins_at_the_later_epoch_start_is_late_even_if_damaged(autojump_clock, caplog):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), topics=[TWO], durability=Durability.SEGMENT) as log:
        await log.append(log.partition(), b"a", b"b")
        await log.append(log.partition(), b"late")
        late = log.partition().manifest.segments[-1]
        await release(log)
        await store.put(late.key.key, [b"x" * 100])
        partition = await acquire_partition(log.log, LATER, 0, Acquisition(begun=[EpochStart(3, 2)]))
        assert await log.values(partition) == [b"a", b"b"]
        assert "quarantined" not in caplog.text
