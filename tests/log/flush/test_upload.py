"""One flush: two objects at once, and what is done about an object that is there already."""

import pytest
import trio
import trio.testing

from kafscale.config import Durability, Limits
from kafscale.errors import Fenced, StoreUnavailable
from kafscale.formats.footer_reading import read_footer, read_index
from kafscale.formats.segment import body_crc, encode_footer
from kafscale.log.bucket.deletion import BuriedTopic
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.records import ProducerStamp
from tests.devtools.fakes.memory_log import NOW_MS, TOPIC, TOPIC_ID, MemoryLog, memory_log

SEGMENT = Durability.SEGMENT
KFS, INDEX = On("put*", "*.kfs"), On("put*", "*.index")


def key_at(base_offset: int, epoch: int = 1) -> SegmentKey:
    return SegmentKey(topic=TOPIC, topic_id=TOPIC_ID, partition=0, base_offset=base_offset, epoch=epoch)


async def flush(log: MemoryLog) -> None:
    """One flush of the first partition, without the flusher."""
    plan = log.partition().prepare_flush()
    assert plan is not None
    await log.log.flusher.uploader.flush(log.partition(), plan)


async def assert_pair_is_whole(store, base_offset: int, last_offset: int, *, epoch: int = 1) -> None:
    """Both halves are there, tell the same, and the batches are those that the footer was made for."""
    key = key_at(base_offset, epoch)
    footer = await read_footer(store, key)
    assert await read_index(store, key) == footer
    assert footer.last_offset == last_offset
    content = memoryview((await store.get(key.key)).data)
    assert body_crc([content[32 : footer.end_position]]) == footer.identity.body_crc
    index = (await store.get(key.of_kind("index").key)).data
    assert bytes(index) == bytes(content[footer.end_position :]) == encode_footer(footer)


async def test_both_objects_are_written_at_once(autojump_clock):
    store = FaultyStore(MemoryStore())
    store.delay(KFS, 3.0)
    store.delay(INDEX, 2.0)
    async with memory_log(store, MemoryDisk()) as log:
        await log.append(log.partition(), b"a", b"b")
        began = trio.current_time()
        await flush(log)
        assert trio.current_time() - began == 3.0
        await assert_pair_is_whole(store, 0, 1)
        assert store.count("get*") <= 4
        assert await log.values(log.partition()) == [b"a", b"b"]
        assert log.log.pool.used_bytes == 0


@pytest.mark.parametrize("after_effect", [False, True])
@pytest.mark.parametrize("key", ["*.kfs", "*.index"])
async def test_an_upload_that_hangs_is_given_up_and_done_again(key, after_effect, autojump_clock):
    store = FaultyStore(MemoryStore())
    store.hold(On("put*", key, times=1), after_effect=after_effect)
    limits = Limits(store_upload_deadline_seconds=30)
    async with memory_log(store, MemoryDisk(), limits=limits, flush_interval_seconds=3600) as log:
        await log.append(log.partition(), b"a")
        began = trio.current_time()
        with pytest.raises(StoreUnavailable, match="30 s"):
            await flush(log)
        assert trio.current_time() - began == pytest.approx(30)
        await flush(log)
        await assert_pair_is_whole(store, 0, 0)
        assert log.partition().flushed_offset == 1


async def test_appends_and_fetches_go_on_during_an_upload(autojump_clock):
    store = FaultyStore(MemoryStore())
    gate = store.hold(On("put*"))
    async with memory_log(store, MemoryDisk()) as log, trio.open_nursery() as nursery:
        partition = log.partition()
        await log.append(partition, b"a")
        nursery.start_soon(flush, log)
        await gate.wait_arrived(2)
        await log.append(partition, b"b")
        assert await log.values(partition) == [b"a", b"b"]
        partition.spill()
        assert await log.values(partition) == [b"a", b"b"]
        gate.open()
    assert (partition.flushed_offset, partition.high_watermark) == (1, 2)
    await assert_pair_is_whole(store, 0, 0)


async def test_a_footer_stores_the_producers_sequences(autojump_clock):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk()) as log:
        await log.append(log.partition(), b"a", producer=ProducerStamp(4, 2, 9), now_ms=2 * NOW_MS)
        await flush(log)
    (producer,) = (await read_footer(store, key_at(0))).producers
    assert (producer.producer_id, producer.epoch, producer.batches[0].base_sequence) == (4, 2, 9)


@pytest.mark.parametrize("lost", [KFS, INDEX, On("put*")])
async def test_a_flush_with_a_lost_reply_succeeds_at_the_next_attempt(autojump_clock, lost):
    store = FaultyStore(MemoryStore())
    store.lose_reply(lost)
    async with memory_log(store, MemoryDisk()) as log:
        await log.append(log.partition(), b"a")
        with pytest.raises(StoreUnavailable):
            await flush(log)
        store.heal()
        await flush(log)
        await assert_pair_is_whole(store, 0, 0)
        assert log.partition().flushed_offset == 1


async def test_a_shorter_segment_of_an_earlier_attempt_is_kept_and_the_rest_flushed_next(autojump_clock):
    store = FaultyStore(MemoryStore())
    store.lose_reply(KFS)
    async with memory_log(store, MemoryDisk()) as log:
        await log.append(log.partition(), b"a")
        with pytest.raises(StoreUnavailable):
            await flush(log)
        store.heal()
        await log.append(log.partition(), b"b")
        await flush(log)
        assert log.partition().flushed_offset == 1
        await flush(log)
        await assert_pair_is_whole(store, 0, 0)
        await assert_pair_is_whole(store, 1, 1)
        assert await log.values(log.partition()) == [b"a", b"b"]
        assert log.log.pool.used_bytes == 0
        assert log.log.journal.pending_count == 0


