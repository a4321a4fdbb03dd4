"""Sizes and durations as people write them: `64MiB`, `1GB`, `4096`; `2ms`, `10s`, `30m`.

Functions raise ValueError with a message for the user. Sizes have decimal units (KB, MB …, powers of 1000) or binary
ones (KiB, MiB …, powers of 1024); `64M` is refused, as the JVM and disks disagree about it. A duration other than 0
needs a unit, as numbers without one are easily mistaken.
"""

from __future__ import annotations

import re
from fractions import Fraction

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB
MAX_TIMEOUT_MS = 24 * 86_400_000  # Kafka's protocol has an int32 of milliseconds, which is 24.8 days

_SIZE_UNITS = {
    "TiB": TIB,
    "TB": 1000**4,
    "GiB": GIB,
    "GB": 1000**3,
    "MiB": MIB,
    "MB": 1000**2,
    "KiB": KIB,
    "KB": 1000,
    "B": 1,
}
_SIZE_BY_LOWER = {unit.lower(): factor for unit, factor in _SIZE_UNITS.items()} | {"": 1}

_DURATION_UNITS_US = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}

_NUMBER_AND_UNIT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")

SIZE_HELP = "a number of bytes, or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB, such as 64MiB"
DURATION_HELP = "a number with us, ms, s, m, h or d, such as 10s"


def parse_size(text: str) -> int:
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    factor = _SIZE_BY_LOWER.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"'{text}' is not a size; allowed: {SIZE_HELP}")
    size_bytes = Fraction(match[1]) * factor
    if size_bytes.denominator != 1:
        raise ValueError(f"'{text}' is not a whole number of bytes; allowed: {SIZE_HELP}")
    return int(size_bytes)


def parse_duration(text: str) -> int:
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if match is None or (match[2] and match[2].lower() not in _DURATION_UNITS_US):
        raise ValueError(f"'{text}' is not a duration; allowed: {DURATION_HELP}")
    number, unit = Fraction(match[1]), match[2].lower()
    if number and not unit:
        raise ValueError(f"'{text}' has no unit; allowed: {DURATION_HELP}")
    duration_us = number * _DURATION_UNITS_US.get(unit, 1)
    if duration_us.denominator != 1:
        raise ValueError(f"'{text}' is finer than a microsecond; allowed: {DURATION_HELP}")
    return int(duration_us)


def format_size(size_bytes: int) -> str:
    """Write a size in the largest unit that divides it."""
    dividing = [(factor, unit) for unit, factor in _SIZE_UNITS.items() if size_bytes and size_bytes % factor == 0]
    factor, unit = max(dividing, default=(1, "B"))
    return f"{size_bytes // factor}{unit if factor > 1 else ''}"


def format_duration(duration_us: int) -> str:
    """Write a duration in the largest unit that divides it."""
    if duration_us == 0:
        return "0s"
    unit = next(unit for unit, factor in _DURATION_UNITS_US.items() if duration_us % factor == 0)
    return f"{duration_us // _DURATION_UNITS_US[unit]}{unit}"
