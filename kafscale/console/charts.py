"""The bar chart of a statement's rows: a label and one number a row, as SVG attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

BARS_MAX_COUNT = 60
WIDTH, BAR_HEIGHT, LABEL_WIDTH = 720, 20, 200


@attrs.frozen
class Bar:
    """A bar; `width` is in the units of the drawing."""

    label: str
    value: float
    y: int
    width: float


@attrs.frozen
class Chart:
    """The bars of the column `title` by the column `by`."""

    title: str
    by: str
    bars: Sequence[Bar]
    height: int


def chart_of(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Chart | None:
    """Return the chart of the first column and the last one with numbers only; None for other rows."""
    if len(columns) < 2 or not 2 <= len(rows) <= BARS_MAX_COUNT:
        return None
    for at in range(len(columns) - 1, 0, -1):
        values = [row[at] for row in rows]
        if all(isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 for value in values):
            most = max(values) or 1
            bars = [
                Bar(str(row[0]), row[at], number * BAR_HEIGHT, (WIDTH - LABEL_WIDTH) * row[at] / most)
                for number, row in enumerate(rows)
            ]
            return Chart(columns[at], columns[0], bars, len(bars) * BAR_HEIGHT)
    return None
