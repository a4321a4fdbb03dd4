"""A line of a certain rate."""

from __future__ import annotations

import math

import attrs
import trio


@attrs.define
class Link:
    """One direction of a line that all connections share: who sends waits until its bytes have passed."""

    bytes_per_second: float
    _free_at: float = 0.0

    async def carry(self, count: int) -> None:
        """Wait for as long as the bytes take, behind those of others."""
        if math.isinf(self.bytes_per_second):
            return
        self._free_at = max(self._free_at, trio.current_time()) + count / self.bytes_per_second
        await trio.sleep_until(self._free_at)
