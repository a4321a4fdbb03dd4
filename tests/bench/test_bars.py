"""Charts of ratios: what a bar's colour says, and that the legend says it, too."""

from __future__ import annotations

from xml.etree import ElementTree

from bench.bars import AHEAD, BEHIND, Bar, Bars


def test_a_bar_at_or_above_1x_is_painted_as_ahead() -> None:
    bars = [Bar("a", 2.6), Bar("b", 1.0), Bar("c", 0.99), Bar("d", 9.0)]
    root = ElementTree.fromstring(Bars(title="t", bars=bars, label_width=100, most_ratio=4).svg())
    painted = [each.get("fill") for each in root.findall("{*}rect")][1:]
    assert painted == [AHEAD, AHEAD, BEHIND, AHEAD, AHEAD, BEHIND]  # the last two are the legend's
    texts = [each.text for each in root.findall("{*}text")]
    assert "ahead: 1x or more" in texts
    assert "behind: less than 1x" in texts
    height = float(root.get("viewBox", "").split()[-1])
    assert all(float(each.get("y", "0")) < height for each in root.iter() if each.get("y"))
