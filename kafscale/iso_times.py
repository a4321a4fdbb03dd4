"""Times that people write. Imports nothing of KafScale."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_time_ms(text: str) -> int:
    """Read ISO 8601, in UTC where it names no zone, as milliseconds since 1970. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
