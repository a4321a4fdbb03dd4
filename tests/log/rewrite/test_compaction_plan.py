"""What is read of segments that overlap, and which ones are rewritten together."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kafscale.formats.manifest import Manifest, Segment, without_covered
from kafscale.log.rewrite.compaction import groups, stretches
from kafscale.store.paths import SegmentKey


def segment(base_offset: int, last_offset: int, generation: int = 0, size_bytes: int = 100) -> Segment:
    key = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=base_offset, generation=generation)
    return Segment(key=key, last_offset=last_offset, size_bytes=size_bytes, max_timestamp_ms=0)


any_segments = st.lists(
    st.builds(
        lambda base, length, generation, size: segment(base, base + length, generation, size),
        st.integers(0, 40),
        st.integers(0, 20),
        st.integers(0, 3),
        st.integers(1, 300),
    ),
    unique_by=lambda s: (s.base_offset, s.generation),
    max_size=12,
).map(without_covered)


@given(any_segments, st.integers(0, 60))
def test_each_offset_is_read_once_and_from_the_segment_a_fetch_reads(segments, start_offset):
    manifest = Manifest(list(segments))
    read = {
        offset: stretch.segment
        for stretch in stretches(segments, start_offset)
        for offset in range(stretch.start_offset, stretch.stop_offset)
    }
    held = {offset for each in segments for offset in range(each.base_offset, each.last_offset + 1)}
    assert read.keys() == {offset for offset in held if offset >= start_offset}
    assert all(manifest.find(offset) is found for offset, found in read.items())
    assert sum(s.stop_offset - s.start_offset for s in stretches(segments, start_offset)) == len(read)


@given(any_segments, st.integers(1, 500))
def test_groups_are_neighbours_within_the_target_and_cover_nothing_that_is_missing(segments, target_bytes):
    found = list(groups(segments, target_bytes))
    assert [each for group in found for each in group] == list(segments)
    ends = []
    for group in found:
        held = {offset for each in group for offset in range(each.base_offset, each.last_offset + 1)}
        assert held == set(range(group[0].base_offset, max(each.last_offset for each in group) + 1))
        ends.append((min(held), max(held)))
        apart = all(a.last_offset < b.base_offset for a, b in pairwise(group))
        assert len(group) == 1 or not apart or sum(each.size_bytes for each in group) <= target_bytes
    assert all(before[1] < after[0] for before, after in pairwise(ends))
