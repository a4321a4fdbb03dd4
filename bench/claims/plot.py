"""A line chart as SVG, without a plotting library: a few series over one axis."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from xml.sax.saxutils import escape

import attrs

WIDTH, HEIGHT, MARGIN = 720, 420, 60
FONT = 'font-family="sans-serif" font-size="12"'
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")


@attrs.frozen
class Point:
    x: float
    y: float


@attrs.frozen(kw_only=True)
class Plot:
    """Series by name. The y axis begins at 0. A name that begins with `~` is dashed.

    The x axis is logarithmic, with a mark for each point, or linear, with a few.
    """

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[Point]]
    is_linear: bool = False

    def svg(self) -> str:
        """The whole picture."""
        points = [point for sery in self.series.values() for point in sery]
        least_x, most_x = min(point.x for point in points), max(point.x for point in points)
        scale_class = _LinearScale if self.is_linear else _Scale
        scale = scale_class(least_x, most_x, max(point.y for point in points))
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
            '<rect width="100%" height="100%" fill="white"/>',
            _text(WIDTH / 2, 20, self.title, anchor="middle"),
            _text(WIDTH / 2, HEIGHT - 12, self.x_label, anchor="middle"),
            _text(8, MARGIN - 12, self.y_label),
        ]
        for x in scale.marks({point.x for point in points}):
            parts.append(_text(scale.x(x), HEIGHT - MARGIN + 18, f"{x:g}", anchor="middle"))
        for share in (0, 0.25, 0.5, 0.75, 1.0):
            y = scale.y(share * scale.most_y)
            parts.append(f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(_text(MARGIN - 6, y + 4, f"{share * scale.most_y:.3g}", anchor="end"))
        for number, (name, line) in enumerate(self.series.items()):
            parts += _series(scale, name, line, number)
        return "\n".join([*parts, "</svg>", ""])


@attrs.frozen
class _Scale:
    least_x: float
    most_x: float
    most_y: float

    def x(self, value: float) -> float:
        share = math.log(value / self.least_x) / math.log(self.most_x / self.least_x)
        return MARGIN + share * (WIDTH - 2 * MARGIN)

    def marks(self, values: Collection[float]) -> Sequence[float]:
        return sorted(values)

    def y(self, value: float) -> float:
        return HEIGHT - MARGIN - value / self.most_y * (HEIGHT - 2 * MARGIN)


@attrs.frozen
class _LinearScale(_Scale):
    def x(self, value: float) -> float:
        return MARGIN + (value - self.least_x) / (self.most_x - self.least_x) * (WIDTH - 2 * MARGIN)

    def marks(self, values: Collection[float]) -> Sequence[float]:
        return [self.least_x + share * (self.most_x - self.least_x) for share in (0, 0.25, 0.5, 0.75, 1.0)]


def _series(scale: _Scale, name: str, line: Sequence[Point], number: int) -> Sequence[str]:
    colour = COLOURS[number % len(COLOURS)]
    dashes = ' stroke-dasharray="5 4"' if name.startswith("~") else ""
    path = " ".join(f"{scale.x(point.x):.1f},{scale.y(point.y):.1f}" for point in line)
    legend_y = HEIGHT - MARGIN - 14 - 18 * number
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>',
        f'<path d="M{WIDTH - 270},{legend_y}h30" stroke="{colour}" stroke-width="2"{dashes}/>',
        _text(WIDTH - 234, legend_y + 4, name.removeprefix("~")),
    ]


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
