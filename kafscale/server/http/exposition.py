"""The page of metrics, made in turns between which others run.

A page of many series takes long, so it is made for all at once who wait for it, and takes a fifth of the event loop at
most, however many ask. A page is never older than the request that it answers.
"""

from __future__ import annotations

import math
from typing import Final

import attrs
import trio

from kafscale.concurrency.turns import in_turns
from kafscale.metrics import Metrics

REST_FACTOR: Final = 4  # the pause after a page was made, as a multiple of the time that it took


@attrs.define(eq=False, repr=False)
class Exposition:
    """Makes the pages of one registry."""

    metrics: Metrics
    _page: bytes = attrs.field(default=b"", init=False)
    _begun_count: int = attrs.field(default=0, init=False)  # pages that were begun
    _rests_until: float = attrs.field(default=-math.inf, init=False)
    _making: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def page(self) -> bytes:
        """Return a page that was begun after this call."""
        begun_before_count = self._begun_count
        async with self._making:  # first come, first served: each hands on to the next after a turn of the loop
            if self._begun_count == begun_before_count:
                await trio.sleep_until(self._rests_until)
                await self._make()
            return self._page

    async def _make(self) -> None:
        self._begun_count += 1
        began = trio.current_time()
        lines = [line async for line in in_turns(self.metrics.lines()) if line is not None]
        self._page = "".join(f"{line}\n" for line in lines).encode()
        ended = trio.current_time()
        self._rests_until = ended + REST_FACTOR * (ended - began)
