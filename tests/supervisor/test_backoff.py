"""How long a broker that died again and again has to wait."""

from __future__ import annotations

from kafscale.supervisor.backoff import GROWN_UP_SECONDS, PAUSE_MAX_SECONDS, Backoff


def test_the_first_pause_is_none_and_further_ones_double_up_to_a_bound() -> None:
    backoff = Backoff()
    assert [backoff.pause_seconds(1.0) for _ in range(10)] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    assert PAUSE_MAX_SECONDS == 10


def test_who_has_lived_for_long_is_started_again_at_once() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.pause_seconds(1.0)
    assert backoff.pause_seconds(GROWN_UP_SECONDS) == 0
    assert [backoff.pause_seconds(1.0) for _ in range(2)] == [0.1, 0.2]
