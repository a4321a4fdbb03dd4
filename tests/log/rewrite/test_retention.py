"""Which segments go, by age, size and log start; that a crash at any moment loses no record that is still wanted."""

from __future__ import annotations

import logging
import random
from collections.abc import Collection
from contextlib import suppress

import attrs
import pytest
import trio

from kafscale.cluster.registries.topics import NewTopic
from kafscale.errors import KafkaError, SlowDown, StoreError
from kafscale.log.bucket.deletion import OrphanCollector
from kafscale.log.rewrite.retention import Retention
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.batch_header import parse_header
from kafscale.wire.error_codes import OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_ID
from kafscale.wire.records import ProducerStamp
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings
from tests.devtools.fakes.memory_log import MemoryLog, append_nowait, batch_of, memory_log, merge_segments, topic_spec

NOW_MS = 1_700_000_000_000
DELAY_MS = 60_000
FOREVER = {"retention_ms": -1, "file_delete_delay_ms": DELAY_MS}


@attrs.define(eq=False)
class LogStarts:
    """Log starts as the metadata has them."""

    durable: dict[int, int] = attrs.field(factory=dict)
    commit_seconds: float = 0.1

    async def set(self, topic_id: bytes, partition: int, offset: int) -> None:
        await trio.sleep(self.commit_seconds)
        self.durable[partition] = max(offset, self.durable.get(partition, 0))


def retention_of(log: MemoryLog, starts: LogStarts, *, now_ms: int = NOW_MS, set_log_start_offset=None) -> Retention:
    return Retention(
        store=log.store,
        deleter=log.log.deleter,
        examiner=log.log.reader.examiner,
        partitions=lambda: list(log.log.partitions.values()),
        set_log_start_offset=set_log_start_offset or starts.set,
        interval_seconds=300.0,
        now_ms=lambda: now_ms,
    )


async def flushed(log: MemoryLog, *timestamps_ms: int) -> None:
    """One segment of one record with each of these timestamps."""
    for timestamp_ms in timestamps_ms:
        await log.append(log.partition(), b"%d" % log.partition().next_offset, timestamps_ms=[timestamp_ms])
        await log.log.flusher.flush_all()


async def base_offsets(store) -> list[int]:
    """Of the `.kfs` that are in the bucket; each must have its `.index`."""
    names = [info.key.rpartition("segment-")[2] async for page in store.list("") for info in page]
    found = {kind: [int(name[:20]) for name in names if name.endswith(kind)] for kind in (".kfs", ".index")}
    assert found[".kfs"] == found[".index"]
    return found[".kfs"]


def bases(log: MemoryLog) -> list[int]:
    return [segment.base_offset for segment in log.partition().manifest.segments]


# ---- what goes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ages_ms", "log_start_offset"),
    [
        ([1001, 1001, 5], 2),
        ([1000, 1001], 0),  # exactly as old as it may be
        ([1001, 5, 1001], 1),  # what is behind a younger one waits for it
        ([-5, 1001], 0),  # a record of the future
        ([1001, 1001], 2),
    ],
)
async def test_by_age_the_oldest_segments_go_up_to_the_first_that_is_young(autojump_clock, ages_ms, log_start_offset):
    starts = LogStarts()
    topics = [topic_spec(retention_ms=1000, file_delete_delay_ms=DELAY_MS)]
    async with memory_log(MemoryStore(), MemoryDisk(), topics=topics) as log:
        await flushed(log, *(NOW_MS - age_ms for age_ms in ages_ms))
        await retention_of(log, starts).enforce()
        assert log.partition().log_start_offset == starts.durable.get(0, 0) == log_start_offset
        assert bases(log) == list(range(min(log_start_offset, len(ages_ms) - 1), len(ages_ms)))


