"""How many topics may be created merely because somebody asked about them: `--auto-create-topics-per-minute`.

A bucket of tokens, one for each topic. A sixth of the minute's topics may come at once, the others evenly, so that a
client that lists thousands of names does not make them all. It is for all clients together; Kafka's controller mutation
quotas (KIP-599), off by default, are for each.
"""

from __future__ import annotations

import math

import attrs

BURST_FRACTION = 1 / 6


@attrs.define(eq=False, repr=False)
class CreationPace:
    """Times are in seconds, by the caller's clock."""

    per_minute: int
    _burst: float = attrs.field(init=False)
    _tokens: float = attrs.field(init=False)
    _filled_at: float = attrs.field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._burst = self._tokens = max(1.0, self.per_minute * BURST_FRACTION)

    def take(self, wanted_count: int, now: float) -> int:
        """Return how many of these topics may be created now; they are counted."""
        per_second = self.per_minute * (1 - BURST_FRACTION) / 60
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * per_second)
        self._filled_at = now
        granted_count = min(wanted_count, int(self._tokens))
        self._tokens -= granted_count
        return granted_count
