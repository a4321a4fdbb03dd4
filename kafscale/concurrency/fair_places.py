"""Bound how many tasks work at once; waiting tasks take turns by key, such as the address of a client.

When too many wait, the newest task of the key with the most waiting tasks gives up: a flood from one address crowds out
only itself.

May not import anything of KafScale.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import attrs
import trio


class Crowded(Exception):
    """Too many tasks wait already."""


@attrs.define(eq=False, repr=False)
class _Waiter:
    event: trio.Event = attrs.field(factory=trio.Event, init=False)
    has_place: bool = attrs.field(default=False, init=False)


@attrs.define(eq=False, repr=False)
class FairPlaces:
    """`count` places, for which at most `waiting_max_count` tasks wait."""

    count: int
    waiting_max_count: int
    waiting_count: int = attrs.field(default=0, init=False)
    _used_count: int = attrs.field(default=0, init=False)
    _waiting: dict[Hashable, deque[_Waiter]] = attrs.field(factory=dict, init=False)  # the next key first

    @asynccontextmanager
    async def place(self, key: Hashable) -> AsyncIterator[None]:
        """Hold a place for the block. Raises Crowded if too many wait."""
        if self._used_count < self.count:
            self._used_count += 1
        else:
            await self._wait(key)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, key: Hashable) -> None:
        if self.waiting_count >= self.waiting_max_count:
            self._make_room(key)
        waiter = _Waiter()
        self._waiting.setdefault(key, deque()).append(waiter)
        self.waiting_count += 1
        try:
            await waiter.event.wait()
        except BaseException:
            if waiter.has_place:
                self._release()
            elif not waiter.event.is_set():
                self._forget(key, waiter)
            raise
        if not waiter.has_place:
            raise Crowded

    def _make_room(self, key: Hashable) -> None:
        longest = max(self._waiting, key=lambda each: len(self._waiting[each]))
        if len(self._waiting[longest]) <= len(self._waiting.get(key, ())) + 1:
            raise Crowded
        newest = self._waiting[longest][-1]
        self._forget(longest, newest)
        newest.event.set()

    def _forget(self, key: Hashable, waiter: _Waiter) -> None:
        self.waiting_count -= 1
        self._waiting[key].remove(waiter)
        if not self._waiting[key]:
            del self._waiting[key]

    def _release(self) -> None:
        if not self._waiting:
            self._used_count -= 1
            return
        key = next(iter(self._waiting))
        waiters = self._waiting.pop(key)
        waiter = waiters.popleft()
        self.waiting_count -= 1
        if waiters:
            self._waiting[key] = waiters  # behind all others
        waiter.has_place = True
        waiter.event.set()
