"""The calibration loop exchanges what it is told to, and the table compares with what is committed."""

import itertools
import json
import socket

import pytest
from rich.console import Console

from bench import calibration
from bench.calibration import Exchange, exchanges_per_second
from bench.smoke import FETCH, PRODUCE, RATIOS, Measured, table_of


@pytest.mark.parametrize(
    "exchange",
    [
        Exchange(request_bytes=1000, reply_bytes=50, in_flight=5, is_synced=True),
        Exchange(request_bytes=100, reply_bytes=300_000, in_flight=1, is_synced=False),
    ],
)
def test_requests_of_any_size_are_exchanged(exchange):
    assert exchanges_per_second(exchange, 0.05) > 0


@pytest.mark.parametrize("last_look", range(2, 8))
def test_time_that_runs_out_between_any_two_looks_at_the_clock_ends_the_exchange(last_look, monkeypatch):
    """It waited for good, for an answer to nothing, if time ran out after an answer and before the next request."""
    monkeypatch.setattr(calibration, "perf_counter", itertools.count().__next__)
    monkeypatch.setattr(calibration, "WARM_UP_SHARE", 0.5)
    socket.setdefaulttimeout(10)
    try:
        assert exchanges_per_second(
            Exchange(request_bytes=9, reply_bytes=9, in_flight=1, is_synced=False), 2 * last_look
        )
    finally:
        socket.setdefaulttimeout(None)


def test_an_exchange_fails_when_the_other_process_ends(tmp_path):
    exchange = Exchange(
        request_bytes=9, reply_bytes=9, in_flight=1, is_synced=True, directory=tmp_path / "there is none"
    )
    with pytest.raises((RuntimeError, ConnectionError)):
        exchanges_per_second(exchange, 0.05)


def test_a_ratio_is_compared_with_the_committed_one():
    loads = [
        Measured(name=name, requests_per_second=50.0, mib_per_second=1.0, calibration_per_second=100.0)
        for name in ("known", "new")
    ]
    console = Console(width=150)
    with console.capture() as captured:
        console.print(table_of(loads, {"known": 0.4}))
    shown = captured.get()
    assert "+25 %" in shown
    assert shown.count("0.500") == 2
    assert shown.count("–") == 2


def test_there_is_a_committed_ratio_for_each_load():
    names = {f"produce {name}" for name in PRODUCE} | {f"fetch {name}" for name in FETCH}
    assert json.loads(RATIOS.read_text()).keys() == names
