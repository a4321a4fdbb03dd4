"""A bound on bytes that several tasks hold at once, granted in the order of the requests."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio


@attrs.define(eq=False, repr=False)
class _BytesWaiter:
    size_bytes: int
    granted: trio.Event = attrs.field(factory=trio.Event, init=False)


@attrs.define(eq=False, repr=False)
class Share:
    """Granted bytes that can be passed on. The last holder calls `release`, once."""

    budget: ByteBudget
    size_bytes: int

    def release(self) -> None:
        self.budget.release(self.size_bytes)

    def shrink(self, size_bytes: int) -> None:
        assert size_bytes <= self.size_bytes
        excess_bytes, self.size_bytes = self.size_bytes - size_bytes, size_bytes
        self.budget.release(excess_bytes)


@attrs.define(eq=False, repr=False)
class ByteBudget:
    """A bound on bytes held at once. A request above `size_bytes` is granted while nothing else is held."""

    size_bytes: int
    used_bytes: int = attrs.field(default=0, init=False)
    wait_count: int = attrs.field(default=0, init=False)  # since the start
    _waiters: deque[_BytesWaiter] = attrs.field(factory=deque, init=False)

    @property
    def waiting_count(self) -> int:
        return len(self._waiters)

    def acquire_nowait(self, size_bytes: int) -> bool:
        """Acquire bytes if they are free and no task waits. The caller owes `release`."""
        if self._waiters or not self._fits(size_bytes):
            return False
        self.used_bytes += size_bytes
        return True

    async def acquire(self, size_bytes: int) -> None:
        """Wait for bytes, in the order of the calls. The caller owes `release`."""
        if self.acquire_nowait(size_bytes):
            return
        self.wait_count += 1
        waiter = _BytesWaiter(size_bytes)
        self._waiters.append(waiter)
        try:
            await waiter.granted.wait()
        except trio.Cancelled:
            if waiter.granted.is_set():
                self.release(size_bytes)
            else:
                self._waiters.remove(waiter)
                self._serve_waiters()  # it may have been the one that held back the others
            raise

    async def share(self, size_bytes: int, *, may_wait: bool = True) -> Share | None:
        """Acquire bytes as a share; None if they are not free and the caller may not wait."""
        if may_wait:
            await self.acquire(size_bytes)
        elif not self.acquire_nowait(size_bytes):
            return None
        return Share(self, size_bytes)

    def release(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "more was released than had been granted"
        self._serve_waiters()

    @asynccontextmanager
    async def held(self, size_bytes: int) -> AsyncIterator[None]:
        await self.acquire(size_bytes)
        try:
            yield
        finally:
            self.release(size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self.size_bytes

    def _serve_waiters(self) -> None:
        while self._waiters and self._fits(self._waiters[0].size_bytes):
            waiter = self._waiters.popleft()
            self.used_bytes += waiter.size_bytes
            waiter.granted.set()
