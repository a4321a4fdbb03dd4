"""A cache keeps the values that were used last."""

from __future__ import annotations

from kafscale.lru import LruCache


def test_the_value_used_longest_ago_is_dropped_for_room() -> None:
    dropped: list[str] = []
    cache = LruCache[int, str](2, on_drop=dropped.append)
    cache.put(1, "one")
    cache.put(2, "two")
    assert cache.get(1) == "one"
    cache.put(3, "three")
    assert dropped == ["two"]
    assert (cache.get(2), len(cache)) == (None, 2)
    assert cache.pop_all() == ["one", "three"]


def test_the_cache_is_bounded_by_size_but_keeps_an_oversized_newest_value() -> None:
    cache = LruCache[int, bytes](10, len)
    cache.put(1, b"x" * 6)
    cache.put(1, b"x" * 4)
    cache.put(2, b"x" * 6)
    assert cache.size == 10
    cache.put(3, b"x" * 100)
    assert (cache.get(1), cache.get(2), cache.size) == (None, None, 100)
    assert cache.pop(3) == b"x" * 100
    assert (cache.pop(3), cache.size) == (None, 0)
