"""Kafka's arithmetic of rates and of buckets of tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.api.handling import quotas as rates
from kafscale.api.handling.quotas import Rate, TokenBucket

RATE = 10_000


# ---- the rate -------------------------------------------------------------------------------------------------------


def test_ten_seconds_of_the_rate_are_allowed_in_one_burst() -> None:
    rate = Rate()
    rate.add(10 * RATE, 5.0)
    assert rate.excess_seconds(RATE, 5.0) == pytest.approx(0)
    rate.add(2 * RATE, 5.0)
    assert rate.excess_seconds(RATE, 5.0) == pytest.approx(2)


def test_amounts_older_than_eleven_seconds_no_longer_count() -> None:
    rate = Rate()
    rate.add(100 * RATE, 0.0)
    rate.add(RATE, 10.9)
    assert rate.excess_seconds(RATE, 10.9) == pytest.approx(101 - 10.9)
    rate.add(RATE, 11.1)
    assert rate.excess_seconds(RATE, 11.1) < 0


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 5 * RATE)), min_size=1, max_size=200))
def test_a_client_that_waits_its_throttle_time_stays_within_the_rate(sent: list[tuple[float, int]]) -> None:
    """Whoever waits for as long as it is told sends, over any longer time, no more than that and what it began with."""
    rate, now, total = Rate(), 0.0, 0
    for pause, size in sent:
        now += pause
        rate.add(size, now)
        total += size
        now += max(0.0, rate.excess_seconds(RATE, now))
        assert total <= RATE * (now + 11) + 1
        assert len(rate._windows) <= rates.WINDOWS_COUNT + 1


# ---- the bucket -----------------------------------------------------------------------------------------------------


def test_a_token_bucket_holds_eleven_seconds_and_overdrafts_are_repaid() -> None:
    """The example of Kafka's TokenBucket, with eleven windows for its hundred."""
    bucket = TokenBucket()
    bucket.take(55, 5, 100.0)
    assert bucket.missing_seconds(5, 100.0) == 0
    bucket.take(60, 5, 100.0)
    assert bucket.missing_seconds(5, 100.0) == 12
    assert bucket.missing_seconds(5, 111.0) == 1
    assert bucket.missing_seconds(5, 112.0) == 0


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 50)), min_size=1, max_size=200))
def test_a_client_that_waits_for_missing_tokens_stays_within_the_bucket_rate(taken: list[tuple[float, int]]) -> None:
    bucket, now, total = TokenBucket(), 0.0, 0
    for pause, count in taken:
        now += pause + bucket.missing_seconds(5, now + pause)
        bucket.take(count, 5, now)
        total += count
        assert total <= 5 * (now + rates.WINDOWS_COUNT) + count + 1e-6


def test_a_bucket_follows_its_rate() -> None:
    bucket = TokenBucket()
    bucket.take(110, 10, 0.0)
    assert bucket.missing_seconds(10, 0.0) == 0
    bucket.take(20, 2, 0.0)
    assert bucket.missing_seconds(2, 0.0) == 10
    bucket.take(0, 2, 1000.0)
    bucket.take(23, 2, 1000.0)
    assert bucket.missing_seconds(2, 1000.0) == 0.5
