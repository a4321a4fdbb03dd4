"""Tests of how metrics are read and exposed."""

from __future__ import annotations

from kafscale.metrics import Metrics


def test_control_characters_in_labels_are_escaped() -> None:
    """A group's name had a terminal that showed the page change its title, or clear it."""
    metrics = Metrics()
    names = ["\x1b[2J", "a\\x1b", "tab\tline\nreturn\r", "\x9b1m\u202e", '"quoted"']
    metrics.callback("kafscale_lag", "Lag.", "group", samples=lambda: [((name,), 1) for name in names])
    assert metrics.expose().splitlines()[2:] == [
        r'kafscale_lag{group="\\x1b[2J"} 1',
        r'kafscale_lag{group="a\\x1b"} 1',
        r'kafscale_lag{group="tab\\tline\nreturn\\x0d"} 1',
        r'kafscale_lag{group="\\x9b1m\\u202e"} 1',
        r'kafscale_lag{group="\"quoted\""} 1',
    ]
