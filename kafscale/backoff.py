"""Growing pauses between attempts, of all that tries again. Imports nothing of KafScale."""

from __future__ import annotations

import math

import attrs

_DOUBLINGS_MAX_COUNT = 32  # keeps the factor a number that a float can hold


@attrs.frozen
class Backoff:
    """Pauses that double. Where many clients wait for one server, wait a random part of each (AWS: "full jitter")."""

    first_seconds: float
    longest_seconds: float = math.inf

    def seconds(self, earlier_count: int) -> float:
        return min(self.longest_seconds, self.first_seconds * 2.0 ** min(earlier_count, _DOUBLINGS_MAX_COUNT))
