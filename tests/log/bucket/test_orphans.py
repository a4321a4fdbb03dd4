"""What is collected, and above all what is not."""

from __future__ import annotations

import time

import attrs
import pytest
import trio

from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.registries.topics import NewTopic
from kafscale.errors import SlowDown, StorageFull, StoreUnavailable
from kafscale.log.bucket.deletion import OrphanCollector
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey, parse_segment_key
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings
from tests.devtools.fakes.memory_log import TOPIC_ID, MemoryLog, append_nowait, memory_log, merge_segments, topic_spec

NOW_MS = 1_700_000_000_000
GRACE_SECONDS = 100.0
OTHER_ID = bytes(range(16, 32))


def clock_ms() -> int:
    return NOW_MS + round(trio.current_time() * 1000)


def memory_store() -> MemoryStore:
    return MemoryStore(clock_ms=clock_ms)


@attrs.define(eq=False)
class Deleted:
    """The topics whose deletion the metadata remembers, and those of which it was told that nothing is left."""

    topic_ids: set[bytes] = attrs.field(factory=set)
    gone: list[set[bytes]] = attrs.field(factory=list)

    async def on_gone(self, topic_ids) -> None:
        await trio.lowlevel.checkpoint()
        self.gone.append(set(topic_ids))


def collector_of(log: MemoryLog, deleted: Deleted | None = None) -> OrphanCollector:
    deleted = deleted or Deleted()
    return OrphanCollector(
        store=log.store,
        namespace=log.log.namespace,
        find_partition=log.log.partition,
        deleted_topics=lambda: deleted.topic_ids,
        on_gone=deleted.on_gone,
        interval_seconds=3600.0,
        grace_seconds=GRACE_SECONDS,
        now_ms=clock_ms,
    )


async def collect(log: MemoryLog, deleted: Deleted | None = None) -> None:
    """Look twice, with the grace period in between."""
    collector = collector_of(log, deleted)
    await collector.collect()
    await trio.sleep(GRACE_SECONDS + 1)
    await collector.collect()


def key_of(
    base_offset: int, generation: int = 0, *, topic_id: bytes = TOPIC_ID, topic: str = "t", epoch: int = 1
) -> SegmentKey:
    return SegmentKey(
        topic=topic, topic_id=topic_id, partition=0, base_offset=base_offset, epoch=epoch, generation=generation
    )


async def keys_of(store) -> list[str]:
    return [info.key async for page in store.list("default/") for info in page]


async def left(store) -> list[str]:
    """`base-generation.kind` of every object."""
    keys = [key for name in await keys_of(store) if (key := parse_segment_key(name)) is not None]
    return [f"{key.base_offset}-{key.generation}.{key.kind}" for key in keys]


def pairs(*names: str) -> list[str]:
    return [f"{name}.{kind}" for name in names for kind in ("index", "kfs")]


async def flushed(log: MemoryLog, count: int) -> None:
    for _ in range(count):
        await log.append(log.partition(), b"%d" % log.partition().next_offset)
        await log.log.flusher.flush_all()


async def test_objects_in_the_manifest_stay(autojump_clock):
    async with memory_log(memory_store(), MemoryDisk()) as log:
        await flushed(log, 3)
        await collect(log)
        assert await left(log.store) == pairs("0-0", "1-0", "2-0")
        assert await log.values(log.partition()) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), StorageFull("no room")])
async def test_a_deleted_topic_that_can_not_be_forgotten_now_is_the_next_time(autojump_clock, caplog, error):
    """Several brokers have their metadata in the bucket: its first failure ended the collector, and so the broker."""
    async with memory_log(memory_store(), MemoryDisk()) as log:
        deleted = Deleted({OTHER_ID})
        collector = collector_of(log, deleted)

        async def fail(topic_ids) -> None:
            raise error

        collector.on_gone = fail
        await collector.collect()
        assert "are forgotten later" in caplog.text
        collector.on_gone = deleted.on_gone
        await collector.collect()
        assert deleted.gone == [{OTHER_ID}]


