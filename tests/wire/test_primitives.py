from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import DecodeError
from kafscale.wire.primitives import (
    MAX_VARLONG_BITS,
    TAGS_MAX_COUNT,
    UVARINT,
    read_uvarint,
    read_varint,
    read_varlong,
    skip_tags,
    uvarint,
    varint,
)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3))
def test_uvarint_round_trip(value: int, before: bytes) -> None:
    raw = before + uvarint(value)
    assert read_uvarint(raw + b"\xff", len(before)) == (value, len(raw))


@given(st.integers(-(2**31), 2**31 - 1))
def test_varint_round_trip(value: int) -> None:
    assert read_varint(varint(value), 0) == (value, len(varint(value)))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlong_round_trip(value: int) -> None:
    assert read_varlong(varint(value), 0) == (value, len(varint(value)))


@pytest.mark.parametrize(
    ("value", "raw"),
    [(0, b"\0"), (-1, b"\1"), (1, b"\2"), (-64, b"\x7f"), (64, b"\x80\1"), (-(2**31), b"\xff" * 4 + b"\x0f")],
)
def test_zigzag_puts_the_sign_last(value: int, raw: bytes) -> None:
    assert varint(value) == raw


def test_short_lengths_are_in_the_table() -> None:
    assert [uvarint(value) for value in range(128)] == list(UVARINT)


@pytest.mark.parametrize("read", [read_uvarint, read_varint, read_varlong])
def test_varints_end(read: object) -> None:
    assert callable(read)
    with pytest.raises(DecodeError, match="more than"):
        read(b"\x80" * 20, 0)
    with pytest.raises(IndexError):
        read(b"\x80\x80", 0)


def test_a_uvarint_has_a_maximum_number_of_bytes() -> None:
    raw = uvarint(2**64 - 1)
    assert read_uvarint(raw, 0, MAX_VARLONG_BITS) == (2**64 - 1, 10)
    with pytest.raises(DecodeError, match="more than 5 bytes"):
        read_uvarint(raw, 0)
    with pytest.raises(DecodeError, match="more than 10 bytes"):
        read_uvarint(b"\x80" * 11, 0, MAX_VARLONG_BITS)


def test_skipping_tagged_fields_returns_the_position_after_them() -> None:
    raw = b"\x02\x00\x03abc\x81\x01\x00"
    assert skip_tags(raw + b"rest", 0, len(raw) + 4) == len(raw)
    with pytest.raises(DecodeError, match="past the end"):
        skip_tags(b"\x01\x00\x04abc", 0, 6)


def test_tagged_fields_have_a_most() -> None:
    """Each has two bytes at least; eight million of them in a header took seconds."""
    fields = b"\x05\x00" * TAGS_MAX_COUNT
    most = uvarint(TAGS_MAX_COUNT) + fields
    assert skip_tags(most, 0, len(most)) == len(most)
    with pytest.raises(DecodeError, match="1001 tagged fields"):
        skip_tags(uvarint(TAGS_MAX_COUNT + 1) + fields + b"\x05\x00", 0, len(most) + 2)
