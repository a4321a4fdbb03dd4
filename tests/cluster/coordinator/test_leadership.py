"""Internal partitions are loaded when they are led here, and resigned before another broker leads them."""

from __future__ import annotations

import attrs
import pytest
import trio

from kafscale.cluster.coordinator.entries import InternalLog, RecordsEntry
from kafscale.cluster.coordinator.loading import Leadership, load
from kafscale.cluster.coordinator.partitions import LedPartitions
from kafscale.config import Durability
from kafscale.log.hand_over import acquire_partition, release_partition
from kafscale.metrics import Metrics
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.control_records import EndMarker
from kafscale.wire.records import ProducerStamp, Record
from tests.devtools.fakes.memory_log import MemoryLog, memory_log, topic_spec
from tests.devtools.fakes.transactions import NOW_MS, abort

TOPIC = "__consumer_offsets"
SPEC = topic_spec(2, name=TOPIC, topic_id=b"c" * 16, cleanup_policy=("compact",))
EVERY_MODE = pytest.mark.parametrize("durability", list(Durability))
NEVER_SECONDS = 1e9


@attrs.define(eq=False)
class State:
    """The records of a partition, as they were applied."""

    partition: int
    records: list[tuple[Record, BatchHeader]] = attrs.field(factory=list)
    markers: list[EndMarker] = attrs.field(factory=list)

    def apply(self, record: Record, header: BatchHeader) -> None:
        self.records.append((record, header))

    def apply_marker(self, marker: EndMarker) -> None:
        self.markers.append(marker)


@attrs.define(eq=False)
class Kept:
    """The states of the partitions that are led here."""

    begun: list[tuple[int, int]] = attrs.field(factory=list)  # index and leader epoch
    resigned: list[int] = attrs.field(factory=list)
    loaded: dict[int, State] = attrs.field(factory=dict)
    led: LedPartitions[State] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.led = LedPartitions(
            topic=TOPIC,
            known_count=lambda: 2,
            new_state=self._begin,
            on_loaded=lambda state: self.loaded.update({state.partition: state}),
            on_resigned=self._resigned,
        )

    def _begin(self, index: int, leader_epoch: int) -> State:
        self.begun.append((index, leader_epoch))
        return State(index)

    def _resigned(self, state: State) -> None:
        self.resigned.append(state.partition)
        self.loaded.pop(state.partition, None)

    def values(self, index: int = 0) -> list[bytes | None]:
        return [record.value for record, _ in self.loaded[index].records]


async def write(log: MemoryLog, *values: bytes, producer: ProducerStamp | None = None) -> None:
    records = [Record(key=value[:1], value=value, timestamp_ms=NOW_MS) for value in values]
    entry = RecordsEntry(log.partition(name=TOPIC), records, producer)
    await (await InternalLog(log.log).append([entry], NOW_MS)).wait()


@EVERY_MODE
@pytest.mark.parametrize("flushes", [False, True])
async def test_a_start_loads_all_records_and_markers_of_led_partitions(autojump_clock, durability, flushes):
    disk, store, kept = MemoryDisk(), MemoryStore(), Kept()
    settings = {"topics": [SPEC], "durability": durability, "flush_interval_seconds": NEVER_SECONDS}
    async with memory_log(store, disk, **settings) as log:
        await write(log, b"a1", b"b1")
        await write(log, b"c1", producer=ProducerStamp(7, 0, -1))
        if flushes:
            await log.log.flusher.flush_all()
        await abort(log.partition(name=TOPIC))
        await write(log, b"a2")
        disk = disk.crash()
    async with memory_log(store, disk, leader_epoch=2, **settings) as log, trio.open_nursery() as nursery:
        leadership = Leadership(log.log, {TOPIC: kept.led})
        await nursery.start(leadership.run)
        assert sorted(kept.begun) == [(0, 2), (1, 2)]
        assert leadership.loading_count == 2
        await leadership.wait_loaded()
        assert kept.values() == [b"a1", b"b1", b"c1", b"a2"]
        in_transaction = [header.producer_id for _, header in kept.loaded[0].records if header.is_transactional]
        assert in_transaction == [7]
        assert [(marker.producer_id, marker.is_commit) for marker in kept.loaded[0].markers] == [(7, False)]
        assert kept.values(1) == []
        nursery.cancel_scope.cancel()


async def test_a_released_partition_is_resigned_and_loaded_again_when_reacquired(autojump_clock):
    kept = Kept()
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[SPEC]) as log, trio.open_nursery() as nursery:
        await nursery.start(Leadership(log.log, {TOPIC: kept.led}).run)
        await write(log, b"a1")
        await release_partition(log.log, log.partition(name=TOPIC))
        assert set(kept.resigned) == {0}
        spec = attrs.evolve(SPEC, leader_epochs={0: 5})
        await acquire_partition(log.log, spec, 0)
        await trio.sleep(1.0)
        assert kept.begun[-1] == (0, 5)
        assert kept.values() == [b"a1"]
        nursery.cancel_scope.cancel()
    assert not log.log.on_opened
    assert not log.log.on_withdrawn


