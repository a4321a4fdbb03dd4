"""A value that is set once and may be waited for: how a synchronous state machine answers a request later."""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")


@attrs.define(eq=False, repr=False)
class OneShot(Generic[T]):
    """Set at most once; None is not a value. Waiting for one that is set does not pass through the scheduler."""

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
        """The value, as soon as there is one. Any number of tasks may wait."""
        if self.value is None:
            if self._done is None:
                self._done = trio.Event()
            await self._done.wait()
            assert self.value is not None
        return self.value
