"""Values of forms and queries."""

from __future__ import annotations

import time

from kafscale.errors import ConfigError
from kafscale.iso_times import iso_time_ms

INT64_MAX = (1 << 63) - 1


def whole_number(text: str, field: str, *, least: int = 0, most: int = INT64_MAX) -> int:
    """Read a number. Raises ConfigError."""
    if text.isascii() and text.isdigit() and len(text) <= len(str(most)) and least <= int(text) <= most:
        return int(text)
    raise ConfigError(f"'{text[:100]}' is not a number of {field}: give one from {least} on")


def time_ms(text: str) -> int:
    """Read a time: milliseconds since 1970, or a date with or without a time, in UTC. Raises ConfigError."""
    if text.isascii() and text.isdigit():
        return whole_number(text, "milliseconds since 1970")
    try:
        return iso_time_ms(text)
    except ValueError as exc:
        raise ConfigError(f"'{text[:100]}' is not a time: write 2026-01-31T12:00, or milliseconds since 1970") from exc


def now_ms() -> int:
    return time.time_ns() // 1_000_000
