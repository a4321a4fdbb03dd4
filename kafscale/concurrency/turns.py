"""Turns on the event loop: long work that lets other tasks run, and work for which owners wait in turn.

Turns are counted in steps, not measured, so that a simulation repeats them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import attrs
import trio

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

STEPS_PER_TURN = 256  # of some microseconds each, so that a turn is about a millisecond


@attrs.define(eq=False, repr=False)
class Turns:
    """Turns of one piece of work, counted in steps. Short work does not give way."""

    steps: int = STEPS_PER_TURN
    _left: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._left = self.steps

    async def step(self) -> None:
        """Give way to other tasks after each turn's steps. Call it before each step."""
        if not self._left:
            self._left = self.steps
            await trio.lowlevel.checkpoint()
        self._left -= 1


async def in_turns(items: Iterable[T], *, steps: int = STEPS_PER_TURN) -> AsyncIterator[T]:
    """Yield the items, and give way to other tasks after every `steps`."""
    turns = Turns(steps)
    for item in items:
        await turns.step()
        yield item


async def distinct(items: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """Return the first item of each key, in order: a repeated entry of a request is answered once."""
    found: dict[Hashable, T] = {}
    async for item in in_turns(items):
        found.setdefault(key(item), item)
    return list(found.values())


async def distinct_partitions(
    topics: Iterable[tuple[K, Iterable[T]]], index: Callable[[T], int], *, turns: Turns | None = None
) -> dict[K, dict[int, T]]:
    """Return topics and their partitions without repetitions; the first entry of a partition counts."""
    turns = turns or Turns()
    found: dict[K, dict[int, T]] = {}
    for topic, partitions in topics:
        await turns.step()
        of_topic = found.setdefault(topic, {})
        for partition in partitions:
            await turns.step()
            of_topic.setdefault(index(partition), partition)
    return found


class Crowded(Exception):
    """Too many tasks wait already."""


@attrs.define(eq=False, repr=False)
class FairQueue(Generic[T]):
    """A queue that serves owners in turn, each in order: the one served last comes after all others."""

    _by_owner: dict[Hashable, deque[T]] = attrs.field(factory=dict, init=False)  # the next owner first
    _count: int = attrs.field(default=0, init=False)
    _last_owner: Hashable = attrs.field(default=None, init=False)

    def __len__(self) -> int:
        return self._count

    def append(self, owner: Hashable, item: T) -> None:
        self._by_owner.setdefault(owner, deque()).append(item)
        self._count += 1

    def pop(self) -> tuple[Hashable, T]:
        others = (owner for owner in self._by_owner if owner != self._last_owner)
        owner = self._last_owner = next(others, self._last_owner)
        items = self._by_owner.pop(owner)
        if len(items) > 1:
            self._by_owner[owner] = items  # behind all other owners
        self._count -= 1
        return owner, items.popleft()

    def skip(self, owner: Hashable) -> None:
        """Count an owner as served last, as it was served outside of the queue."""
        self._last_owner = owner

    def remove(self, owner: Hashable, item: T) -> None:
        items = self._by_owner[owner]
        items.remove(item)
        if not items:
            del self._by_owner[owner]
        self._count -= 1

    def pop_newest_of_largest(self, owner: Hashable) -> T | None:
        """Remove the newest item of the owner with the most, for one of `owner`; None if it would have as many."""
        largest = max(self._by_owner, key=lambda other: len(self._by_owner[other]))
        if len(self._by_owner[largest]) <= len(self._by_owner.get(owner, ())) + 1:
            return None
        newest = self._by_owner[largest][-1]
        self.remove(largest, newest)
        return newest


@attrs.define(eq=False, repr=False)
class _TurnWaiter:
    woken: trio.Event = attrs.field(factory=trio.Event, init=False)
    has_turn: bool = attrs.field(default=False, init=False)  # else it was crowded out


@attrs.define(eq=False, repr=False)
class FairTurns:
    """Turns of which `count` are held at once; owners are served in turn.

    A task that gives up its turn between pieces of work lets another owner's task work, however many tasks one owner
    has. When `waiting_max_count` tasks wait, the newest task of the owner with the most gets Crowded: a flood crowds
    out only itself.
    """

    count: int = 1
    waiting_max_count: float = math.inf
    _held_count: int = attrs.field(default=0, init=False)
    _waiting: FairQueue[_TurnWaiter] = attrs.field(factory=FairQueue, init=False)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self, owner: Hashable) -> AsyncIterator[None]:
        """Wait for a turn and hold it for the block. Always a checkpoint. Raises Crowded."""
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
        waiter = _TurnWaiter()
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
