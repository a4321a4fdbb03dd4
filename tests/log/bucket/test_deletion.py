"""Dropped segments stay for a while, and then both of their objects go."""

import logging

import trio

from kafscale.errors import SlowDown
from kafscale.formats.manifest import Segment
from kafscale.log.bucket.deletion import FAILED_DELETION_PAUSE_SECONDS, Deleter
from kafscale.log.read.footers import Footers
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.testing.faulty_store import FaultyStore, On


def segment(base_offset: int) -> Segment:
    key = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=base_offset)
    return Segment(key=key, last_offset=base_offset, size_bytes=1, max_timestamp_ms=0)


async def stored(store, *base_offsets: int) -> list[Segment]:
    segments = [segment(base_offset) for base_offset in base_offsets]
    for each in segments:
        await store.put(each.kfs_key, [b"x"])
        await store.put(each.index_key, [b"x"])
    return segments


async def keys(store) -> list[str]:
    return [info.key async for page in store.list("") for info in page]


def deleter_of(store) -> Deleter:
    return Deleter(store=store, footers=Footers(store, 1 << 20))


async def test_dropped_segments_are_deleted_each_after_its_delay(autojump_clock, nursery):
    store = MemoryStore()
    first, second, kept = await stored(store, 0, 1, 2)
    deleter = deleter_of(store)
    nursery.start_soon(deleter.run)
    deleter.drop([second], 60_000)
    await trio.sleep(1)
    deleter.drop([first], 10_000)
    await trio.sleep(9)
    assert len(await keys(store)) == 6
    await trio.sleep(2)
    assert await keys(store) == [key for each in (second, kept) for key in (each.index_key, each.kfs_key)]
    await trio.sleep(60)
    assert await keys(store) == [kept.index_key, kept.kfs_key]
    assert (deleter.waiting_count, deleter.deleted_count.value) == (0, 2)


async def test_a_deletion_that_fails_is_tried_again(autojump_clock, nursery, caplog):
    store = FaultyStore(MemoryStore())
    dropped = await stored(store, 0, 1)
    store.fail(On("delete", times=1), SlowDown)
    deleter = deleter_of(store)
    nursery.start_soon(deleter.run)
    deleter.drop(dropped, 0)
    await trio.sleep(FAILED_DELETION_PAUSE_SECONDS - 1)
    assert len(await keys(store)) == 4
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    await trio.sleep(2)
    assert await keys(store) == []
    assert (deleter.failed_count.value, deleter.deleted_count.value) == (1, 2)


async def test_a_kill_between_both_deletions_leaves_only_an_unused_index(autojump_clock, nursery):
    store = FaultyStore(MemoryStore())
    dropped = await stored(store, 0)
    gate = store.hold(On("delete", "*.index"))
    deleter = deleter_of(store)
    nursery.start_soon(deleter.run)
    deleter.drop(dropped, 0)
    await gate.wait_arrived(1)
    assert await keys(store) == [dropped[0].index_key]


async def test_more_than_one_request_takes_are_deleted_in_several(autojump_clock, nursery):
    store = MemoryStore()
    dropped = await stored(store, *range(1201))
    deleter = deleter_of(store)
    nursery.start_soon(deleter.run)
    deleter.drop(dropped, 1000)
    await trio.sleep(2)
    assert await keys(store) == []
    assert deleter.deleted_count.value == 1201
