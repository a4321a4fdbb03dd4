"""Tests of how metrics are read and exposed."""

from __future__ import annotations

import attrs

from kafscale.metrics import Metrics


@attrs.frozen
class _Statistics:
    """What a component shows in these tests."""

    done_count: int
    is_full: bool


def test_metrics_of_a_look_are_read_off_it_at_each_scrape() -> None:
    seen = _Statistics(done_count=1, is_full=False)
    metrics = Metrics()
    queue = metrics.of(lambda: seen)
    queue.count("kafscale_done_total", "What is done.", lambda found: found.done_count)
    queue.gauge("kafscale_full", "1 while it is full.", lambda found: found.is_full)
    assert metrics.expose().splitlines() == [
        "# HELP kafscale_done_total What is done.",
        "# TYPE kafscale_done_total counter",
        "kafscale_done_total 1",
        "# HELP kafscale_full 1 while it is full.",
        "# TYPE kafscale_full gauge",
        "kafscale_full 0",
    ]
    seen = _Statistics(done_count=7, is_full=True)
    assert {"kafscale_done_total 7", "kafscale_full 1"} <= set(metrics.expose().splitlines())


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
