"""Topics come and go while the log runs."""

import logging

import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.config import Durability
from kafscale.log.bucket.deletion import BuriedTopic
from kafscale.log.partition.partition import FetchWaiter
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from tests.devtools.fakes.memory_log import TOPIC, TOPIC_ID, memory_log, topic_spec

OTHER_ID = bytes(range(16, 32))


async def test_a_topic_that_grows_keeps_its_partitions_and_gets_its_new_config(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        first = log.partition()
        await log.append(first, b"a")
        log.log.open_topic(topic_spec(3, max_message_bytes=7))
        assert log.partition() is first
        assert [log.partition(index).config.max_message_bytes for index in range(3)] == [7, 7, 7]
        assert log.log.partition(TOPIC_ID, 2) is log.partition(2)
        assert await log.values(first) == [b"a"]


async def test_only_partitions_that_exist_are_found(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        for topic, index in ((TOPIC, 1), (TOPIC, -1), ("other", 0)):
            assert log.log.partition_named(topic, index) is None
        assert log.log.partition(OTHER_ID, 0) is None


async def test_a_topic_closed_during_a_wal_write_frees_its_batches_after_the_write(autojump_clock):
    disk = MemoryDisk(sync_seconds=1.0)
    async with memory_log(MemoryStore(), disk, topics=[topic_spec(), topic_spec(name="o", topic_id=OTHER_ID)]) as log:
        partition = log.partition()
        _, first = log.append_nowait(partition, bytes(1000))
        await wait_all_tasks_blocked()
        _, second = log.append_nowait(partition, bytes(1000))
        _, other = log.append_nowait(log.partition(name="o"), b"stays")
        waiter = FetchWaiter(1 << 30)
        partition.waiters.add(waiter)
        assert log.log.close_topic(TOPIC) == [partition]
        assert waiter.event.is_set()
        assert log.log.pool.used_bytes > 0
        for round in (first, second, other):
            await round.wait()
        assert await log.values(log.partition(name="o")) == [b"stays"]
        assert log.log.journal.pending_count == 1
        await log.log.flusher.flush_all()
        assert log.log.pool.used_bytes == 0
        assert log.log.journal.pending_count == 0


async def test_a_topic_can_be_created_again_under_its_name(autojump_clock):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk()) as log:
        await log.append(log.partition(), b"old")
        await log.log.flusher.flush_all()
        log.log.close_topic(TOPIC)
        log.log.open_topic(topic_spec(topic_id=OTHER_ID))
        await log.append(log.partition(), b"new")
        await log.log.delete_objects(BuriedTopic(name=TOPIC, topic_id=TOPIC_ID))
        await log.log.flusher.flush_all()
        assert await log.values(log.partition()) == [b"new"]


async def test_a_failed_deletion_of_a_topics_objects_is_logged_and_the_objects_stay(autojump_clock, caplog):
    caplog.set_level(logging.INFO)
    store = FaultyStore(MemoryStore())
    store.fail(On("delete"))
    async with memory_log(store, MemoryDisk()) as log:
        await log.append(log.partition(), b"a")
        await log.log.flusher.flush_all()
        log.log.close_topic(TOPIC)
        await log.log.delete_objects(BuriedTopic(name=TOPIC, topic_id=TOPIC_ID))
        assert [record.levelno for record in caplog.records if "deleting the objects of topic t" in record.message] == [
            logging.ERROR
        ]
        store.heal()
        await log.log.delete_objects(BuriedTopic(name=TOPIC, topic_id=TOPIC_ID))
        assert "deleted topic t and its 2 objects" in caplog.text


async def test_closing_a_topic_that_is_not_open_does_nothing(autojump_clock):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        assert log.log.close_topic("other") == []
        await trio.lowlevel.checkpoint()


async def test_data_that_a_start_has_no_memory_for_is_fetched_later(autojump_clock):
    """Batches that memory does not have come before those that it has, as reads and spilling take for granted."""
    store, settings = MemoryStore(), {"durability": Durability.S3_WAL, "flush_interval_seconds": 1e9}
    values = [b"%03d" % number * 5_000 for number in range(120)]
    async with memory_log(store, MemoryDisk(), chunk_pool_bytes=8 << 20, **settings) as log:
        for value in values:
            await log.append(log.partition(), value)
    async with memory_log(store, MemoryDisk(), leader_epoch=2, chunk_pool_bytes=2 << 20, **settings) as log:
        held = [batch.lease is not None for batch in log.partition().tail.batches]
        assert 0 < sum(held) < len(held)
        assert held == sorted(held)
        assert await log.values(log.partition()) == values
        log.partition().spill()
        assert await log.values(log.partition()) == values


async def test_a_batch_that_is_larger_than_the_pool_is_read_back_all_the_same(autojump_clock):
    """A start with a smaller pool, or a broker that took over from one with a larger pool, ended with a ValueError."""
    store, settings = MemoryStore(), {"durability": Durability.S3_WAL, "flush_interval_seconds": 1e9}
    value = bytes(3 << 20)
    async with memory_log(store, MemoryDisk(), chunk_pool_bytes=8 << 20, **settings) as log:
        await log.append(log.partition(), value)
    async with memory_log(store, MemoryDisk(), leader_epoch=2, chunk_pool_bytes=2 << 20, **settings) as log:
        assert log.log.pool.used_bytes == 0
        assert await log.values(log.partition()) == [value]
        await log.log.flusher.flush_all()
        assert await log.values(log.partition()) == [value]
