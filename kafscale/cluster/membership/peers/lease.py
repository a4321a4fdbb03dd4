"""Decides whether this broker may still act: the lease of a log on the local disk, and a check after a suspension.

With `--durability wal` an acknowledgement touches no store, so a broker would not notice that an operator has given it
up (`kafscale.cluster.membership.placement.administration`) while it was suspended or cut off. So it acknowledges only

    within LEASE_SECONDS of a look at the head that found it current
    or while at least half of the brokers that it watches answer it: then the bucket may be away, and none is fenced

and otherwise waits for the next look. If answers say that another incarnation has replaced it, they count no more until
it has looked. Others lead GIVEN_UP_WAIT_SECONDS after the fence at the earliest.

A process that was suspended may have been declared dead without knowing it, and would give outdated answers. So each
answer waits for `SuspensionCheck.wait` first: after a suspension, one look at the bucket of LOOK_MAX_SECONDS at most.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import attrs
import trio

from kafscale.cluster.membership.peers.liveness import Liveness
from kafscale.concurrency.clocks import elapsed
from kafscale.errors import DamagedObject, StoreError

LEASE_SECONDS = 2.5  # five looks
GIVEN_UP_WAIT_SECONDS = 3.0
RETRY_SECONDS = 0.25
TICK_SECONDS = 0.25
PAUSE_SECONDS = 1.0  # without a tick; a broker is declared dead no sooner, unless its address refuses connections
LOOK_MAX_SECONDS = 3.0


def wait_seconds(session_timeout_seconds: float) -> float:
    """Return how long others wait before they lead the partitions of a broker with its own log that was given up."""
    return max(GIVEN_UP_WAIT_SECONDS, session_timeout_seconds)


@attrs.frozen(eq=False, repr=False)
class AcknowledgementLease:
    """The lease of an incarnation to acknowledge. `look` asks the bucket whether it is current.

    `looked_at` returns the beginning of the last look that found it current.
    """

    liveness: Liveness
    looked_at: Callable[[], float]
    look: Callable[[], Awaitable[None]]

    def is_good(self) -> bool:
        looked_at = self.looked_at()
        if elapsed() - looked_at <= LEASE_SECONDS:
            return True
        return self.liveness.disowned_at < looked_at and self.liveness.hears_half()

    async def wait(self) -> None:
        """Wait until it may acknowledge. Raises Fenced."""
        while not self.is_good():
            with suppress(StoreError, DamagedObject):
                await self.look()
            if not self.is_good():
                await trio.sleep(RETRY_SECONDS)


@attrs.define(eq=False, repr=False)
class SuspensionCheck:
    """Lets no answer out after a suspension before a look at the bucket. `look` raises Fenced, StoreError."""

    look: Callable[[], Awaitable[None]]
    _ticked_at: float = attrs.field(factory=elapsed, init=False)
    _has_looked: trio.Event | None = attrs.field(default=None, init=False)  # while one looks

    async def run(self) -> None:
        """Notice suspensions until cancelled. Raises Fenced."""
        while True:
            await trio.sleep(TICK_SECONDS)
            await self.wait()
            self._ticked_at = elapsed()

    async def wait(self) -> None:
        """Return at once, without a checkpoint; after a suspension when it has looked. Raises Fenced."""
        while elapsed() - self._ticked_at > PAUSE_SECONDS:
            await self._look()

    async def _look(self) -> None:
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
