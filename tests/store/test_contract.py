"""What every object store does, whatever it is made of. A store joins by an entry in conftest.STORES."""

import os
from contextlib import aclosing, suppress
from itertools import chain, pairwise

import pytest
import trio

from kafscale.errors import Conflict, NotFound, PreconditionFailed, RangeNotSatisfiable
from kafscale.store.base import LIST_PAGE_MAX_COUNT

ODD_KEYS = [
    "a/b",
    "a-b",  # sorts before it
    "dir/a b+c%20&d=e?f#g",
    "dir/ü-umlaut",
    "dir/日本語/キー",
    "dir/😀",  # after U+FFFD in UTF-8, before it in UTF-16
    "dir/\ufffd",
    "dir/~tilde'quote\"(paren)*star!",
    "dir/back\\slash;semi,comma:colon@at$dollar",
    "dir/<xml>&amp;",
    "dir./..dots/...",
    "x/" + "n" * 200,
]


async def listed(store, prefix="", start_after=""):
    async with aclosing(store.list(prefix, start_after=start_after)) as pages:
        return [info.key async for page in pages for info in page]


async def content(store, key):
    return bytes((await store.get(key)).data)


async def test_get_returns_the_bytes_and_etag_of_a_put(store):
    etag = await store.put("a/b/c", [b"one ", bytearray(b"two "), memoryview(b"_three_")[1:-1]])
    part = await store.get("a/b/c")
    assert bytes(part.data) == b"one two three"
    assert part.object_size_bytes == 13
    assert part.etag == etag


async def test_head_returns_the_same_info_as_get_and_list(store):
    etag = await store.put("a/b", [b"12345"])
    info = await store.head("a/b")
    assert (info.key, info.size_bytes, info.etag) == ("a/b", 5, etag)
    assert info.modified_ms > 1_600_000_000_000
    async with aclosing(store.list("a/")) as pages:
        assert [list(page) async for page in pages] == [[info]]


async def test_an_empty_object_is_an_object(store):
    await store.put("empty", [])
    assert await content(store, "empty") == b""
    assert (await store.head("empty")).size_bytes == 0
    tail = await store.get_tail("empty", 10)
    assert (bytes(tail.data), tail.object_size_bytes) == (b"", 0)
    with pytest.raises(RangeNotSatisfiable):
        await store.get_range("empty", 0, 1)


async def test_a_missing_object_is_not_found(store):
    await store.put("there/is", [b"something"])
    for key in ("missing", "there", "there/is/not", "there/i"):
        for call in (store.get(key), store.get_range(key, 0, 1), store.get_tail(key, 1), store.head(key)):
            with pytest.raises(NotFound):
                await call


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [(0, 4, b"0123"), (3, 1, b"3"), (4, 100, b"456789"), (9, 1, b"9"), (0, 10, b"0123456789")],
)
async def test_a_range_is_cut_at_the_end_of_the_object(store, start, length, expected):
    etag = await store.put("digits", [b"0123456789"])
    part = await store.get_range("digits", start, length)
    assert (bytes(part.data), part.object_size_bytes, part.etag) == (expected, 10, etag)


@pytest.mark.parametrize("start", [10, 11, 1000])
async def test_a_range_that_starts_past_the_end_is_refused(store, start):
    await store.put("digits", [b"0123456789"])
    with pytest.raises(RangeNotSatisfiable):
        await store.get_range("digits", start, 1)


@pytest.mark.parametrize(("length", "expected"), [(1, b"9"), (4, b"6789"), (10, b"0123456789"), (99, b"0123456789")])
async def test_a_tail_is_the_last_bytes_or_all(store, length, expected):
    etag = await store.put("digits", [b"0123456789"])
    part = await store.get_tail("digits", length)
    assert (bytes(part.data), part.object_size_bytes, part.etag) == (expected, 10, etag)


async def test_a_large_object_of_many_parts_is_whole(store):
    data = os.urandom(9 * 1024 * 1024 + 17)
    cuts = [0, 1, 1000, 1000, 5_000_001, 5_000_002, len(data)]
    parts = [memoryview(data)[start:end] for start, end in pairwise(cuts)]
    small = [data[index : index + 3] for index in range(0, 9000, 3)]  # more than one writev takes
    await store.put("large", [*parts, *small])
    expected = data + data[:9000]
    assert await content(store, "large") == expected
    assert bytes((await store.get_range("large", 4_999_999, 1_000_000)).data) == expected[4_999_999:5_999_999]
    assert bytes((await store.get_tail("large", 65536)).data) == expected[-65536:]


async def test_put_replaces_and_changes_the_etag(store):
    first = await store.put("key", [b"old"])
    second = await store.put("key", [b"new"])
    assert first != second
    part = await store.get("key")
    assert (bytes(part.data), part.etag) == (b"new", second)


async def test_the_same_content_at_two_keys_is_two_objects(store):
    await store.put("one", [b"same"])
    await store.put("two", [b"same"])
    await store.delete(["one"])
    assert await content(store, "two") == b"same"


async def test_put_if_absent_writes_once(store):
    etag = await store.put_if_absent("key", [b"first"])
    with pytest.raises(PreconditionFailed):
        await store.put_if_absent("key", [b"second"])
    part = await store.get("key")
    assert (bytes(part.data), part.etag) == (b"first", etag)
    await store.delete(["key"])
    await store.put_if_absent("key", [b"third"])
    assert await content(store, "key") == b"third"


