"""Turns of work that one at a time may do, shared by who asks for them. May not import anything of KafScale."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import attrs
import trio


@attrs.define(eq=False, repr=False)
class FairTurns:
    """One holder at a time; owners take turns, and those who wait for the same owner do so in order.

    One who holds a turn lets it go between pieces of its work, so that however many wait for one owner, another's work
    is done by every second piece.
    """

    _is_held: bool = attrs.field(default=False, init=False)
    _owner: Hashable = attrs.field(default=None, init=False)  # who was served last
    _waiting: dict[Hashable, deque[trio.Event]] = attrs.field(factory=dict, init=False)  # by owner; the next one first

    @asynccontextmanager
    async def turn(self, owner: Hashable) -> AsyncIterator[None]:
        """Wait for a turn and hold it for the block. A checkpoint in any case."""
        if self._is_held:
            await self._wait(owner)
        else:
            self._is_held, self._owner = True, owner
            try:
                await trio.lowlevel.checkpoint()
            except BaseException:
                self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, owner: Hashable) -> None:
        granted = trio.Event()
        self._waiting.setdefault(owner, deque()).append(granted)
        try:
            await granted.wait()
        except BaseException:
            if granted.is_set():
                self._pass_on()
            else:
                self._forget(owner, granted)
            raise

    def _forget(self, owner: Hashable, granted: trio.Event) -> None:
        waiting = self._waiting[owner]
        waiting.remove(granted)
        if not waiting:
            del self._waiting[owner]

    def _pass_on(self) -> None:
        """Grant the turn to another owner than the one who had it, if there is any: the one served longest ago."""
        self._is_held = bool(self._waiting)
        if not self._waiting:
            return
        others = (each for each in self._waiting if each != self._owner)
        self._owner = owner = next(others, self._owner)
        waiting = self._waiting.pop(owner)
        waiting.popleft().set()
        if waiting:
            self._waiting[owner] = waiting
