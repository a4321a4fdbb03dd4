"""Sizes and durations: what is written reads back, and what is doubtful is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.config.units import format_duration, format_size, parse_duration, parse_size


@given(st.integers(0, 10**18 - 1))
def test_sizes_round_trip(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.integers(0, 10**17))
def test_durations_round_trip(duration_us: int) -> None:
    assert parse_duration(format_duration(duration_us)) == duration_us


@given(st.text())
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    try:
        assert parse_size(text) >= 0
    except ValueError as exc:
        assert "allowed" in str(exc)  # noqa: PT017 (most texts are refused, some are sizes)


@given(st.text())
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert parse_duration(text) >= 0
    except ValueError as exc:
        assert "allowed" in str(exc)  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("4096", 4096), ("64MiB", 64 << 20), ("1GB", 10**9), ("1.5KiB", 1536), ("2 tib", 2 << 40), (" 7B ", 7)],
)
def test_a_size_is_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "64M", "1e6", "0.3B", "1_000", "٣", "1 2", "9" * 19])
def test_a_doubtful_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: a number of bytes"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "duration_us"),
    [("0", 0), ("2ms", 2_000), ("10s", 10_000_000), ("0.5 s", 500_000), ("5m", 300_000_000), ("1D", 86_400_000_000)],
)
def test_a_duration_is_read(text: str, duration_us: int) -> None:
    assert parse_duration(text) == duration_us


@pytest.mark.parametrize("text", ["", "5", "-1s", "1w", "1m30s", "0.1us", "s", "nan"])
def test_a_doubtful_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: a number with us, ms"):
        parse_duration(text)


@pytest.mark.parametrize(("size_bytes", "text"), [(0, "0"), (1_048_588, "1048588"), (10**9, "1GB"), (3 << 30, "3GiB")])
def test_a_size_is_written_in_its_largest_unit(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text