@pytest.mark.parametrize(("kept_count", "log_start_offset"), [(0, 3), (1, 3), (2, 2), (3, 1), (4, 0), (9, 0)])
async def test_retention_by_size_deletes_oldest_segments_while_enough_bytes_remain(
    autojump_clock, kept_count, log_start_offset
):
    """Three segments and a tail of the same size."""
    starts = LogStarts()
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**FOREVER)]) as log:
        await flushed(log, 0, 0, 0)
        await log.append(log.partition(), b"3", timestamps_ms=[0])
        size_bytes = log.partition().tail.size_bytes
        assert log.partition().size_bytes == 4 * size_bytes
        log.log.open_topic(topic_spec(**FOREVER, retention_bytes=kept_count * size_bytes))
        await retention_of(log, starts).enforce()
        assert log.partition().log_start_offset == starts.durable.get(0, 0) == log_start_offset
        assert await log.values(log.partition(), log_start_offset) == [b"%d" % n for n in range(log_start_offset, 4)]


async def test_without_the_delete_policy_only_segments_below_the_log_start_go(autojump_clock):
    config = {"cleanup_policy": ("compact",), "retention_ms": 0, "retention_bytes": 0, "file_delete_delay_ms": DELAY_MS}
    starts = LogStarts()
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(**config)]) as log:
        await flushed(log, 0, 0, 0)
        await retention_of(log, starts).enforce()
        assert (bases(log), starts.durable) == ([0, 1, 2], {})
        log.partition().delete_records(1)
        await retention_of(log, starts).enforce()
        assert (bases(log), starts.durable) == ([1, 2], {})


async def test_a_segment_without_timestamps_is_as_old_as_its_object(autojump_clock):
    starts = LogStarts()
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(retention_ms=1000)]) as log:
        await flushed(log, -1, -1)
        footers = [await log.log.reader.footers.get(each) for each in log.partition().manifest.segments]
        created_ms = [footer.identity.created_ms for footer in footers]
        await retention_of(log, starts, now_ms=min(created_ms) + 1000).enforce()
        assert starts.durable == {}
        await retention_of(log, starts, now_ms=max(created_ms) + 1001).enforce()
        assert starts.durable == {0: 2}


async def test_after_a_restart_a_footer_tells_the_age_and_is_read_once(autojump_clock):
    store, disk, starts = FaultyStore(MemoryStore()), MemoryDisk(), LogStarts()
    topics = [topic_spec(retention_ms=1000)]
    async with memory_log(store, disk, topics=topics) as log:
        await flushed(log, NOW_MS - 2000, NOW_MS, NOW_MS)
    async with memory_log(store, disk, topics=topics, leader_epoch=2) as log:
        await retention_of(log, starts).enforce()
        assert starts.durable == {0: 1}
        gate = store.hold(On("get*"))
        await retention_of(log, starts).enforce()
        assert gate.arrived_count == 0


async def test_a_footer_that_cant_be_read_puts_off_one_partition(autojump_clock, caplog):
    store, disk, starts = FaultyStore(MemoryStore()), MemoryDisk(), LogStarts()
    topics = [topic_spec(2, retention_ms=1000)]
    async with memory_log(store, disk, topics=topics) as log:
        for partition in (log.partition(0), log.partition(1)):
            for _ in range(2):
                await log.append(partition, b"x", timestamps_ms=[0])
                await log.log.flusher.flush_all()
    async with memory_log(store, disk, topics=topics, leader_epoch=2) as log:
        store.fail(On("get*", "*/0/*"), SlowDown)
        await retention_of(log, starts).enforce()
        assert starts.durable == {1: 2}
        errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1
        assert errors[0].startswith("retention of t-0 waits")
        store.heal()
        await retention_of(log, starts).enforce()
        assert starts.durable == {0: 2, 1: 2}


async def test_a_topic_that_is_deleted_meanwhile_is_left_alone(autojump_clock):
    async def gone(topic_id: bytes, partition: int, offset: int) -> None:
        log.log.close_topic("t")
        raise KafkaError(UNKNOWN_TOPIC_ID)

    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(retention_ms=0)]) as log:
        await flushed(log, 0, 0)
        await retention_of(log, LogStarts(), set_log_start_offset=gone).enforce()
        await retention_of(log, LogStarts(), set_log_start_offset=gone).enforce()
        assert log.log.deleter.waiting_count == 0


# ---- the order of what is done ------------------------------------------------------------------------------------


