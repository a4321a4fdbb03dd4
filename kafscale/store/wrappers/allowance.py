"""How many operations may be under way now: the limit, or fewer once the store has asked for fewer.

Additive increase, multiplicative decrease, as TCP does (RFC 5681): a SlowDown cuts the allowance to a part of what was
under way, and each answer then raises it by one over itself, so by about one in the time of an operation. All that were
under way at the moment of a cut may be refused for the same reason, so only an operation that began after the last cut
can cause the next one.

Sans-IO and without a clock. Without a limit (`math.inf`) there is nothing to lower: that is off.
"""

from __future__ import annotations

import math

import attrs

CUT_FACTOR = 0.7  # TCP Reno: 0.5, CUBIC and AWS's adaptive retries: 0.7


@attrs.define
class Allowance:
    """`count` is what is allowed, at least one and at most `limit`. `cuts_count` tells before and after a cut apart."""

    limit: float
    is_adaptive: bool = True
    cuts_count: int = attrs.field(default=0, init=False)
    _allowed: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._allowed = self.limit

    @property
    def count(self) -> float:
        """Operations allowed at once: a whole number, or `math.inf`."""
        return self._allowed if math.isinf(self._allowed) else math.floor(self._allowed)

    def slowed_down(self, *, cuts_before_count: int, in_use_count: int) -> None:
        """An operation that began after so many cuts was refused, while so many (itself included) were under way."""
        if cuts_before_count < self.cuts_count or not self.is_adaptive or math.isinf(self.limit):
            return
        self._allowed = max(1.0, min(self._allowed, in_use_count) * CUT_FACTOR)
        self.cuts_count += 1

    def answered(self) -> None:
        """An operation was answered, with success or not."""
        if self._allowed < self.limit:
            self._allowed = min(self.limit, self._allowed + 1.0 / self._allowed)
