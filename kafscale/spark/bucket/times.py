"""A period of time that a read is bounded by."""

from __future__ import annotations

import attrs

FIRST_MS = -(1 << 63)
LAST_MS = (1 << 63) - 1


@attrs.frozen(kw_only=True)
class Period:
    """Milliseconds since 1970; both are included. Records without a timestamp have -1."""

    first_ms: int = FIRST_MS
    last_ms: int = LAST_MS

    @classmethod
    def compared(cls, operator: str, microseconds: int) -> Period:
        """Return the times, in whole milliseconds, for which a comparison (`=`, `<`, `<=`, `>`, `>=`) is true."""
        first_ms, last_ms = FIRST_MS, LAST_MS
        if operator in (">", ">=", "="):
            first_ms = microseconds // 1000 + 1 if operator == ">" else -(-microseconds // 1000)
        if operator in ("<", "<=", "="):
            last_ms = -(-microseconds // 1000) - 1 if operator == "<" else microseconds // 1000
        return cls(first_ms=max(FIRST_MS, first_ms), last_ms=min(LAST_MS, last_ms))

    @property
    def is_bounded(self) -> bool:
        """Tell whether the period leaves out any time."""
        return self != ALWAYS

    def without_others(self, other: Period) -> Period:
        """Return the times within both periods."""
        return Period(first_ms=max(self.first_ms, other.first_ms), last_ms=min(self.last_ms, other.last_ms))

    def with_others(self, other: Period) -> Period:
        """Return the times in either period, or between them."""
        return Period(first_ms=min(self.first_ms, other.first_ms), last_ms=max(self.last_ms, other.last_ms))


ALWAYS = Period()