async def test_readers_and_objects_wait_until_the_log_start_is_durable(autojump_clock, nursery):
    committing, committed = trio.Event(), trio.Event()

    async def slowly(topic_id: bytes, partition: int, offset: int) -> None:
        committing.set()
        await committed.wait()

    topics = [topic_spec(retention_ms=0, file_delete_delay_ms=0)]
    async with memory_log(MemoryStore(), MemoryDisk(), topics=topics) as log:
        await flushed(log, 0, 0, NOW_MS)
        nursery.start_soon(log.log.deleter.run)
        nursery.start_soon(retention_of(log, LogStarts(), set_log_start_offset=slowly).enforce)
        await committing.wait()
        await trio.sleep(1)
        assert log.partition().log_start_offset == 0
        assert await log.values(log.partition()) == [b"0", b"1", b"2"]
        committed.set()
        await trio.sleep(1)
        assert log.partition().log_start_offset == 2
        assert await base_offsets(log.store) == [2]


async def test_objects_stay_for_the_topics_delay_and_a_read_that_began_before_ends_well(autojump_clock, nursery):
    store = FaultyStore(MemoryStore())
    topics = [topic_spec(retention_ms=0, file_delete_delay_ms=DELAY_MS)]
    async with memory_log(store, MemoryDisk(), topics=topics) as log:
        await flushed(log, 0, NOW_MS)
        nursery.start_soon(log.log.deleter.run)
        gate = store.hold(On("get_range"))
        found: list[bytes | None] = []

        async def read() -> None:
            found.extend(record.value for record in await log.read(log.partition(), 0))

        nursery.start_soon(read)
        await gate.wait_arrived(1)
        await retention_of(log, LogStarts()).enforce()
        await trio.sleep(DELAY_MS / 1000 - 1)
        gate.open()
        await trio.sleep(0.5)
        assert found == [b"0"]
        assert await base_offsets(store) == [0, 1]
        await trio.sleep(2)
        assert await base_offsets(store) == [1]


async def test_a_read_that_lasts_longer_than_the_objects_is_out_of_range(autojump_clock, nursery):
    """And does not go on with a later record, as if there had been none before."""
    store = FaultyStore(MemoryStore())
    topics = [topic_spec(retention_ms=0, file_delete_delay_ms=0)]
    async with memory_log(store, MemoryDisk(), topics=topics) as log:
        await flushed(log, 0, NOW_MS)
        nursery.start_soon(log.log.deleter.run)
        gate = store.hold(On("get_range"))
        errors: list[int] = []

        async def read() -> None:
            with pytest.raises(KafkaError) as caught:
                await log.read(log.partition(), 0)
            errors.append(caught.value.code)

        nursery.start_soon(read)
        await gate.wait_arrived(1)
        await retention_of(log, LogStarts()).enforce()
        await trio.sleep(1)
        gate.open()
        await trio.sleep(1)
        assert errors == [OFFSET_OUT_OF_RANGE]


async def test_the_last_segment_outlives_retention_to_keep_offsets_and_producers(autojump_clock, nursery):
    """A producer's retry is recognised, and offsets go on, after every record is gone and so is the disk."""
    store, starts = MemoryStore(), LogStarts()
    config = {"retention_ms": 0, "file_delete_delay_ms": 0, "producer_id_expiration_ms": 1 << 50}
    async with memory_log(store, MemoryDisk(), topics=[topic_spec(**config)]) as log:
        nursery.start_soon(log.log.deleter.run)
        for sequence in range(3):
            await log.append(log.partition(), b"x", producer=ProducerStamp(7, 0, sequence), timestamps_ms=[0])
            await log.log.flusher.flush_all()
        await retention_of(log, starts).enforce()
        await trio.sleep(1)
        assert await base_offsets(store) == [2]
        assert await log.values(log.partition(), 3) == []
    topics = [topic_spec(**config, log_start_offsets=starts.durable)]
    async with memory_log(store, MemoryDisk(), topics=topics, leader_epoch=2) as log:
        partition = log.partition()
        assert (partition.log_start_offset, partition.next_offset) == (3, 3)
        retried = parse_header(batch_of(b"x", producer=ProducerStamp(7, 0, 2)))
        assert partition.producers.check(retried).base_offset == 2
        await flushed(log, NOW_MS)
        nursery.start_soon(log.log.deleter.run)
        await retention_of(log, starts).enforce()
        await trio.sleep(1)
        assert await base_offsets(store) == [3]