async def test_segments_below_the_log_start_are_deleted_with_their_index(autojump_clock):
    """As after a crash between the move of the log start and the deletion."""
    async with memory_log(memory_store(), MemoryDisk()) as log:
        await flushed(log, 4)
        await log.store.delete([key_of(1).of_kind("index").key])
        await log.store.delete([key_of(0).key])
        log.partition().delete_records(3)
        log.partition().drop_deleted()
        await collect(log)
        assert await left(log.store) == pairs("3-0")


async def test_segments_covered_by_a_newer_generation_are_deleted_after_a_restart(autojump_clock):
    store, disk = memory_store(), MemoryDisk()
    async with memory_log(store, disk) as log:
        await flushed(log, 4)
        await merge_segments(log, [1, 2])
    async with memory_log(store, disk, leader_epoch=2) as log:
        await collect(log)
        assert await left(store) == pairs("0-0", "1-1", "3-0")
        assert await log.values(log.partition()) == [b"0", b"1", b"2", b"3"]


async def test_a_newer_generation_that_is_not_referred_to_stays(autojump_clock):
    """The next restart reads it, and then its parts go: if it went now, a delete that is late could hit it then."""
    store, disk = memory_store(), MemoryDisk()
    async with memory_log(store, disk) as log:
        await flushed(log, 3)
        await merge_segments(log, [0, 1])
        await collect(log)
        assert set(await left(store)) == {*pairs("0-0", "1-0", "2-0"), "0-1.kfs"}


async def test_an_upload_under_way_is_never_touched(autojump_clock, nursery):
    store = FaultyStore(memory_store())
    async with memory_log(store, MemoryDisk()) as log:
        await flushed(log, 1)
        gate = store.hold(On("put*", "*.kfs"))
        await log.append(log.partition(), b"1")
        nursery.start_soon(log.log.flusher.flush_all)
        await gate.wait_arrived(1)
        assert await left(store) == [*pairs("0-0"), "1-0.index"]
        await collect(log)
        assert await left(store) == [*pairs("0-0"), "1-0.index"]
        gate.open()
        await trio.sleep(1)
        assert await left(store) == pairs("0-0", "1-0")


async def test_a_damaged_object_stays(autojump_clock, caplog):
    async with memory_log(memory_store(), MemoryDisk()) as log:
        await flushed(log, 1)
        await log.store.put(key_of(0, 1).key, [b"what is this?"])
        await collect(log)
        assert await left(log.store) == ["0-0.index", "0-0.kfs", "0-1.kfs"]
        assert "damaged" in caplog.text


async def test_an_orphan_is_deleted_only_when_old_and_seen_for_the_grace_period(autojump_clock):
    async with memory_log(memory_store(), MemoryDisk()) as log:
        await flushed(log, 3)
        await trio.sleep(10 * GRACE_SECONDS)
        log.partition().delete_records(2)
        log.partition().drop_deleted()
        collector = collector_of(log)
        await collector.collect()
        await trio.sleep(GRACE_SECONDS - 10)
        await collector.collect()
        assert await left(log.store) == pairs("0-0", "1-0", "2-0")
        await log.store.put(key_of(1).of_kind("index").key, [b"young"])
        await trio.sleep(10)
        await collector.collect()
        assert await left(log.store) == pairs("1-0", "2-0")
        await trio.sleep(GRACE_SECONDS)
        await collector.collect()
        assert await left(log.store) == pairs("2-0")
        assert collector.deleted_count.value == 2


async def test_an_orphan_is_kept_for_the_topics_longer_delete_delay(autojump_clock):
    topics = [topic_spec(file_delete_delay_ms=10_000_000)]
    async with memory_log(memory_store(), MemoryDisk(), topics=topics) as log:
        await flushed(log, 2)
        log.partition().delete_records(1)
        log.partition().drop_deleted()
        collector = collector_of(log)
        await collector.collect()
        await trio.sleep(9_990)
        await collector.collect()
        assert await left(log.store) == pairs("0-0", "1-0")
        await trio.sleep(10)
        await collector.collect()
        assert await left(log.store) == pairs("1-0")


