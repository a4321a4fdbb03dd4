"""A cache that drops the least recently used values, by their number or size. Imports nothing of KafScale."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import attrs

K = TypeVar("K")
V = TypeVar("V")


@attrs.define(eq=False, repr=False)
class LruCache(Generic[K, V]):
    """Values by key, whose sizes are at most `max_size` together; the newest stays, however large it is.

    A value's size must not change; each counts one by default. `on_drop` gets a value dropped for room.
    """

    max_size: int
    size_of: Callable[[V], int] = lambda _value: 1
    on_drop: Callable[[V], object] = lambda _value: None
    size: int = attrs.field(default=0, init=False)
    _values: OrderedDict[K, V] = attrs.field(factory=OrderedDict, init=False)  # used longest ago first

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def get(self, key: K) -> V | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        self.pop(key)
        self._values[key] = value
        self.size += self.size_of(value)
        while self.size > self.max_size and len(self._values) > 1:
            _, oldest = self._values.popitem(last=False)
            self.size -= self.size_of(oldest)
            self.on_drop(oldest)

    def pop(self, key: K) -> V | None:
        value = self._values.pop(key, None)
        if value is not None:
            self.size -= self.size_of(value)
        return value

    def pop_all(self) -> list[V]:
        values = list(self._values.values())
        self._values.clear()
        self.size = 0
        return values
