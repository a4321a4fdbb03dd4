import threading
import time
from contextlib import aclosing

import pytest
import trio
import trio.testing

from kafscale.errors import PreconditionFailed
from kafscale.store import memory
from kafscale.store.blocks import BLOCK_BYTES, fill
from kafscale.store.memory import MemoryStore


async def keys_of(store):
    async with aclosing(store.list("")) as pages:
        return [info.key async for page in pages for info in page]


async def test_the_oldest_writes_are_dropped_past_the_limit():
    store = MemoryStore(max_bytes=10)
    for key in ("c", "b", "a"):
        await store.put(key, [b"1234"])
    assert await keys_of(store) == ["a", "b"]
    assert store.used_bytes == 8
    await store.put("b", [b"123456"])  # now the newest
    await store.put("d", [b"1234"])
    assert await keys_of(store) == ["b", "d"]
    await store.put("e", [b"x" * 100])  # alone larger than the limit
    assert await keys_of(store) == ["e"]
    await store.delete(["e"])
    assert store.used_bytes == 0


async def test_etags_only_grow():
    store = MemoryStore()
    etags = [int(await store.put("key", [b"same"])) for _ in range(5)]
    assert etags == sorted(set(etags))


async def test_the_memory_store_copies_the_stored_bytes():
    store = MemoryStore()
    chunk = bytearray(b"before")
    await store.put("key", [memoryview(chunk)])
    chunk[:] = b"after!"
    assert (await store.get("key")).data == b"before"


async def test_the_memory_store_works_under_an_autojump_clock(autojump_clock):
    store = MemoryStore(clock_ms=lambda: int(trio.current_time() * 1000))
    before = time.monotonic()
    await store.put("first", [b""])
    await trio.sleep(3600)
    await store.put("second", [b""])
    assert (await store.head("second")).modified_ms - (await store.head("first")).modified_ms == 3_600_000
    assert time.monotonic() - before < 60


async def test_a_listing_sees_writes_between_its_pages():
    store = MemoryStore()
    for number in range(1500):
        await store.put(f"{number:05d}", [])
    async with aclosing(store.list("")) as pages:
        first = await anext(pages)
        await store.delete(["00000", "00999", "01200"])
        await store.put("01100x", [])
        rest = [info.key async for page in pages for info in page]
    assert len(first) == 1000
    assert rest == sorted([f"{number:05d}" for number in range(1000, 1500) if number != 1200] + ["01100x"])


async def test_bytes_already_read_survive_the_reuse_of_their_memory():
    store = MemoryStore(max_bytes=2 * BLOCK_BYTES)
    await store.put("old", [bytearray(b"o" * BLOCK_BYTES), b"o"])
    part = await store.get_range("old", BLOCK_BYTES - 10, 20)
    for key in ("new", "newer"):
        await store.put(key, [bytearray(b"n" * BLOCK_BYTES), b"n"])
    assert bytes(part.data) == b"o" * 11
    assert await keys_of(store) == ["newer"]


async def test_a_refused_write_gives_its_memory_back():
    store = MemoryStore(max_bytes=10 * BLOCK_BYTES)
    await store.put("key", [b"1"])
    for _ in range(3):
        with pytest.raises(PreconditionFailed):
            await store.put_if_absent("key", [bytes(3 * BLOCK_BYTES)])
    assert len(store.blocks) == 3


async def test_a_write_that_is_cancelled_while_another_one_is_copied_gives_its_memory_back(monkeypatch):
    store = MemoryStore(max_bytes=10 * BLOCK_BYTES)
    may_copy = threading.Event()
    monkeypatch.setattr(memory, "fill", lambda content, parts: may_copy.wait() and fill(content, parts))

    async def put(key):
        await store.put(key, [bytes(3 * BLOCK_BYTES)])

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(put, "one")
            nursery.start_soon(put, "other")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            may_copy.set()
    (kept,) = await keys_of(store)  # what a thread has begun is done
    assert len(store.blocks) == 3
    await store.delete([kept])
    assert len(store.blocks) == 6


async def test_a_copy_has_the_same_objects_and_then_changes_independently():
    store = MemoryStore(clock_ms=lambda: 7)
    await store.put("a", [b"old"])
    await store.put("a", [b"one"])
    await store.put("b", [b"two"])
    copy = store.copy()
    assert [info async for page in copy.list("") for info in page] == [
        info async for page in store.list("") for info in page
    ]
    assert bytes((await copy.get("a")).data) == b"one"
    assert copy.used_bytes == store.used_bytes
    await store.delete(["b"])
    await store.put("c", [b"three"])
    assert [info.key async for page in copy.list("") for info in page] == ["a", "b"]
    await copy.put_if_match("b", [b"four"], (await copy.head("b")).etag)
    assert (await copy.head("b")).etag == (await store.head("c")).etag
