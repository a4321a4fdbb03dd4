"""Line plots of numbers over the last hour, as values that the template `plot.html` draws as SVG.

A plot has a title, axes with round ticks, a description for screen readers and a table of its values. It has classes
and no colours: the style sheet gives these, for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import attrs

from kafscale.console.rendering import count, size
from kafscale.console.samples import STEP_SECONDS, STEPS_COUNT

WIDTH, HEIGHT = 720, 180
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 10, 24  # margins
SPARK_WIDTH, SPARK_HEIGHT = 120, 24
TICKS_COUNT = 4  # of the axis of values, about
TICK_STEPS = 600 // STEP_SECONDS  # a tick each 10 min
ROW_STEPS = 300 // STEP_SECONDS  # a row of the table each 5 min
NONE = "–"

Values = Sequence[float | None]


@attrs.frozen
class Tick:
    at: float
    label: str


@attrs.frozen
class Line:
    """A named line; `path` is of SVG, `values` are those of the table's rows."""

    name: str
    path: str
    values: Sequence[str]


@attrs.frozen(kw_only=True)
class Plot:
    """A plot. `times` name the table's rows."""

    title: str
    description: str
    lines: Sequence[Line]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    times: Sequence[str]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM


def plot(
    title: str, lines: Sequence[tuple[str, Values]], now_ms: int, *, unit: str = "", is_bytes: bool = False
) -> Plot:
    """Return the plot of lines of STEPS_COUNT values each, the last one at `now_ms`."""
    written = size if is_bytes else number
    ticks = round_ticks(max((value for _, values in lines for value in values if value is not None), default=0.0))
    to_y = _scale(ticks[-1], TOP, HEIGHT - BOTTOM)
    return Plot(
        title=f"{title}, {unit}" if unit else title,
        description=" ".join(_described(name, values, written, unit) for name, values in lines),
        lines=[
            Line(name, path(values, LEFT, WIDTH - RIGHT, to_y), [written(values[row]) for row in _rows()])
            for name, values in lines
        ],
        x_ticks=[Tick(_x(step, LEFT, WIDTH - RIGHT), _clock(step, now_ms)) for step in _steps(TICK_STEPS)],
        y_ticks=[Tick(to_y(tick), written(tick)) for tick in ticks],
        times=[_clock(row, now_ms) for row in _rows()],
    )


def spark(values: Values) -> str:
    """Return the SVG path of a small plot, SPARK_WIDTH by SPARK_HEIGHT; empty without values."""
    most = max((value for value in values if value is not None), default=0.0)
    return path(values, 1, SPARK_WIDTH - 1, _scale(most or 1.0, 2, SPARK_HEIGHT - 2))


def number(value: float | None) -> str:
    """Format a number of a plot: with few digits and k, M, G, T."""
    if value is None:
        return NONE
    for suffix in ("", "k", "M", "G", "T"):
        if abs(value) < 1000 or suffix == "T":
            return f"{value:.3g}{suffix}" if abs(value) < 1000 else f"{count(value)}{suffix}"
        value /= 1000
    raise AssertionError


def round_ticks(most: float) -> list[float]:
    """Return ticks from 0 to at least `most`, at distances of 1, 2 or 5 times a power of ten."""
    if most <= 0:
        return [0.0, 1.0]
    raw = most / TICKS_COUNT
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    if most >= 1:
        step = max(step, 1.0) if most > TICKS_COUNT else step
    return [index * step for index in range(math.ceil(most / step - 1e-9) + 1)]


def path(values: Values, left: float, right: float, to_y: Callable[[float], float]) -> str:
    """Return an SVG path. Missing values are gaps, and a value between gaps is a dot."""
    parts = []
    for step, value in enumerate(values):
        if value is None:
            continue
        begins = step == 0 or values[step - 1] is None
        parts.append(f"{'M' if begins else 'L'}{_x(step, left, right):.1f},{to_y(value):.1f}")
        if begins and (step + 1 == len(values) or values[step + 1] is None):
            parts.append("h0.1")
    return "".join(parts)


def _x(step: int, left: float, right: float) -> float:
    return left + step / (STEPS_COUNT - 1) * (right - left)


def _scale(most: float, top: float, bottom: float) -> Callable[[float], float]:
    return lambda value: bottom - value / most * (bottom - top)


def _steps(distance: int) -> list[int]:
    return list(range(0, STEPS_COUNT, distance))


def _rows() -> list[int]:
    return _steps(ROW_STEPS)[::-1]


def _clock(step: int, now_ms: int) -> str:
    seconds = now_ms / 1000 - (STEPS_COUNT - 1 - step) * STEP_SECONDS
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M")


def _described(name: str, values: Values, written: Callable[[float | None], str], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return f"{name}: no samples in the last hour."
    least, most, last = (f"{written(value)} {unit}".rstrip() for value in (min(known), max(known), known[-1]))
    return f"{name} over the last hour: now {last}, least {least}, most {most}."
