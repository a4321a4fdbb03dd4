"""Groups of entries: all or nothing is appended, and of what a crash leaves any beginning is legal."""

from __future__ import annotations

import pytest
import trio

from kafscale.cluster.coordinator.entries import EndEntry, Entry, InternalLog, RecordsEntry
from kafscale.config import Durability
from kafscale.errors import KafkaError
from kafscale.log.hand_over import release_partition
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.error_codes import INVALID_PRODUCER_EPOCH, NOT_LEADER_OR_FOLLOWER, TRANSACTION_COORDINATOR_FENCED
from kafscale.wire.records import ProducerStamp, Record
from tests.devtools.fakes.memory_log import MemoryLog, memory_log, topic_spec
from tests.devtools.fakes.transactions import NOW_MS, marker_of, read_committed, send

STATE, DATA = "__transaction_state", "t"
TOPICS = (
    topic_spec(2, name=STATE, topic_id=b"s" * 16, cleanup_policy=("compact",)),
    topic_spec(3, name=DATA, topic_id=b"d" * 16),
)
ONE_LOG = pytest.mark.parametrize("durability", [Durability.WAL, Durability.S3_WAL])
EVERY_MODE = pytest.mark.parametrize("durability", list(Durability))
NEVER_SECONDS = 1e9


def state(log: MemoryLog, *values: bytes, index: int = 0) -> RecordsEntry:
    records = [Record(key=b"id", value=value, timestamp_ms=NOW_MS) for value in values]
    return RecordsEntry(log.partition(index, name=STATE), records)


def end(log: MemoryLog, index: int, *, coordinator_epoch: int = 1) -> EndEntry:
    return EndEntry(log.partition(index, name=DATA), marker_of(True, coordinator_epoch=coordinator_epoch))


def group_of(log: MemoryLog) -> list[Entry]:
    return [state(log, b"prepared"), end(log, 0), end(log, 1), state(log, b"complete")]


async def states(log: MemoryLog) -> list[bytes | None]:
    return await log.values(log.partition(name=STATE))


@EVERY_MODE
async def test_awaited_entries_survive_a_crash(autojump_clock, durability):
    disk, store = MemoryDisk(), MemoryStore()
    async with memory_log(store, disk, topics=TOPICS, durability=durability) as log:
        internal = InternalLog(log.log)
        appended = await internal.append([state(log, b"one", b"two")], NOW_MS)
        await appended.wait()
        assert appended.is_durable
        disk = disk.crash()
    async with memory_log(store, disk, topics=TOPICS, durability=durability, leader_epoch=2) as log:
        assert await states(log) == [b"one", b"two"]


@ONE_LOG
async def test_a_group_takes_one_round_of_the_journal(autojump_clock, durability):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS, durability=durability) as log:
        for index in (0, 1):
            await send(log.partition(index, name=DATA), b"mine")
        internal = InternalLog(log.log)
        appended = internal.append_group(group_of(log), NOW_MS)
        assert appended is not None
        assert not appended.is_durable
        rounds = {log.partition(index, name=DATA).latest_round for index in (0, 1)}
        assert rounds == {appended.round} == {log.partition(name=STATE).latest_round}
        await appended.wait()
        assert await read_committed(log, log.partition(1, name=DATA)) == [b"mine"]
        assert await states(log) == [b"prepared", b"complete"]


async def test_a_crash_leaves_a_beginning_of_a_group(autojump_clock):
    found = set()
    for torn_bytes in range(0, 2_000, 40):
        disk, store = MemoryDisk(), MemoryStore()
        settings = {"topics": TOPICS, "flush_interval_seconds": NEVER_SECONDS}
        async with memory_log(store, disk, **settings) as log:
            for index in (0, 1):
                await send(log.partition(index, name=DATA), b"mine")
            disk.sync_seconds = 100.0
            assert InternalLog(log.log).append_group(group_of(log), NOW_MS) is not None
            await trio.sleep(1.0)
            torn = disk.crash(torn_bytes=torn_bytes)
            disk.sync_seconds = 0.0
        async with memory_log(store, torn, leader_epoch=2, **settings) as log:
            ended = sum(not log.partition(index, name=DATA).transactions.open for index in (0, 1))
            found.add((tuple(await states(log)), ended))
    beginnings = {
        ((), 0),
        ((b"prepared",), 0),
        ((b"prepared",), 1),
        ((b"prepared",), 2),
        ((b"prepared", b"complete"), 2),
    }
    assert found <= beginnings
    assert len(found) > 2