async def test_an_index_left_by_an_attempt_without_kfs_is_replaced(autojump_clock):
    store = FaultyStore(MemoryStore())
    store.delay(KFS, 1.0)
    store.fail(KFS)
    async with memory_log(store, MemoryDisk()) as log:
        await log.append(log.partition(), b"a")
        with pytest.raises(StoreUnavailable):
            await flush(log)
        assert await read_index(store, key_at(0)) is not None
        store.heal()
        await log.append(log.partition(), b"b")
        await flush(log)
        await assert_pair_is_whole(store, 0, 1)


@pytest.mark.parametrize("first", ["older", "newer"])
async def test_two_brokers_that_believe_they_lead_write_different_objects(autojump_clock, first):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), leader_epoch=1) as old:
        await old.append(old.partition(), b"old")
        async with memory_log(store, MemoryDisk(), leader_epoch=2) as new:
            await new.append(new.partition(), b"new", b"er")
            for log in (old, new) if first == "older" else (new, old):
                await flush(log)
            assert await new.values(new.partition()) == [b"new", b"er"]
        await assert_pair_is_whole(store, 0, 0)
        await assert_pair_is_whole(store, 0, 1, epoch=2)


async def test_other_records_of_the_same_epoch_are_nobodys_to_write_over(autojump_clock):
    """As after the claim was deleted by hand, so that two brokers got the same epoch."""
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), leader_epoch=2) as log:
        await log.append(log.partition(), b"mine")
        async with memory_log(store, MemoryDisk(), leader_epoch=2) as other:
            await other.append(other.partition(), b"theirs")
            await flush(other)
        with pytest.raises(Fenced, match="other records"):
            await flush(log)
        assert log.partition().flushed_offset == 0


async def test_under_segment_durability_the_same_records_of_before_the_restart_are_acknowledged(autojump_clock):
    bucket = MemoryStore()
    store = FaultyStore(bucket)
    store.lose_reply(On("put_if_absent", "*.kfs", times=1))
    async with memory_log(store, MemoryDisk(), durability=SEGMENT) as log:
        await log.append(log.partition(), b"a")
        await assert_pair_is_whole(bucket, 0, 0)
        assert await log.append(log.partition(), b"b") == 1


@pytest.mark.parametrize("durability", [Durability.WAL, SEGMENT])
@pytest.mark.parametrize("written_before", [False, True])
async def test_a_partition_that_is_closed_during_its_upload_is_left_alone(autojump_clock, durability, written_before):
    bucket = MemoryStore()
    store = FaultyStore(bucket)
    gate = store.hold(On("put*"))
    async with memory_log(store, MemoryDisk(), leader_epoch=2, durability=durability) as log:
        log.append_nowait(log.partition(), b"a")
        flushing = log.log.flusher
        async with trio.open_nursery() as nursery:
            if durability is Durability.WAL:
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(flushing.flush_all)
            await gate.wait_arrived(2)
            if written_before:
                async with memory_log(bucket, MemoryDisk(), leader_epoch=1) as other:
                    await other.append(other.partition(), b"theirs", b"too")
                    await flush(other)
            log.log.close_topic(TOPIC)
            nursery.start_soon(log.log.delete_objects, BuriedTopic(name=TOPIC, topic_id=TOPIC_ID))
            await trio.testing.wait_all_tasks_blocked()
            gate.open()
        assert [page async for page in bucket.list("")] == []
        assert log.log.pool.used_bytes == 0


class HookedDisk(MemoryDisk):
    """Does something before the next read."""

    before_read = None

    async def read(self, name, position, length_bytes):
        if self.before_read is not None:
            self.before_read()
        return await super().read(name, position, length_bytes)


async def test_a_partition_that_is_closed_while_an_earlier_attempt_is_looked_at_is_left_alone(autojump_clock):
    store, disk = FaultyStore(MemoryStore()), HookedDisk()
    store.lose_reply(On("put*", "*.kfs", times=1))
    async with memory_log(store, disk) as log:
        await log.append(log.partition(), b"a")
        log.partition().spill()
        with pytest.raises(StoreUnavailable):
            await flush(log)
        await log.append(log.partition(), b"b")

        async def close_at_the_next_read(call) -> None:
            disk.before_read = lambda: log.log.close_topic(TOPIC)

        partition = log.partition()
        store.rule(On("get_tail"), close_at_the_next_read)
        await flush(log)
        assert partition.closed
        assert partition.flushed_offset == 0
        assert log.log.pool.used_bytes == 0
        assert log.log.journal.pending_count == 0


async def test_batches_that_gave_up_their_chunks_are_uploaded_from_the_wal(autojump_clock):
    store = MemoryStore()
    async with memory_log(store, MemoryDisk()) as log:
        for value in (b"a", b"b", b"c", b"d"):
            await log.append(log.partition(), value)
            if value != b"c":
                log.partition().spill()
        assert [batch.lease is None for batch in log.partition().tail.batches] == [True, True, True, True]
        await log.append(log.partition(), b"e")
        await flush(log)
        await assert_pair_is_whole(store, 0, 4)
        assert log.log.pool.used_bytes == 0
        assert log.log.journal.pending_count == 0


async def test_a_cancelled_upload_holds_nothing(autojump_clock):
    store = FaultyStore(MemoryStore())
    store.hold(On("put*"))
    async with memory_log(store, MemoryDisk()) as log:
        await log.append(log.partition(), bytes(1000))
        with trio.move_on_after(1):
            await flush(log)
        log.log.close_topic(TOPIC)
        assert log.log.pool.used_bytes == 0
        assert log.log.journal.pending_count == 0
