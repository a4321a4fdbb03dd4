"""A bar chart of ratios as SVG, without a plotting library: a bar for each name, and a line where both are equal.

A bar's colour tells on which side of that line it ends, as the legend below says. What must be reached is the tables'.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

import attrs

from bench.claims.plot import FONT

WIDTH, BAR_HEIGHT, MARGIN = 1000, 22, 60
AHEAD, BEHIND = "#1f77b4", "#ff7f0e"  # told apart by people who can't tell red from green
LEGEND = ((AHEAD, "ahead: 1x or more"), (BEHIND, "behind: less than 1x"))


@attrs.frozen
class Bar:
    """A longer one is better."""

    label: str
    ratio: float


@attrs.frozen(kw_only=True)
class Bars:
    """Bars from the top down. One of more than `most_ratio` is drawn at that, with its figure beside it."""

    title: str
    bars: Sequence[Bar]
    label_width: int
    most_ratio: float

    def svg(self) -> str:
        """The whole picture."""
        foot = BAR_HEIGHT * len(self.bars) + 34
        height = foot + 30
        scale = (WIDTH - self.label_width - MARGIN) / self.most_ratio
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
            '<rect width="100%" height="100%" fill="white"/>',
        ]
        for number, bar in enumerate(self.bars):
            y, width = 30 + BAR_HEIGHT * number, min(bar.ratio, self.most_ratio) * scale
            colour = AHEAD if bar.ratio >= 1 else BEHIND
            x, size = self.label_width, f'width="{width:.1f}" height="{BAR_HEIGHT - 6}"'
            parts += [
                f'<text x="{x - 8}" y="{y + 14}" text-anchor="end">{escape(bar.label)}</text>',
                f'<rect x="{x}" y="{y + 2}" {size} fill="{colour}"/>',
                f'<text x="{x + width + 6:.1f}" y="{y + 14}">{bar.ratio:.2f}x</text>',
            ]
        even = self.label_width + scale
        parts.append(f'<line x1="{even}" x2="{even}" y1="20" y2="{foot}" stroke="black" stroke-dasharray="4 3"/>')
        for number, (colour, told) in enumerate(LEGEND):
            x = self.label_width + 180 * number
            parts.append(f'<rect x="{x}" y="{foot + 8}" width="12" height="12" fill="{colour}"/>')
            parts.append(f'<text x="{x + 18}" y="{foot + 18}">{escape(told)}</text>')
        parts.append(f'<text x="{WIDTH / 2}" y="16" text-anchor="middle">{escape(self.title)}</text>')
        return "\n".join([*parts, "</svg>", ""])
