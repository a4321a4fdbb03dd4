"""HTML by Jinja, which escapes all values, and the formats of numbers and times on pages."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import jinja2

from kafscale.escaping import escaped, escaped_lines

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count(value: float | None) -> str:
    """Format a number with a thin space between thousands."""
    if value is None:
        return "–"
    return f"{value:,.0f}".replace(",", "\u2009")


def size(value: float | None) -> str:
    """Format a number of bytes with a binary unit."""
    if value is None:
        return "–"
    unit = 0
    while abs(value) >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {UNITS[unit]}" if unit == 0 or value >= 100 else f"{value:.1f} {UNITS[unit]}"


def rate(value: float | None) -> str:
    """Format a number per second, small ones with a digit behind the point."""
    if value is None:
        return "–"
    return f"{value:.1f}" if 0 < value < 100 else count(value)


def dollars(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.01 $" if 0 < value < 0.01 else f"{value:,.2f} $"


def moment(time_ms: int | None) -> str:
    """Format milliseconds since 1970 as UTC; numbers outside of the calendar stay numbers."""
    if time_ms is None or time_ms < 0:
        return "–"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00") + "Z"
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


def path_part(text: str) -> str:
    """Quote a name as one segment of a path."""
    return quote(text, safe="")


@functools.cache
def environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kafscale.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=count,
        size=size,
        rate=rate,
        dollars=dollars,
        moment=moment,
        path_part=path_part,
        visible=escaped,
        lines=escaped_lines,
    )
    return environment


def render(template: str, **values: Any) -> str:
    return environment().get_template(template).render(**values)