async def test_loading_a_partition_never_finishes_after_its_topic_is_closed(autojump_clock):
    disk, kept = MemoryDisk(), Kept()
    store = FaultyStore(MemoryStore())
    settings = {"topics": [SPEC], "flush_interval_seconds": NEVER_SECONDS}
    async with memory_log(store, disk, **settings) as log:
        await write(log, b"a1")
        await log.log.flusher.flush_all()
        disk = disk.crash()
    async with memory_log(store, disk, leader_epoch=2, **settings) as log, trio.open_nursery() as nursery:
        leadership = Leadership(log.log, {TOPIC: kept.led})
        await nursery.start(leadership.run)
        log.log.close_topic(TOPIC)
        await leadership.wait_loaded()
        await trio.sleep(5.0)
        assert 0 not in kept.loaded
        nursery.cancel_scope.cancel()


async def test_loading_is_retried_after_the_store_fails(autojump_clock):
    disk, kept = MemoryDisk(), Kept()
    store = FaultyStore(MemoryStore())
    settings = {"topics": [SPEC], "flush_interval_seconds": NEVER_SECONDS}
    async with memory_log(store, disk, **settings) as log:
        await write(log, b"a1", b"b1")
        await log.log.flusher.flush_all()
        disk = disk.crash()
    async with memory_log(store, disk, leader_epoch=2, **settings) as log, trio.open_nursery() as nursery:
        leadership = Leadership(log.log, {TOPIC: kept.led})
        store.fail(On("get*", "*.kfs", times=2))
        await nursery.start(leadership.run)
        await leadership.wait_loaded()
        assert kept.begun.count((0, 2)) > 1
        assert kept.values() == [b"a1", b"b1"]
        nursery.cancel_scope.cancel()


async def test_records_deleted_by_retention_during_loading_are_left_out(autojump_clock):
    """Somebody may have a topic of coordinators deleted from, too."""
    disk, kept = MemoryDisk(), Kept()
    store = FaultyStore(MemoryStore())
    settings = {"topics": [SPEC], "flush_interval_seconds": NEVER_SECONDS}
    async with memory_log(store, disk, **settings) as log:
        for value in (b"a1", b"b1", b"c1"):
            await write(log, value)
            await log.log.flusher.flush_all()
        disk = disk.crash()
    async with memory_log(store, disk, leader_epoch=2, **settings) as log, trio.open_nursery() as nursery:
        leadership, partition = Leadership(log.log, {TOPIC: kept.led}), log.partition(name=TOPIC)
        second = partition.manifest.segments[1]
        gate = store.hold(On("get*", second.kfs_key))
        await nursery.start(leadership.run)
        await gate.wait_arrived(1)
        partition.delete_records(2)
        partition.drop_deleted()
        await store.delete([second.kfs_key])
        gate.open()
        await leadership.wait_loaded()
        assert kept.values() == [b"c1"]
        nursery.cancel_scope.cancel()


async def test_records_appended_during_loading_are_loaded(autojump_clock):
    disk = MemoryDisk()
    async with memory_log(MemoryStore(), disk, topics=[SPEC]) as log:
        await write(log, b"a1")
        found = []
        async for batch in load(log.log.reader, log.partition(name=TOPIC)):
            found += [record.value for record in batch.records]
            if len(found) < 4:
                disk.sync_seconds = 1.0
                await write(log, b"b%d" % len(found))
        assert found == [b"a1", b"b1", b"b2", b"b3"]


async def test_a_topic_that_is_not_coordinated_is_not_read(autojump_clock):
    kept = Kept()
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[SPEC]) as log, trio.open_nursery() as nursery:
        leadership = Leadership(log.log, {"__transaction_state": kept.led})
        await nursery.start(leadership.run)
        log.log.close_topic(TOPIC)
        assert (kept.begun, kept.resigned, leadership.loading_count) == ([], [], 0)
        nursery.cancel_scope.cancel()


async def test_an_unreadable_batch_is_skipped_logged_once_and_counted(autojump_clock, caplog):
    kept, metrics = Kept(), Metrics()
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[SPEC]) as log, trio.open_nursery() as nursery:
        partition = log.partition(name=TOPIC)
        await write(log, b"a1")
        batch, round = log.append_nowait(partition, b"damaged")
        view = batch.lease.view if batch.lease is not None else memoryview(b"")
        view[batch.start + batch.size_bytes - len(b"damaged") - 2] = 0xFF  # the length of the value
        await round.wait()
        await write(log, b"b1")
        leadership = Leadership(log.log, {TOPIC: kept.led})
        leadership.register(metrics)
        await nursery.start(leadership.run)
        await leadership.wait_loaded()
        assert kept.values() == [b"a1", b"b1"]
        assert caplog.text.count(f"{TOPIC}-0: skipped 1 unreadable records, the first at offset 1: ") == 1
        assert f'kafscale_internal_records_left_out_total{{topic="{TOPIC}"}} 1\n' in metrics.expose()
        nursery.cancel_scope.cancel()
