"""Which segments are merged: the rule, and what follows from it for a log that grows and grows."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.formats.manifest import Segment
from kafscale.log.rewrite.merger import MERGE_FACTOR, SOURCES_MAX_COUNT, Found, find_sources
from kafscale.store.paths import SegmentKey

TARGET = 1000
TOPIC_ID = bytes(range(16))


def segment(number: int, size_bytes: int, *, last: int | None = None, generation: int = 0) -> Segment:
    key = SegmentKey(topic="t", topic_id=TOPIC_ID, partition=0, base_offset=10 * number, generation=generation)
    return Segment(key=key, last_offset=last or 10 * number + 9, size_bytes=size_bytes, max_timestamp_ms=0)


def log_of(*sizes: int) -> list[Segment]:
    return [segment(number, size) for number, size in enumerate(sizes)]


def found(segments, **options) -> list[int]:
    """The numbers of the segments to merge."""
    return [each.base_offset // 10 for each in find_sources(segments, TARGET, **options).sources]


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([], []),
        ([1], []),
        ([1] * 9, []),
        ([1] * 10, range(10)),
        ([400, 20, *[1] * 10], range(2, 12)),  # 30 < 10 * 20
        ([400, *[20] * 10, 1], range(1, 12)),
        ([2, *[1] * 9], []),
        ([2, *[1] * 18], range(19)),
        ([400, 400, 300], [0, 1]),  # the third does not fit: it is closed
        ([400, 400, 100], []),  # it could still grow
        ([499, 500], []),
        ([5, 5, 500, 1], [0, 1]),  # closed by one that is large already
        ([5, 500, 5, 500, 5], []),
        ([500, 5, 5], []),
    ],
)
def test_segments_are_merged_by_their_sizes(sizes, merged):
    assert found(log_of(*sizes)) == list(merged)


def test_only_adjacent_segments_are_merged():
    assert found([segment(0, 1), segment(1, 1), segment(3, 1), segment(4, 1)]) == [0, 1]
    assert found([segment(0, 1, last=12), segment(1, 1), segment(2, 1), segment(3, 500)]) == [1, 2]


def test_an_excluded_segment_separates_its_neighbours():
    segments = log_of(5, 5, 5, 5, 5)
    assert found(segments, excluded={segments[2].key}) == [0, 1]


def test_groups_of_less_than_the_least_count_are_passed_over_and_found_later():
    segments = log_of(400, 400, 300, *[50] * 8, 500, 1)
    assert found(segments) == [0, 1]
    passed = find_sources(segments, TARGET, least_count=9)
    assert [each.base_offset // 10 for each in passed.sources] == list(range(2, 11))
    assert passed.open_from == 0
    assert find_sources(segments, TARGET, least_count=10) == Found(sources=[], open_from=0)


def test_no_more_are_merged_at_once_than_can_be_read_in_a_while():
    assert len(found(log_of(*[1] * 1002))) == SOURCES_MAX_COUNT == 1000
    assert found(log_of(*[0] * 3000)) == list(range(1000))


def test_settled_segments_are_not_considered_again():
    assert find_sources(log_of(500, 5, 500, 5, 5), TARGET).open_from == 3
    assert find_sources(log_of(500, 500), TARGET).open_from == 2
    assert find_sources(log_of(500, 5, 5, 500, 5), TARGET).open_from == 1
    assert find_sources([], TARGET).open_from == 0


def grow(sizes: list[int]) -> tuple[list[Segment], dict[int, int]]:
    """Flush segments of these sizes, merging whenever there is something to merge; how often each was written."""
    segments: list[Segment] = []
    written = dict.fromkeys(range(len(sizes)), 0)
    settled = 0
    for number, size in enumerate(sizes):
        segments.append(segment(number, size))
        while True:
            first = next((i for i, each in enumerate(segments) if each.base_offset >= settled), len(segments))
            choice = find_sources(segments[first:], TARGET)
            assert choice.sources == find_sources(segments, TARGET).sources
            if first + choice.open_from < len(segments):
                settled = segments[first + choice.open_from].base_offset
            if not choice.sources:
                break
            merged = choice.sources
            start = segments.index(merged[0])
            size_bytes = sum(each.size_bytes for each in merged)
            assert len(merged) > 1
            assert size_bytes <= TARGET
            for each in range(merged[0].base_offset // 10, merged[-1].last_offset // 10 + 1):
                written[each] += 1
            segments[start : start + len(merged)] = [
                segment(merged[0].base_offset // 10, size_bytes, last=merged[-1].last_offset, generation=1)
            ]
    return segments, written


@given(st.lists(st.integers(1, 700), max_size=200))
def test_a_log_that_grows_is_merged_into_large_segments_and_every_byte_is_written_a_few_times(sizes):
    segments, written = grow(sizes)
    assert sum(each.size_bytes for each in segments) == sum(sizes)
    assert [each.last_offset + 1 for each in segments[:-1]] == [each.base_offset for each in segments[1:]]
    # Of any two neighbours that are small, only the last ones are not too large together.
    for before, after in pairwise(segments):
        if before.size_bytes + after.size_bytes <= TARGET and 2 * max(before.size_bytes, after.size_bytes) < TARGET:
            assert after.base_offset >= segments[find_sources(segments, TARGET).open_from].base_offset
    for number, size in enumerate(sizes):
        most, grown = 1, size  # once at the end, and every time before it gets ten times as large
        while 2 * grown < TARGET:
            most, grown = most + 1, grown * MERGE_FACTOR
        assert written[number] <= (0 if 2 * size >= TARGET else most)


def test_a_slow_partition_has_few_segments_at_any_time():
    rng = random.Random(1)
    segments, written = grow([rng.randint(1, 3) for _ in range(3000)])
    assert len(segments) < 3000 * 2 / (TARGET * 0.8) + 4 * MERGE_FACTOR
    assert max(written.values()) <= 4
