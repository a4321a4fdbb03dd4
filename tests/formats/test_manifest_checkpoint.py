"""Checkpoints of the manifests: what a start need not read because of them, and that it comes to the same without."""

from __future__ import annotations

import random
from itertools import pairwise

import attrs
import pytest
import trio
import trio.testing
from crc32c import crc32c

from kafscale.config import Durability
from kafscale.errors import DamagedObject
from kafscale.formats.log_end import PRODUCERS_MAX_COUNT, LogEnd
from kafscale.formats.manifest_checkpoint import _HEADER, HEADER_BYTES, MAGIC, VERSION, decode_manifests
from kafscale.formats.segment import EpochStart
from kafscale.formats.transactions import OpenTransaction, Producer
from kafscale.log.bucket.manifest_keeper import FIRST_AFTER_SECONDS, INTERVAL_SECONDS, encode_manifests
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey, system_prefix
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.records import ProducerStamp
from tests.devtools.fakes.memory_log import TOPIC, TOPIC_ID, MemoryLog, memory_log, merge_segments, topic_spec

STAMPS = {"now_ms": 1 << 50}
READS = ("get", "get_tail", "get_range", "head")


def key_at(base_offset: int, generation: int = 0, partition: int = 0, epoch: int = 1) -> SegmentKey:
    return SegmentKey(
        topic=TOPIC, topic_id=TOPIC_ID, partition=partition, base_offset=base_offset, epoch=epoch, generation=generation
    )


async def flush(log: MemoryLog, *values: bytes, partition: int = 0) -> None:
    await log.append(log.partition(partition), *values)
    await log.log.flusher.flush_all()


async def checkpoint_keys(store) -> list[str]:
    return [info.key async for page in store.list(system_prefix("manifests")) for info in page]


def state_of(log: MemoryLog, index: int = 0):
    """All that a start is to find."""
    partition = log.partition(index)
    unread = {"max_timestamp_ms": 0, "size_bytes": 0, "stable_end": 0, "aborted_count": 0}
    return (
        [attrs.evolve(segment, **unread) for segment in partition.manifest.segments],
        (partition.log_start_offset, partition.flushed_offset, partition.high_watermark, partition.next_offset),
        {each.producer_id: (each.epoch, list(each.batches)) for each in partition.producers.producers.values()},
        partition.epochs,
        partition.quarantined,
    )


async def written(store, disk, **settings) -> None:
    """Three partitions with two segments each, and a checkpoint of them."""
    async with memory_log(store, disk, topics=[topic_spec(3)], **settings) as log:
        for index in range(3):
            for number in range(2):
                stamp = ProducerStamp(index, 0, number)
                await log.append(log.partition(index), b"%d" % number, producer=stamp, **STAMPS)
                await log.log.flusher.flush_all()
        await log.log.manifest_checkpointer.write_if_changed()


# ---- what it saves --------------------------------------------------------------------------------------------------


async def test_with_a_checkpoint_a_start_reads_nothing_but_that(autojump_clock) -> None:
    store, disk = FaultyStore(MemoryStore()), MemoryDisk()
    await written(store, disk)
    before = store.count("*")
    async with memory_log(store, disk.crash(), topics=[topic_spec(3)], leader_epoch=2) as log:
        assert [call.operation for call in store.calls[before:] if call.operation != "list"] == ["get"]
        assert log.log.restored.vouched_segment_count == 6
        assert await log.values(log.partition(2)) == [b"0", b"1"]
        assert log.partition(2).producers.producers[2].batches[-1].last_sequence == 1