# ---- any order of events ------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class World:
    """What outlives a broker, and every record that was acknowledged."""

    random: random.Random
    store: MemoryStore = attrs.field(factory=MemoryStore)
    disk: MemoryDisk = attrs.field(factory=MemoryDisk)
    starts: LogStarts = attrs.field(factory=lambda: LogStarts(commit_seconds=2.0))  # long enough for many a kill
    values: list[bytes] = attrs.field(factory=list)
    acknowledged_count: int = 0
    epoch: int = 0

    def start(self, store):
        self.epoch += 1
        config = {"retention_ms": 100_000, "retention_bytes": 2000, "file_delete_delay_ms": 3000}
        topics = [topic_spec(log_start_offsets=dict(self.starts.durable), **config)]
        return memory_log(store, self.disk, topics=topics, leader_epoch=self.epoch, flush_interval_seconds=1.0)

    def __attrs_post_init__(self) -> None:
        self.store.clock_ms = self.now_ms

    def now_ms(self) -> int:
        return NOW_MS + round(trio.current_time() * 1000)

    async def check(self, log: MemoryLog) -> None:
        partition = log.partition()
        start = partition.log_start_offset
        assert start >= self.starts.durable.get(0, 0)
        assert await log.values(partition, start) == self.values[start : partition.high_watermark]
        assert partition.high_watermark >= self.acknowledged_count

    async def produce(self, log: MemoryLog) -> None:
        while True:
            value = b"%d-" % log.partition().next_offset + bytes(self.random.randint(1, 200))
            appended, round = log.append_nowait(log.partition(), value, timestamps_ms=[self.now_ms()])
            assert appended.base_offset == len(self.values)
            self.values.append(value)
            await round.wait()
            self.acknowledged_count = len(self.values)
            await trio.sleep(self.random.expovariate(1))

    async def delete_records(self, log: MemoryLog) -> None:
        while True:
            await trio.sleep(self.random.expovariate(0.05))
            partition = log.partition()
            offset = self.random.randint(partition.log_start_offset, partition.high_watermark)
            await self.starts.set(b"", 0, offset)
            partition.delete_records(offset)

    async def merge(self, log: MemoryLog) -> None:
        """Leave an object of a newer generation, half a pair, as a merger that is killed does: a restart reads it."""
        while True:
            await trio.sleep(self.random.expovariate(0.1))
            segments = log.partition().manifest.segments
            first = self.random.randint(0, max(0, len(segments) - 3))
            chosen = segments[first : first + 3]
            if not chosen or any(each.generation for each in chosen):
                continue
            with suppress(StoreError):  # the store fails, or retention was faster
                await merge_segments(log, [each.base_offset for each in chosen])

    async def collect(self, log: MemoryLog) -> None:
        collector = self.collector_of(log)
        while True:
            await trio.sleep(self.random.expovariate(0.2))
            await collector.collect()

    def collector_of(self, log: MemoryLog) -> OrphanCollector:
        async def ignore(topic_ids: Collection[bytes]) -> None:
            await trio.lowlevel.checkpoint()

        return OrphanCollector(
            store=log.store,
            namespace=log.log.namespace,
            find_partition=log.log.partition,
            deleted_topics=tuple,
            on_gone=ignore,
            interval_seconds=3600.0,
            grace_seconds=5.0,
            now_ms=self.now_ms,
        )

    async def retain(self, log: MemoryLog) -> None:
        retention = retention_of(log, self.starts)
        retention.now_ms = self.now_ms
        while True:
            await trio.sleep(self.random.expovariate(0.3))
            await retention.enforce()

    async def live(self) -> None:
        """One life, ended by a kill in the middle of anything."""
        store = FaultyStore(self.store, self.random)
        async with self.start(store) as log:
            await self.check(log)
            del self.values[log.partition().high_watermark :]
            store.unreliable(self.random.choice([0.0, 0.2]))
            with trio.move_on_after(self.random.uniform(0, 60)):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(log.log.deleter.run)
                    for task in (self.produce, self.delete_records, self.retain, self.merge, self.collect):
                        nursery.start_soon(task, log)
            store.heal()
            self.disk = self.disk.crash(rng=self.random)

    async def run(self) -> None:
        for _ in range(5):
            await self.live()
        async with self.start(self.store) as log, trio.open_nursery() as nursery:
            await self.check(log)
            await log.log.flusher.flush_all()
            nursery.start_soon(log.log.deleter.run)
            retention = retention_of(log, self.starts)
            retention.now_ms = self.now_ms
            await retention.enforce()
            await trio.sleep(10)
            await self.check(log)
            collector = self.collector_of(log)
            for _ in range(3):
                await collector.collect()
                await trio.sleep(10)
            await self.check(log)
            kept = {segment.kfs_key for segment in log.partition().manifest.segments}
            assert await keys_of(self.store) == sorted(kept | {key.replace(".kfs", ".index") for key in kept})
            nursery.cancel_scope.cancel()


