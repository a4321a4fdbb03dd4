"""Whether a broker with a log of its own may acknowledge: whoever is to lead in its place waits until it does no more.

With `--durability wal` an acknowledgement touches no store, so a broker would not notice that an operator has given it
up (`kafscale.cluster.membership.placement.administration`), as while it is suspended, or cut off. So it acknowledges
only

    within LEASE_SECONDS of a look at the head that found it to be the one it was
    or while at least half of those that it watches answer it, as when the bucket is away: nobody is fenced then

and otherwise waits for the next look. Where it is cut off from the bucket alone, and was replaced by an incarnation on
another data directory, those that answer tell it so: then they count no more until it has looked. Others lead
GIVEN_UP_WAIT_SECONDS after the fence at the earliest. Who knows of no other broker has the looks alone: one that has
joined since, which only the bucket tells of, may give it up.
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


def wait_seconds(session_timeout_seconds: float) -> float:
    """Return how long others wait before they lead what such a broker led: it looks, or hears that it is replaced."""
    return max(GIVEN_UP_WAIT_SECONDS, session_timeout_seconds)


@attrs.frozen(eq=False, repr=False)
class AcknowledgementLease:
    """That of one incarnation. `looked_at` tells when a look began that found it current; `look` looks again.

    `disowned_at` tells when another broker said last that this incarnation is over.
    """

    liveness: Liveness
    looked_at: Callable[[], float]
    look: Callable[[], Awaitable[None]]
    disowned_at: Callable[[], float]

    def is_good(self) -> bool:
        """Tell whether it may acknowledge now."""
        looked_at = self.looked_at()
        if elapsed() - looked_at <= LEASE_SECONDS:
            return True
        return self.disowned_at() < looked_at and self.liveness.hears_half()

    async def wait(self) -> None:
        """Wait until it may. Raises Fenced."""
        while not self.is_good():
            with suppress(StoreError, DamagedObject):
                await self.look()
            if not self.is_good():
                await trio.sleep(RETRY_SECONDS)
