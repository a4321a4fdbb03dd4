"""Pauses between attempts grow up to a bound."""

from __future__ import annotations

from kafscale.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 10.0)
    assert [backoff.seconds(count) for count in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert backoff.seconds(10_000) == 10.0
