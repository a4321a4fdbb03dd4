"""Signals between tasks: one that is set repeatedly, and a value that is set once."""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")


@attrs.define(eq=False, repr=False)
class Signal:
    """A reusable `trio.Event`, with two uses.

    A task with work clears it, looks for work, and waits: a `set` in between is not missed. Tasks that wait for a state
    check it, and otherwise wait for the next `wake`, which does not last. Await nothing between check and `wait`, and
    check again afterwards.
    """

    _event: trio.Event = attrs.field(factory=trio.Event, init=False)

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Wake waiting tasks, and let later ones pass until it is cleared."""
        self._event.set()

    def clear(self) -> None:
        if self._event.is_set():
            self._event = trio.Event()

    def wake(self) -> None:
        """Wake waiting tasks, and no later ones."""
        event, self._event = self._event, trio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait until it is set, or for the next `wake`. Always a checkpoint."""
        await self._event.wait()

    def statistics(self) -> trio.EventStatistics:
        return self._event.statistics()


@attrs.define(eq=False, repr=False)
class OneShot(Generic[T]):
    """A value that is set at most once and never None. Waiting for a set value passes no checkpoint."""

    value: T | None = None
    _done: trio.Event | None = attrs.field(default=None, init=False)

    @property
    def is_set(self) -> bool:
        return self.value is not None

    def set(self, value: T) -> None:
        assert self.value is None, "set twice"
        self.value = value
        if self._done is not None:
            self._done.set()

    async def wait(self) -> T:
        """Return the value as soon as it is set. Any number of tasks may wait."""
        if self.value is None:
            if self._done is None:
                self._done = trio.Event()
            await self._done.wait()
            assert self.value is not None
        return self.value