async def test_without_memory_for_all_nothing_happens(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS, chunk_pool_bytes=2 << 20) as log:
        await send(log.partition(0, name=DATA), b"mine")
        await send(log.partition(1, name=DATA), b"mine")
        await log.log.flusher.flush_all()
        pool, internal = log.log.pool, InternalLog(log.log)
        lease = await pool.acquire(pool.size_bytes - 3 * (16 << 10))
        used_bytes = pool.used_bytes
        group = [*group_of(log), state(log, b"elsewhere", index=1)]
        assert internal.append_group(group, NOW_MS) is None
        assert pool.used_bytes == used_bytes
        assert await states(log) == []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(internal.append, group, NOW_MS)
            await trio.sleep(1.0)
            assert log.partition(name=STATE).next_offset == 0
            lease.release()
        assert log.partition(name=STATE).next_offset == 2


async def test_a_fenced_marker_keeps_all_of_its_group_out(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS) as log:
        await send(log.partition(0, name=DATA), b"mine")
        internal = InternalLog(log.log)
        await (await internal.append([end(log, 0, coordinator_epoch=5)], NOW_MS)).wait()
        await send(log.partition(0, name=DATA), b"mine", sequence=1)
        used_bytes, next_offset = log.log.pool.used_bytes, log.partition(0, name=DATA).next_offset
        with pytest.raises(KafkaError, check=lambda exc: exc.code == TRANSACTION_COORDINATOR_FENCED):
            internal.append_group([state(log, b"prepared"), end(log, 0, coordinator_epoch=4)], NOW_MS)
        assert (log.log.pool.used_bytes, log.partition(0, name=DATA).next_offset) == (used_bytes, next_offset)
        assert await states(log) == []


async def test_a_late_marker_of_an_older_epoch_is_skipped_without_an_error(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS) as log:
        partition = log.partition(0, name=DATA)
        await send(partition, b"of the next transaction", epoch=5)
        internal, marker = InternalLog(log.log), marker_of(True, epoch=4)
        late = EndEntry(partition, marker, may_be_late=True)
        await (await internal.append([state(log, b"prepared"), late, state(log, b"complete")], NOW_MS)).wait()
        assert await states(log) == [b"prepared", b"complete"]
        assert partition.next_offset == 1
        with pytest.raises(KafkaError, check=lambda exc: exc.code == INVALID_PRODUCER_EPOCH):
            internal.append_group([EndEntry(partition, marker)], NOW_MS)


async def test_a_repeated_marker_is_not_appended_again_and_waits_for_the_first(autojump_clock):
    disk = MemoryDisk()
    async with memory_log(MemoryStore(), disk, topics=TOPICS) as log:
        await send(log.partition(0, name=DATA), b"mine")
        disk.sync_seconds = 5.0
        internal = InternalLog(log.log)
        internal.append_group([end(log, 0)], NOW_MS)
        again = internal.append_group([end(log, 0)], NOW_MS)
        assert again is not None
        assert not again.is_durable
        await again.wait()
        assert log.partition(0, name=DATA).high_watermark == log.partition(0, name=DATA).next_offset == 2
        done = internal.append_group([end(log, 0)], NOW_MS)
        assert done is not None
        assert done.is_durable


async def test_records_of_a_transaction_are_held_back_until_its_marker(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS) as log:
        internal, partition = InternalLog(log.log), log.partition(2, name=DATA)
        record = Record(key=b"group", value=b"offset", timestamp_ms=NOW_MS)
        await (await internal.append([RecordsEntry(partition, [record], ProducerStamp(7, 0, -1))], NOW_MS)).wait()
        assert (partition.last_stable_offset, partition.high_watermark) == (0, 1)
        await (await internal.append([end(log, 2)], NOW_MS)).wait()
        assert await read_committed(log, partition) == [b"offset"]


async def test_a_partition_that_has_left_is_refused(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk(), topics=TOPICS) as log:
        entry = state(log, b"late")
        await release_partition(log.log, entry.partition)
        with pytest.raises(KafkaError, check=lambda exc: exc.code == NOT_LEADER_OR_FOLLOWER):
            InternalLog(log.log).append_group([entry], NOW_MS)


async def test_an_append_delayed_by_a_full_disk_becomes_durable_when_space_returns(autojump_clock):
    disk, store = MemoryDisk(), FaultyStore(MemoryStore())
    async with memory_log(store, disk, topics=TOPICS, wal_segment_bytes=256 << 10) as log:
        internal = InternalLog(log.log)
        store.hold(On("put*"))  # or the file of what is flushed would be used again
        disk.free_bytes = 0
        while not log.log.journal.is_full:
            appended = internal.append_group([state(log, bytes(100_000))], NOW_MS)
            await trio.sleep(1.0)
        assert appended is not None
        assert internal.append_group([state(log, b"late")], NOW_MS) is None
        await trio.sleep(120.0)  # the journal has told those who wait that it can't say when
        assert not appended.is_durable
        with trio.move_on_after(10.0) as patience:
            await appended.wait()
        assert patience.cancelled_caught
        disk.heal()
        await appended.wait()
        assert appended.is_durable
