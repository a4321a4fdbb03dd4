"""Whether this process has run all the time: one that was suspended may have been declared dead, and not know it.

What it acknowledges is looked after by itself (`kafscale.cluster.membership.placement.fail_over`). But in the moments
until it has looked it would answer as if nothing had happened: that an offset which others have written is out of
range, so that a consumer reads everything again, or which offsets a group had committed then. So who answers asks
`wait` first. That costs a comparison; behind a pause, one look at the bucket, for which nobody waits longer than
LOOK_MAX_SECONDS.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import attrs
import trio

from kafscale.concurrency.clocks import elapsed
from kafscale.errors import DamagedObject, StoreError

TICK_SECONDS = 0.25
PAUSE_SECONDS = 1.0  # without a tick; nobody is declared dead sooner, unless its address refuses connections
LOOK_MAX_SECONDS = 3.0


@attrs.define(eq=False, repr=False)
class SuspensionCheck:
    """`look` looks at the bucket whether this broker may go on. Raises Fenced, StoreError, DamagedObject."""

    look: Callable[[], Awaitable[None]]
    _ticked_at: float = attrs.field(factory=elapsed, init=False)
    _has_looked: trio.Event | None = attrs.field(default=None, init=False)  # while one looks

    async def run(self) -> None:
        """Notice pauses, until cancelled. Raises Fenced."""
        while True:
            await trio.sleep(TICK_SECONDS)
            await self.wait()
            self._ticked_at = elapsed()

    async def wait(self) -> None:
        """Return at once, without a checkpoint; behind a pause of this process when it has looked. Raises Fenced."""
        while self._was_paused():
            await self._look()

    def _was_paused(self) -> bool:
        return elapsed() - self._ticked_at > PAUSE_SECONDS

    async def _look(self) -> None:
        """Look, or wait for whoever does; that one may be cancelled, and then nobody has looked."""
        if self._has_looked is not None:
            await self._has_looked.wait()
            return
        self._has_looked = trio.Event()
        try:
            with trio.move_on_after(LOOK_MAX_SECONDS), suppress(StoreError, DamagedObject):
                await self.look()
            self._ticked_at = elapsed()
        finally:
            self._has_looked.set()
            self._has_looked = None
