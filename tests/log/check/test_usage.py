"""What topics take, and which bytes of it nobody reads any more."""

import pytest

from kafscale.formats.wal_entries import FileHeader, WalEntry, encode, encode_file_header
from kafscale.log.check.usage import find_deletable, measure_usage, pending_bytes
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import NumberedKey, SegmentKey
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.segment_objects import make_batches, version_2_objects

TOPIC_ID = bytes(range(16))


def segment(base_offset, batches, *, generation=0, partition=0):
    key = SegmentKey(
        topic="orders", topic_id=TOPIC_ID, partition=partition, base_offset=base_offset, generation=generation
    )
    return version_2_objects(key, make_batches(base_offset, batches))  # of 3 records each


def size(objects):
    return len(objects.kfs) + len(objects.index)


async def measured(*objects, log_start_offsets=None):
    store = MemoryStore()
    for each in objects:
        await each.put(store)
    usage = await measure_usage(store, "default", lambda _: None)
    (topic,) = usage.topics
    await find_deletable(store, topic, log_start_offsets or {})
    assert topic.size_bytes == sum(map(size, objects))
    return topic.deletable_bytes


async def test_segments_that_are_read_are_not_deletable():
    assert await measured(segment(0, 2), segment(6, 1), segment(0, 1, partition=1)) == 0


async def test_segments_covered_by_a_merged_one_are_deletable():
    first, second, last = segment(0, 2), segment(6, 1), segment(9, 1)
    assert await measured(first, second, last, segment(0, 3, generation=1)) == size(first) + size(second)


async def test_all_but_the_last_segment_below_the_log_start_are_deletable():
    first, last = segment(0, 2), segment(6, 1)
    assert await measured(first, last, log_start_offsets={0: 6}) == size(first)
    assert await measured(first, last, log_start_offsets={0: 5}) == 0
    assert await measured(first, last, log_start_offsets={0: 9}) == size(first)


async def test_a_merged_segment_that_is_damaged_covers_nothing_and_is_kept():
    store = MemoryStore()
    merged = segment(0, 3, generation=1)
    for each in (segment(0, 2), segment(6, 1), segment(9, 1)):
        await each.put(store)
    await store.put(merged.key.key, [merged.kfs[:-1]])
    (topic,) = (await measure_usage(store, "default", lambda _: None)).topics
    await find_deletable(store, topic, {})
    assert topic.deletable_bytes == 0


async def test_the_brokers_own_objects_are_counted_apart():
    store = MemoryStore()
    await store.put(NumberedKey(kind="wal", epoch=1, number=1).key, [b"12345"])
    await store.put(NumberedKey(kind="checkpoint", epoch=1, number=1).key, [b"123"])
    usage = await measure_usage(store, "default", lambda _: None)
    assert (usage.topics, usage.wal_object_count, usage.wal_bytes, usage.own_bytes) == ([], 1, 5, 3)


@pytest.mark.parametrize(("is_there", "expected"), [(True, 1), (False, 3)])
async def test_wal_entries_after_the_last_segment_count_as_pending_bytes(is_there, expected):
    """The last segment may be merged, and deleted, after it was listed: `kafscale storage` failed then."""
    store, disk = MemoryStore(), MemoryDisk()
    flushed = segment(0, 2)
    await flushed.put(store)
    batches = make_batches(0, 3)
    data = encode_file_header(FileHeader(number=1, sequence=1, salt=9, created_ms=0, started=True))
    for number, batch in enumerate(batches):
        entry = WalEntry(TOPIC_ID, 0, 0, 3 * number, batch)
        entry.sequence = number + 1
        data += b"".join(encode([entry], durable_sequence=number, salt=9))
    await disk.create(f"wal-{1:020d}.log", len(data), data)
    usage = await measure_usage(store, "default", lambda _: None)
    if not is_there:
        await store.delete([flushed.key.key, flushed.key.of_kind("index").key])
    assert await pending_bytes(store, usage, disk) == {TOPIC_ID: expected * len(batches[0])}