async def test_put_if_match_replaces_only_an_object_with_the_given_etag(store):
    first = await store.put("key", [b"1"])
    second = await store.put_if_match("key", [b"2"], first)
    assert second != first
    with pytest.raises(PreconditionFailed):
        await store.put_if_match("key", [b"stale"], first)
    part = await store.get("key")
    assert (bytes(part.data), part.etag) == (b"2", second)


async def test_put_if_match_of_a_missing_object_fails(store):
    etag = await store.put("key", [b"1"])
    await store.delete(["key"])
    with pytest.raises(PreconditionFailed):
        await store.put_if_match("key", [b"2"], etag)
    assert await listed(store) == []


async def test_of_six_concurrent_put_if_absent_one_wins(store):
    outcomes = await contest(lambda number: store.put_if_absent("key", [b"writer %d" % number]))
    [winner] = [number for number, won in outcomes.items() if won]
    assert await content(store, "key") == b"writer %d" % winner


async def test_of_six_concurrent_put_if_match_one_wins(store):
    etag = await store.put("key", [b"before"])
    outcomes = await contest(lambda number: store.put_if_match("key", [b"writer %d" % number], etag))
    [winner] = [number for number, won in outcomes.items() if won]
    assert await content(store, "key") == b"writer %d" % winner


async def contest(write):
    """Six concurrent writers; who won."""
    outcomes = {}

    async def attempt(number):
        while number not in outcomes:
            with suppress(Conflict):  # nothing is decided yet
                try:
                    await write(number)
                    outcomes[number] = True
                except PreconditionFailed:
                    outcomes[number] = False

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(attempt, number)
    assert len(outcomes) == 6
    return outcomes


async def test_odd_keys_hold_objects_and_are_listed_in_byte_order(store):
    for number, key in enumerate(ODD_KEYS):
        await store.put(key, [b"%d" % number])
    for number, key in enumerate(ODD_KEYS):
        assert await content(store, key) == b"%d" % number
    assert await listed(store) == sorted(ODD_KEYS, key=str.encode)


@pytest.mark.parametrize(
    "key", ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a/./b", "a\0b", "a\nb", "a" * 1025, "\ud800"]
)
async def test_a_key_that_not_every_store_can_hold_is_refused(store, key):
    for call in (store.put(key, [b""]), store.put_if_absent(key, [b""]), store.get(key), store.delete([key])):
        with pytest.raises(ValueError, match=r"key|surrogates"):
            await call


async def test_a_listing_has_the_prefix_and_comes_after(store):
    keys = ["a", "b-", "b/1", "b/10", "b/2", "b/2-", "b/2x/c", "b/2x/d", "b0", "c/b/1"]
    for key in keys:
        await store.put(key, [b""])
    for prefix in ("", "a", "b", "b/", "b/1", "b/2", "b/2x", "b/2x/", "b/2x/d", "c", "c/", "nothing/of/this", "d"):
        for start_after in ("", "a", "b", "b.", "b/", "b/10", "b/2", "b/2x", "b/2x/", "b/2x/c", "b/2x/cc", "b0", "d"):
            expected = sorted(key for key in keys if key.startswith(prefix) and key > start_after)
            assert await listed(store, prefix, start_after) == expected, (prefix, start_after)


async def test_a_long_listing_comes_in_pages(store):
    keys = sorted(f"many/{number % 7}/{number:06d}" for number in range(LIST_PAGE_MAX_COUNT + 5))
    async with trio.open_nursery() as nursery:
        for start in range(16):
            nursery.start_soon(put_empty, store, keys[start::16])
    async with aclosing(store.list("many/")) as pages:
        got = [[info.key for info in page] async for page in pages]
    assert [len(page) for page in got] == [LIST_PAGE_MAX_COUNT, 5]
    assert list(chain(*got)) == keys
    async with aclosing(store.list("many/")) as pages:
        assert len(await anext(pages)) == LIST_PAGE_MAX_COUNT  # and leave early

    await store.delete([*keys, "many/never/was"])
    assert await listed(store) == []


async def put_empty(store, keys):
    for key in keys:
        await store.put(key, [])


async def test_deleting_is_idempotent_and_frees_the_key(store):
    await store.put("a/b/c", [b"1"])
    await store.put("a/b/d", [b"2"])
    await store.delete(["a/b/c", "a", "never/was"])
    await store.delete(["a/b/c"])
    await store.delete([])
    assert await listed(store) == ["a/b/d"]
    with pytest.raises(NotFound):
        await store.get("a/b/c")
    await store.delete(["a/b/d"])
    await store.put("a/b", [b"3"])  # was a prefix, is a key
    assert await listed(store) == ["a/b"]


async def test_a_cancelled_write_is_all_or_nothing(store):
    old, new = b"old" * 1_000_000, b"new" * 1_000_000
    for steps in range(12):
        for number, write in enumerate((store.put, store.put_if_absent)):
            key = f"cancelled/{steps}/{number}"
            if write == store.put:
                await store.put(key, [old])
            await cancelled_after(steps, write, key, [new])
            found = [await content(store, key)] if key in await listed(store, key) else []
            assert found in ([[old], [new]] if write == store.put else [[], [new]])
    await store.put("cancelled/after", [b"works"])
    assert await content(store, "cancelled/after") == b"works"


async def cancelled_after(steps, write, *args):
    """Call `write` and cancel it once the scheduler has gone round `steps` times."""
    async with trio.open_nursery() as nursery:

        async def call():
            await write(*args)
            nursery.cancel_scope.cancel()

        nursery.start_soon(call)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