async def test_only_segments_newer_than_the_checkpoint_are_read(autojump_clock) -> None:
    store, disk = FaultyStore(MemoryStore()), MemoryDisk()
    await written(store, disk)
    async with memory_log(store, disk, topics=[topic_spec(3)], leader_epoch=2) as log:
        await flush(log, b"2", partition=1)
        disk = disk.crash()
    before = len(store.calls)
    async with memory_log(store, disk, topics=[topic_spec(3)], leader_epoch=3) as log:
        read = [call.keys[0] for call in store.calls[before:] if call.operation in READS]
        assert read[1:] == [
            key_at(2, partition=1, epoch=2).key,
            key_at(2, partition=1, epoch=2).of_kind("index").key,
        ]
        assert await log.values(log.partition(1)) == [b"0", b"1", b"2"]


async def test_the_number_of_requests_of_a_start_does_not_grow_with_the_partitions(autojump_clock) -> None:
    """500 partitions of two segments: two pages of a listing side by side, and the checkpoint."""
    store, disk = FaultyStore(MemoryStore()), MemoryDisk()
    topics = [topic_spec(500)]
    async with memory_log(store, disk, topics=topics, chunk_pool_bytes=16 << 20) as log:
        for number in range(2):
            for index in range(500):
                log.append_nowait(log.partition(index), b"%d" % number)
            await trio.testing.wait_all_tasks_blocked()
            await log.log.flusher.flush_all()
        await log.log.manifest_checkpointer.write_if_changed()
        disk = disk.crash()
    before = len(store.calls)
    async with memory_log(store, disk, topics=topics, leader_epoch=2) as log:
        calls = [call.operation for call in store.calls[before:]]
        assert calls.count("get") == 1
        assert set(calls) == {"get", "list"}
        assert calls.count("list") <= 40  # 17 ranges, each a page and its end, and the checkpoints'
        assert log.log.restored.vouched_segment_count == 1000
        assert await log.values(log.partition(499)) == [b"0", b"1"]


async def test_a_checkpoint_is_written_after_a_start_and_after_each_change(autojump_clock, nursery) -> None:
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk()) as log:
        checkpointer = log.log.manifest_checkpointer
        nursery.start_soon(checkpointer.run)
        await trio.sleep(FIRST_AFTER_SECONDS + INTERVAL_SECONDS)
        assert await checkpoint_keys(store) == []  # of nothing, none
        await flush(log, b"a")
        await trio.sleep(3 * INTERVAL_SECONDS)
        assert len(await checkpoint_keys(store)) == 1
        assert checkpointer.written_bytes == len((await store.get((await checkpoint_keys(store))[0])).data)
        await flush(log, b"b")
        await trio.sleep(3 * INTERVAL_SECONDS)
        assert len(await checkpoint_keys(store)) == 2
        nursery.cancel_scope.cancel()


async def test_an_outage_of_the_store_is_waited_for(autojump_clock, nursery, caplog) -> None:
    store = FaultyStore(MemoryStore())
    async with memory_log(store, MemoryDisk()) as log:
        await flush(log, b"a")
        nursery.start_soon(log.log.manifest_checkpointer.run)
        store.fail(On("put_if_absent", times=1))
        await trio.sleep(FIRST_AFTER_SECONDS + 2 * INTERVAL_SECONDS)
        assert len(await checkpoint_keys(store)) == 1
        nursery.cancel_scope.cancel()
    assert "no newer checkpoint yet" in caplog.text


async def test_a_partition_with_very_many_producers_is_not_vouched_for(autojump_clock) -> None:
    store, disk = FaultyStore(MemoryStore()), MemoryDisk()
    async with memory_log(store, disk) as log:
        for producer_id in range(PRODUCERS_MAX_COUNT + 1):
            await log.append(log.partition(), b"x", producer=ProducerStamp(producer_id, 0, 0), **STAMPS)
        await log.log.flusher.flush_all()
        await log.log.manifest_checkpointer.write_if_changed()
        disk = disk.crash()
    async with memory_log(store, disk, leader_epoch=2) as log:
        assert len(log.partition().producers.producers) == PRODUCERS_MAX_COUNT + 1
        assert log.log.restored.footer_read_count == 1