async def test_only_objects_of_topics_recorded_as_deleted_are_collected(autojump_clock):
    store, unknown, deleted = memory_store(), key_of(0, topic_id=OTHER_ID), Deleted({TOPIC_ID, b"d" * 16})
    async with memory_log(store, MemoryDisk()) as log:
        await flushed(log, 2)
        await store.put(unknown.key, [b"of a topic that the metadata does not know"])
        await store.put("default/t/notes.txt", [b"nothing of ours"])
        await collect(log, deleted)  # an open partition is not deleted, whatever is remembered
        assert len(await keys_of(store)) == 6
        log.log.close_topic("t")
        await collect(log, deleted)
        assert await keys_of(store) == sorted([unknown.key, "default/t/notes.txt"])
        await collect(log, deleted)
    assert deleted.gone[-1] == {TOPIC_ID, b"d" * 16}
    assert deleted.gone[2] == {b"d" * 16}


@pytest.mark.parametrize("operation", ["list", "get*", "delete"])
async def test_a_collection_that_fails_on_a_store_error_is_repeated_at_the_next_check(
    autojump_clock, operation, caplog
):
    store, deleted = FaultyStore(memory_store()), Deleted()
    async with memory_log(store, MemoryDisk()) as log:
        await flushed(log, 2)
        log.partition().delete_records(1)
        log.partition().drop_deleted()
        collector = collector_of(log, deleted)
        await collector.collect()
        await trio.sleep(GRACE_SECONDS + 1)
        store.fail(On(operation, times=1), SlowDown)
        await collector.collect()
        assert "stopped" in caplog.text
        assert len(deleted.gone) == 1
        await collector.collect()
        assert await left(store) == pairs("1-0")


async def test_a_restarted_broker_collects_leftover_objects_of_a_deleted_topic(autojump_clock):
    parts = attrs.evolve(memory_parts(), store=FaultyStore(MemoryStore(clock_ms=clock_ms)))
    settings = memory_settings(orphan_check_interval_seconds=60.0, orphan_grace_seconds=100.0)
    async with memory_broker(parts, settings) as running:
        services = running.broker.services
        await services.topics.create([NewTopic(name="t"), NewTopic(name="kept")])
        for name in ("t", "kept"):
            await append_nowait(services.log.partition_named(name, 0), b"x")[1].wait()
        await services.log.flusher.flush_all()
        parts.store.fail(On("delete"), SlowDown)
        await services.topics.delete(["t"])
    parts.store.heal()
    assert len(await left(parts.store)) == 4
    async with memory_broker(parts, settings):
        await trio.sleep(300)
        keys = await keys_of(parts.store)
        assert len(keys) == 2
        assert all(key.startswith("default/kept/") for key in keys)


async def test_a_broker_forgets_topics_that_were_deleted_a_day_ago(autojump_clock):
    parts, settings = memory_parts(), memory_settings(orphan_check_interval_seconds=60.0)
    now_ms = time.time_ns() // 1_000_000
    ages_hours = {OTHER_ID: 25, TOPIC_ID: 23}
    entries = {
        f"deleted-topics/{topic_id.hex()}": b'{"name": "t", "deleted_ms": %d}' % (now_ms - hours * 3_600_000)
        for topic_id, hours in ages_hours.items()
    }
    await parts.metadata.commit(Transaction(puts=entries))
    async with memory_broker(parts, settings) as running:
        assert set(running.broker.services.topics.deleted) == {OTHER_ID, TOPIC_ID}
        await trio.sleep(70)
        assert set(running.broker.services.topics.deleted) == {TOPIC_ID}
    assert [each.key for each in await parts.metadata.list("deleted-topics/")] == [f"deleted-topics/{TOPIC_ID.hex()}"]
