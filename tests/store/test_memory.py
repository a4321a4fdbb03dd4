import time
from contextlib import aclosing

import trio

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


async def test_it_keeps_no_reference_to_what_it_was_given():
    store = MemoryStore()
    chunk = bytearray(b"before")
    await store.put("key", [memoryview(chunk)])
    chunk[:] = b"after!"
    assert (await store.get("key")).data == b"before"


async def test_it_works_under_an_autojump_clock(autojump_clock):
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