# ---- damaged checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "cut off", "empty", "future", "gone", "foreign"])
async def test_a_damaged_checkpoint_costs_only_time(autojump_clock, damage, caplog) -> None:
    store, disk = FaultyStore(MemoryStore()), MemoryDisk()
    await written(store, disk)
    disk = disk.crash()
    async with memory_log(store, disk, topics=[topic_spec(3)], leader_epoch=2) as log:
        with_checkpoint = [state_of(log, index) for index in range(3)]
    (key,) = await checkpoint_keys(store)
    content = bytearray((await store.get(key)).data)
    if damage == "gone":
        await store.delete([key])
    elif damage == "foreign":  # of another namespace, put here by hand
        other = MemoryStore()
        spec = topic_spec(3, name="other", topic_id=bytes(16))
        async with memory_log(other, MemoryDisk(), topics=[spec], namespace="elsewhere") as log:
            await log.append(log.partition(name="other"), b"x")
            await log.log.flusher.flush_all()
            await store.put(key, await encode_manifests([log.partition(name="other")]))
    elif damage == "future":
        header = _HEADER.pack(MAGIC, 4, 0, 5)
        await store.put(key, [header, crc32c(b"later", crc32c(header)).to_bytes(4, "big"), b"later"])
    else:
        content[len(content) // 2] ^= 1
        await store.put(key, [{"flipped": content, "cut off": content[:-1], "empty": b""}[damage]])
    async with memory_log(store, disk, topics=[topic_spec(3)], leader_epoch=2) as log:
        assert [state_of(log, index) for index in range(3)] == with_checkpoint
        assert log.log.restored.vouched_segment_count == 0
        assert log.log.restored.footer_read_count == 3
    assert caplog.text.count("ignoring a damaged checkpoint") == (damage not in ("gone", "foreign"))
    assert ("version 4" in caplog.text) == (damage == "future")


async def test_the_one_before_a_damaged_one_is_used(autojump_clock) -> None:
    store, disk = FaultyStore(MemoryStore()), MemoryDisk()
    async with memory_log(store, disk) as log:
        await flush(log, b"a")
        await log.log.manifest_checkpointer.write_if_changed()
        await flush(log, b"b")
        await log.log.manifest_checkpointer.write_if_changed()
        disk = disk.crash()
    await store.put((await checkpoint_keys(store))[1], [b"damaged"])
    async with memory_log(store, disk, leader_epoch=2) as log:
        assert log.log.restored.vouched_segment_count == 1
        assert await log.values(log.partition()) == [b"a", b"b"]


async def test_every_flipped_or_missing_byte_is_found() -> None:
    store, disk = MemoryStore(), MemoryDisk()
    async with memory_log(store, disk) as log:
        await flush(log, b"a")
        content = b"".join(await encode_manifests([log.partition()]))
    assert set(decode_manifests("k", content)) == {(TOPIC_ID, 0)}
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        with pytest.raises(DamagedObject, match="the-key"):
            decode_manifests("the-key", damaged)
        with pytest.raises(DamagedObject, match="the-key"):
            decode_manifests("the-key", content[:position])


async def test_a_manifest_checkpoint_of_a_wrong_length_is_refused() -> None:
    """The checksum is good: a broker has been told it by whoever may send heartbeats."""
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        await flush(log, b"a")
        content = b"".join(await encode_manifests([log.partition()]))
    body = content[HEADER_BYTES:]
    for wrong in (body[:-1], body + b"x", b""):
        header = _HEADER.pack(MAGIC, VERSION, 1, len(wrong))
        checksum = crc32c(wrong, crc32c(header)).to_bytes(4, "big")
        with pytest.raises(DamagedObject, match="the-key"):
            decode_manifests("the-key", header + checksum + wrong)


def test_the_end_of_a_log_comes_back() -> None:
    end = LogEnd(7, [Producer(1, 2, [], 3)], [EpochStart(0, 0), EpochStart(4, 5)])
    back = LogEnd.decode(end.encode())
    assert back is not None
    assert (back.last_offset, list(back.epochs)) == (7, list(end.epochs))
    assert [producer.producer_id for producer in back.producers] == [1]
    assert LogEnd.decode(b"") is None


def test_a_log_end_keeps_open_transactions_and_the_last_stable_offset() -> None:
    fenced = Producer(1, 2, [], 3, coordinator_epoch=9)
    transactions = (OpenTransaction(1, 2, 4, 9), OpenTransaction(6, 0, 5))
    end = LogEnd(7, [fenced, Producer(2, 0, [], 3)], [EpochStart(4, 5)], open_transactions=transactions)
    back = LogEnd.decode(end.encode())
    assert back == end
    assert (end.stable_end, LogEnd(7, [], []).stable_end) == (4, 8)


# ---- objects that have changed since --------------------------------------------------------------------------------


async def test_an_object_that_was_replaced_since_is_read(autojump_clock) -> None:
    """Put back from a copy, say: what it holds is what the checkpoint says, or not."""
    store, disk = FaultyStore(MemoryStore()), MemoryDisk()
    await written(store, disk)
    content = bytes((await store.get(key_at(1).key)).data)
    await store.put(key_at(1).key, [content])
    async with memory_log(store, disk.crash(), topics=[topic_spec(3)], leader_epoch=2) as log:
        assert log.log.restored.vouched_segment_count == 5
        assert log.log.restored.footer_read_count == 1
        assert await log.values(log.partition()) == [b"0", b"1"]


@pytest.mark.parametrize("base_offset", [0, 1])
async def test_an_index_that_was_lost_or_cut_off_since_is_written_again(autojump_clock, base_offset) -> None:
    for damage in (None, b"", b"cut"):
        store, disk = FaultyStore(MemoryStore()), MemoryDisk()
        await written(store, disk)
        key = key_at(base_offset).of_kind("index").key
        before = bytes((await store.get(key)).data)
        await store.delete([key])
        if damage is not None:
            await store.put(key, [damage])
        async with memory_log(store, disk.crash(), topics=[topic_spec(3)], leader_epoch=2) as log:
            assert bytes((await store.get(key)).data) == before
            assert log.log.restored.footer_read_count == 1


@pytest.mark.parametrize("durability", [Durability.WAL, Durability.SEGMENT])
async def test_a_missing_last_segment_is_logged_and_its_offsets_are_not_reused(
    autojump_clock, durability, caplog
) -> None:
    store = FaultyStore(MemoryStore())
    await written(store, MemoryDisk(), durability=durability)
    await store.delete([key_at(1).key, key_at(1).of_kind("index").key])
    for epoch in (2, 3):
        async with memory_log(
            store, MemoryDisk(), topics=[topic_spec(3)], leader_epoch=epoch, durability=durability
        ) as log:
            partition = log.partition()
            assert partition.high_watermark == 2
            assert await log.values(partition) == [b"0"]
            assert log.log.restored.missing_segment_count == 1
    assert caplog.text.count("offsets 1 to 1 of partition 0 of topic t are missing") == 2


async def test_segments_deleted_or_merged_since_are_not_missing(autojump_clock, caplog) -> None:
    store, disk = FaultyStore(MemoryStore()), MemoryDisk()
    async with memory_log(store, disk) as log:
        for number in range(6):
            await flush(log, b"%d" % number)
        await log.log.manifest_checkpointer.write_if_changed()
        await merge_segments(log, [2, 3])
        disk = disk.crash()
    gone = [key_at(base_offset) for base_offset in (0, 1, 2, 3)]
    await store.delete([each.of_kind(kind).key for each in gone for kind in ("kfs", "index")])
    async with memory_log(store, disk, topics=[topic_spec(log_start_offsets={0: 2})], leader_epoch=2) as log:
        assert await log.values(log.partition(), 2) == [b"2", b"3", b"4", b"5"]
        assert log.log.restored.missing_segment_count == 0
    assert "missing" not in caplog.text.replace("has no .index", "")


# ---- any history ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
async def test_restored_with_a_checkpoint_of_any_time_a_log_is_the_same_as_without(autojump_clock, seed) -> None:
    """Flushes, merges, deletions, restarts and checkpoints in any order."""
    chance = random.Random(seed)
    store, disk = MemoryStore(), MemoryDisk()
    sequences = [0, 0]
    log_start_offset = 0
    for epoch in range(1, chance.randrange(2, 5)):
        topics = [topic_spec(2, log_start_offsets={0: log_start_offset})]
        async with memory_log(store, disk, topics=topics, leader_epoch=epoch) as log:
            for _ in range(chance.randrange(12)):
                step = chance.choice(["append", "append", "flush", "flush", "checkpoint", "merge", "delete"])
                partition = log.partition(chance.randrange(2))
                if step == "append":
                    stamp = ProducerStamp(partition.index, 0, sequences[partition.index])
                    await log.append(partition, b"%d" % partition.next_offset, producer=stamp, **STAMPS)
                    sequences[partition.index] += 1
                elif step == "flush":
                    await log.log.flusher.flush_all()
                elif step == "checkpoint":
                    await log.log.manifest_checkpointer.write_if_changed()
                elif step == "merge":
                    await merge_some(log, chance)
                else:
                    log_start_offset = chance.randint(log_start_offset, log.partition().flushed_offset)
                    log.partition().delete_records(log_start_offset)
                    dropped = log.partition().drop_deleted()
                    await store.delete([key for each in dropped for key in (each.kfs_key, each.index_key)])
            disk = disk.crash()
    states = []
    for keep_checkpoints in (True, False):
        if not keep_checkpoints:
            await store.delete(await checkpoint_keys(store))
        topics = [topic_spec(2, log_start_offsets={0: log_start_offset})]
        async with memory_log(store, disk, topics=topics, leader_epoch=9) as log:
            values = [await log.values(log.partition(index), log.partition(index).log_start_offset) for index in (0, 1)]
            states.append([values, state_of(log, 0), state_of(log, 1)])
    assert states[0] == states[1]
    assert states[0][0][0] == [b"%d" % offset for offset in range(log_start_offset, log.partition().next_offset)]


async def merge_some(log: MemoryLog, chance: random.Random) -> None:
    """Neighbours of generation 0, in the bucket and, or not yet, in the manifest; the sources may go."""
    manifest = log.partition().manifest
    flushed = [segment for segment in manifest.segments if not segment.generation]
    start = chance.randrange(len(flushed) + 1)
    sources = flushed[start : start + 3]
    if len(sources) < 2 or any(a.last_offset + 1 != b.base_offset for a, b in pairwise(sources)):
        return
    merged = await merge_segments(log, [each.base_offset for each in sources])
    if chance.random() < 0.7:
        manifest.replace(sources, merged)
        if chance.random() < 0.7:
            await log.store.delete([key for each in sources for key in (each.kfs_key, each.index_key)])


async def test_a_partition_changed_during_encoding_is_encoded_in_its_earlier_state(autojump_clock, monkeypatch) -> None:
    """Its segments used to be encoded in one go, however many; now others run between them, and may merge some."""
    monkeypatch.setattr("kafscale.log.bucket.manifest_keeper.SLICE_COUNT", 2)
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        for value in (b"a", b"b", b"c", b"d", b"e"):
            await flush(log, value)
        partition, encoded = log.partition(), []
        before = b"".join(await encode_manifests([partition]))

        async def encode() -> None:
            encoded.append(b"".join(await encode_manifests([partition])))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(encode)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            assert not encoded
            partition.replace_segments(partition.manifest.segments, await merge_segments(log, range(5)))
            await flush(log, b"f")
        assert encoded == [before]
        assert b"".join(await encode_manifests([partition])) != before
