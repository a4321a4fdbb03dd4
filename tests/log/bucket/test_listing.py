import random

import attrs
import pytest
import trio

from kafscale.log.bucket.listing import RANGES_MAX_COUNT, list_segments
from kafscale.store.base import LIST_PAGE_MAX_COUNT, ForwardingStore
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey, partition_prefix
from tests.devtools.fakes.segment_objects import version_1_key

WRITERS_COUNT = 50


def key_at(partition: int, base_offset: int, *, topic: int = 0, generation: int = 0) -> SegmentKey:
    return SegmentKey(
        topic=f"topic-{topic}",
        topic_id=bytes([topic]) * 16,
        partition=partition,
        base_offset=base_offset,
        generation=generation,
    )


def prefix_of(topic: int, partition: int) -> str:
    return partition_prefix(f"topic-{topic}", bytes([topic]) * 16, partition)


@attrs.define(eq=False)
class CountingStore(ForwardingStore):
    """Remembers where each listing began."""

    begun: list[str] = attrs.field(factory=list)

    def list(self, prefix, *, start_after=""):
        self.begun.append(start_after)
        return self.store.list(prefix, start_after=start_after)


async def store_of(keys, *, indexes=None) -> CountingStore:
    """Made by several tasks: a round of the event loop for each of tens of thousands of objects takes seconds."""
    store = MemoryStore()
    objects = [(key, b"x" * (key.base_offset % 7)) for key in keys]
    objects += [(key.of_kind("index"), b"x") for key in (keys if indexes is None else indexes)]

    async def put(some) -> None:
        for key, content in some:
            await store.put(key.key, [content])

    async with trio.open_nursery() as nursery:
        for first in range(WRITERS_COUNT):
            nursery.start_soon(put, objects[first::WRITERS_COUNT])
    return CountingStore(store)


async def listed_keys(store, prefixes=()):
    found = await list_segments(store, "default", lambda _: None, prefixes=prefixes)
    names = []
    for partition_id, listed in found.items():
        assert all((each.key.topic_id, each.key.partition) == partition_id for each in listed)
        of_partition = [each.key.key for each in listed]
        assert of_partition == sorted(of_partition)
        names += of_partition
    return sorted(names)


@pytest.mark.parametrize("seed", range(20))
async def test_a_listing_in_any_number_of_slices_finds_the_same_segments(seed):
    """Few of some partitions and pages of others; halves missing; prefixes of partitions that have nothing."""
    chance = random.Random(seed)
    keys = [
        key_at(partition, offset, topic=topic, generation=chance.choice([0, 0, 1]))
        for topic in range(3)
        for partition in range(chance.choice([1, 12, 30]))
        for offset in range(chance.choice([0, 1, 40, chance.choice([0, 700])]))
    ]
    keys += [version_1_key("topic-1", 0, offset) for offset in range(chance.choice([0, 30]))]
    indexes = [key for key in keys if chance.random() > 0.1]
    lost = set(chance.sample(indexes, len(indexes) // 20))
    keys = [key for key in keys if key not in lost]
    store = await store_of(keys, indexes=indexes)
    prefixes = [prefix_of(topic, partition) for topic in range(4) for partition in range(0, 40, chance.choice([1, 7]))]
    chance.shuffle(prefixes)
    assert await listed_keys(store, prefixes) == sorted(key.key for key in keys)
    found = await list_segments(store, "default", lambda _: None, prefixes=prefixes)
    halves = {key.key for key in indexes}
    for listed in found.values():
        for each in listed:
            assert each.object_size_bytes == each.key.base_offset % 7
            assert each.index_size_bytes == (1 if each.key.key in halves else None)


async def test_an_index_on_the_page_before_its_kfs_is_matched_with_its_kfs():
    keys = [key_at(0, offset) for offset in range(LIST_PAGE_MAX_COUNT)]
    for without_index in (0, 1):
        store = await store_of(keys, indexes=keys[without_index:])
        for prefixes in ([], [prefix_of(0, 0)], [prefix_of(0, 1)]):
            found = await list_segments(store, "default", lambda _: None, prefixes=prefixes)
            (listed,) = found.values()
            assert [each.has_index for each in listed] == [each.base_offset >= without_index for each in keys]


async def test_one_page_is_one_request_and_many_are_listed_side_by_side(caplog):
    few = [key_at(partition, 0) for partition in range(400)]
    prefixes = [prefix_of(0, partition) for partition in range(4000)]
    store = await store_of(few)
    await listed_keys(store, prefixes)
    assert store.begun == [""]
    store = await store_of([key_at(partition, 0) for partition in range(4000)])
    await listed_keys(store, prefixes)
    assert len(store.begun) == 1 + RANGES_MAX_COUNT
    assert len(set(store.begun)) == 1 + RANGES_MAX_COUNT


async def test_an_index_without_its_kfs_is_logged_and_ignored(caplog):
    store = await store_of([key_at(0, 0)], indexes=[key_at(0, 0), key_at(0, 5), key_at(1, 5)])
    assert await listed_keys(store) == [key_at(0, 0).key]
    assert [record.message for record in caplog.records] == ["2 .index objects have no .kfs; they are ignored"]


async def test_a_fingerprint_changes_with_size_and_content():
    told = set()
    store = await store_of([])
    for content in (b"a", b"b", b"aa"):
        await store.put(key_at(0, 0).key, [content])
        ((listed,),) = (await list_segments(store, "default", lambda _: None)).values()
        told.add(listed.fingerprint)
    assert len(told) == 3
    assert 0 not in told
