"""The partition of an internal topic that a group or transactional id is in."""

import pytest

from kafscale.cluster.coordinator.partitions import (
    REMEMBERED_MAX_LENGTH,
    _remembered,
    coordinator_partition,
    java_hash,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("abc", 96_354),
        ("hello", 99_162_322),
        ("polygenelubricants", -(1 << 31)),
        ("é", 233),
        ("😀", 0xD83D * 31 + 0xDE00),  # two UTF-16 units
    ],
)
def test_the_hash_is_that_of_a_java_string(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_a_partition_is_the_absolute_value_of_the_hash_and_that_of_the_smallest_number_is_zero() -> None:
    assert coordinator_partition("hello", 50) == 22
    assert java_hash("zombie") == -696_355_290
    assert coordinator_partition("zombie", 50) == 40
    assert coordinator_partition("polygenelubricants", 50) == 0


def test_a_key_that_is_too_long_to_be_remembered_is_in_the_same_partition_each_time() -> None:
    key = "ab" * REMEMBERED_MAX_LENGTH
    known_count = _remembered.cache_info().currsize
    assert coordinator_partition(key, 50) == coordinator_partition(key, 50) == abs(java_hash(key)) % 50
    assert _remembered.cache_info().currsize == known_count
