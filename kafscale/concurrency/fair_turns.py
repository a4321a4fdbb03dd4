"""Work that owners, such as clients or addresses, take turns at. May not import anything of KafScale."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")


class Crowded(Exception):
    """Too many tasks wait already."""


@attrs.define(eq=False, repr=False)
class FairQueue(Generic[T]):
    """A queue from which owners are served in turn: the one served last comes after all others.

    The items of one owner keep their order.
    """

    _by_owner: dict[Hashable, deque[T]] = attrs.field(factory=dict, init=False)  # the next owner first
    _count: int = attrs.field(default=0, init=False)
    _last_owner: Hashable = attrs.field(default=None, init=False)

    def __len__(self) -> int:
        return self._count

    def append(self, owner: Hashable, item: T) -> None:
        """Add an item behind the others of its owner."""
        self._by_owner.setdefault(owner, deque()).append(item)
        self._count += 1

    def pop(self) -> tuple[Hashable, T]:
        """Remove and return the next item and its owner. The queue must not be empty."""
        others = (owner for owner in self._by_owner if owner != self._last_owner)
        owner = self._last_owner = next(others, self._last_owner)
        items = self._by_owner.pop(owner)
        if len(items) > 1:
            self._by_owner[owner] = items  # behind all other owners
        self._count -= 1
        return owner, items.popleft()

    def skip(self, owner: Hashable) -> None:
        """Count an owner as the one served last, as it was served past the queue."""
        self._last_owner = owner

    def remove(self, owner: Hashable, item: T) -> None:
        """Remove an item that is in the queue."""
        items = self._by_owner[owner]
        items.remove(item)
        if not items:
            del self._by_owner[owner]
        self._count -= 1

    def pop_newest_of_largest(self, owner: Hashable) -> T | None:
        """Make room for an item of `owner`: remove and return the newest one of the owner that has the most.

        None, and nothing is removed, if `owner` would then have as many as that owner.
        """
        largest = max(self._by_owner, key=lambda other: len(self._by_owner[other]))
        if len(self._by_owner[largest]) <= len(self._by_owner.get(owner, ())) + 1:
            return None
        newest = self._by_owner[largest][-1]
        self.remove(largest, newest)
        return newest


@attrs.define(eq=False, repr=False)
class _Waiter:
    woken: trio.Event = attrs.field(factory=trio.Event, init=False)
    has_turn: bool = attrs.field(default=False, init=False)  # else it was crowded out


@attrs.define(eq=False, repr=False)
class FairTurns:
    """At most `count` turns are held at once, and owners take turns at them.

    A task that gives up its turn between pieces of its work lets another owner's task work after each piece, however
    many tasks wait for one owner. When `waiting_max_count` tasks wait, the newest task of the owner with the most
    waiting tasks gets Crowded: a flood from one owner crowds out only itself.
    """

    count: int = 1
    waiting_max_count: float = math.inf
    _held_count: int = attrs.field(default=0, init=False)
    _waiting: FairQueue[_Waiter] = attrs.field(factory=FairQueue, init=False)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self, owner: Hashable) -> AsyncIterator[None]:
        """Wait for a turn and hold it for the block. Always a checkpoint. Raises Crowded if too many tasks wait."""
        if self._held_count < self.count:
            self._held_count += 1
            self._waiting.skip(owner)
            try:
                await trio.lowlevel.checkpoint()
            except BaseException:
                self._pass_on()
                raise
        else:
            await self._wait(owner)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, owner: Hashable) -> None:
        if len(self._waiting) >= self.waiting_max_count:
            crowded_out = self._waiting.pop_newest_of_largest(owner)
            if crowded_out is None:
                raise Crowded
            crowded_out.woken.set()
        waiter = _Waiter()
        self._waiting.append(owner, waiter)
        try:
            await waiter.woken.wait()
        except BaseException:
            if waiter.has_turn:
                self._pass_on()
            elif not waiter.woken.is_set():
                self._waiting.remove(owner, waiter)
            raise
        if not waiter.has_turn:
            raise Crowded

    def _pass_on(self) -> None:
        if not self._waiting:
            self._held_count -= 1
            return
        _, waiter = self._waiting.pop()
        waiter.has_turn = True
        waiter.woken.set()
