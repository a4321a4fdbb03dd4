from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from kafscale.console.plots import Values, number, path, plot, round_ticks, spark
from kafscale.console.rendering import environment
from kafscale.console.samples import STEPS_COUNT

NOON_MS = 1_800_014_400_000 // 86_400_000 * 86_400_000 + 12 * 3_600_000
EMPTY: Values = [None] * STEPS_COUNT


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (0, [0, 1]),
        (1, [0, 0.5, 1]),
        (3, [0, 1, 2, 3]),
        (4, [0, 1, 2, 3, 4]),
        (7, [0, 2, 4, 6, 8]),
        (95, [0, 50, 100]),
        (1_000_000, [0, 500_000, 1_000_000]),
    ],
)
def test_ticks_are_round_and_reach_the_largest_value(most: float, ticks: list[float]) -> None:
    assert round_ticks(most) == ticks


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (999, "999"), (1500, "1.5k"), (2e6, "2M"), (None, "–"), (1e18, "1\u2009000\u2009000T")],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_path_has_gaps_and_dots() -> None:
    values = [1.0, 2.0, None, 3.0, None]
    drawn = path(values, 0, STEPS_COUNT - 1, lambda value: value)
    assert drawn == "M0.0,1.0L1.0,2.0M3.0,3.0h0.1"
    assert spark(EMPTY) == ""


def test_a_plot_is_drawn_with_axes_text_and_a_table() -> None:
    values: Values = [*EMPTY[2:], 10.0, 20.0]
    drawn = plot("Lag", [("<b>group</b>", values)], NOON_MS, unit="records")
    html = environment().from_string('{% from "plot.html" import plot %}{{ plot(p, "lag") }}').render(p=drawn)
    svg = re.search(r"<svg.*</svg>", html, re.DOTALL)
    assert svg
    tree = ElementTree.fromstring(svg[0])
    assert tree.attrib["role"] == "img"
    texts = [element.text for element in tree.iter() if element.tag == "text"]
    assert texts == ["0", "5", "10", "15", "20", "11:00", "11:10", "11:20", "11:30", "11:40", "11:50", "12:00"]
    description = tree.find("desc")
    assert description is not None
    assert description.text == "<b>group</b> over the last hour: now 20 records, least 10 records, most 20 records."
    assert '<th scope="row">12:00</th><td class="number">20</td>' in html
    assert '<th scope="row">11:55</th><td class="number">–</td>' in html
    assert "<b>" not in html
    assert "style" not in html


def test_a_plot_without_samples_says_so() -> None:
    assert plot("Lag", [("Lag", EMPTY)], NOON_MS).description == "Lag: no samples in the last hour."