async def keys_of(store) -> list[str]:
    return [info.key async for page in store.list("") for info in page]


@pytest.mark.parametrize("seed", range(15))
async def test_every_record_from_the_log_start_on_stays_through_kills_and_nothing_else_does(autojump_clock, seed):
    await World(random.Random(seed)).run()


async def test_a_broker_deletes_expired_segments_and_keeps_the_log_start_over_a_restart(autojump_clock):
    parts = memory_parts()
    settings = memory_settings(retention_check_interval_seconds=60.0, segment_delete_delay_ms=30_000)
    async with memory_broker(parts, settings) as running:
        services = running.broker.services
        await services.topics.create([NewTopic(name="t", overrides={"retention.ms": "1000"})])
        partition = services.log.partition_named("t", 0)
        for _ in range(3):
            await append_nowait(partition, b"old")[1].wait()
            await services.log.flusher.flush_all()
        await trio.sleep(61)
        assert partition.log_start_offset == 3
        assert await base_offsets(parts.store) == [0, 1, 2]
        await trio.sleep(30)
        assert await base_offsets(parts.store) == [2]
    async with memory_broker(parts, settings) as running:
        partition = running.broker.services.log.partition_named("t", 0)
        assert (partition.log_start_offset, partition.next_offset) == (3, 3)


async def test_a_clock_that_goes_ahead_for_a_while_deletes_nothing(autojump_clock, caplog):
    """All that was older by that clock went at the first check, and did not come back with the time."""
    ahead_ms = 0
    async with memory_log(MemoryStore(), MemoryDisk()) as log, trio.open_nursery() as nursery:
        await flushed(log, NOW_MS, NOW_MS + 1)
        began = trio.current_time()
        retention = retention_of(log, LogStarts())
        retention.now_ms = lambda: NOW_MS + ahead_ms + round((trio.current_time() - began) * 1000)
        nursery.start_soon(retention.run)
        await trio.sleep(retention.interval_seconds - 1)
        ahead_ms = 30 * 24 * 3_600_000
        await trio.sleep(2)
        assert "the clock has gone ahead by 2592000 s" in caplog.text
        ahead_ms = 0
        await trio.sleep(3 * retention.interval_seconds)
        assert log.partition().log_start_offset == 0
        ahead_ms = 30 * 24 * 3_600_000
        await trio.sleep(retention.interval_seconds)
        assert log.partition().log_start_offset == 0
        await trio.sleep(retention.interval_seconds)
        assert log.partition().log_start_offset == 2
        nursery.cancel_scope.cancel()


async def test_a_damaged_segment_does_not_hold_up_retention_for_good(autojump_clock, caplog):
    """It was told at every check, and nothing behind it was deleted."""
    store, disk = MemoryStore(), MemoryDisk()
    async with memory_log(store, disk) as log:
        await flushed(log, 10, 20, NOW_MS)
        first = log.partition().manifest.segments[0]
    await store.put(first.kfs_key, [b"garbage"])
    topics = [topic_spec(retention_ms=1000)]
    async with memory_log(store, MemoryDisk(), topics=topics, leader_epoch=2) as log:
        retention = retention_of(log, LogStarts())
        await retention.enforce()
        assert log.log.quarantined_count() == 1
        await retention.enforce()
        assert bases(log) == [2]
    assert caplog.text.count("is damaged and quarantined") == 1
    assert "waits for the next check" not in caplog.text
