"""The list of segments, and which of overlapping ones are read, against a model that looks at every single offset."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.formats.manifest import Manifest, Segment, without_covered
from kafscale.store.paths import SegmentKey

TOPIC_ID = bytes(range(16))


def segment(base_offset: int, last_offset: int, generation: int = 0, size_bytes: int = 100) -> Segment:
    key = SegmentKey(topic="t", topic_id=TOPIC_ID, partition=0, base_offset=base_offset, generation=generation)
    return Segment(key=key, last_offset=last_offset, size_bytes=size_bytes, max_timestamp_ms=0)


def spans(segments) -> list[tuple[int, int, int]]:
    return [(each.base_offset, each.last_offset, each.generation) for each in segments]


def offsets(segments) -> set[int]:
    return {offset for each in segments for offset in range(each.base_offset, each.last_offset + 1)}


def in_time(segments) -> list[Segment]:
    """Without the flushes that begin within a merged segment and end behind it."""
    merged = [each for each in segments if each.generation]
    return [
        each
        for each in segments
        if each.generation
        or not any(other.base_offset <= each.base_offset <= other.last_offset < each.last_offset for other in merged)
    ]


def naively_resolved(segments) -> list[Segment]:
    """Newest generation first; one that adds no offset is left out, and one that newer ones know nothing of."""
    kept: list[Segment] = []
    segments = in_time(segments)
    for each in sorted(segments, key=lambda s: (-s.generation, s.base_offset)):
        own = offsets([each])
        newer = offsets(other for other in kept if other.generation > each.generation)
        older = offsets(other for other in segments if other.generation < each.generation)
        if not own <= offsets(kept) and not (own & newer and own <= newer | older):
            kept.append(each)
    return sorted(kept, key=lambda s: (s.base_offset, s.generation))


any_segments = st.lists(
    st.builds(
        lambda base, length, generation: segment(base, base + length, generation),
        st.integers(0, 40),
        st.integers(0, 20),
        st.integers(0, 3),
    ),
    unique_by=lambda s: (s.base_offset, s.generation),
    max_size=12,
)


@given(any_segments)
def test_segments_are_covered_exactly_as_in_a_model_that_looks_at_every_offset(segments):
    assert spans(without_covered(segments)) == spans(naively_resolved(segments))


@given(any_segments, st.randoms())
def test_the_order_of_the_listing_does_not_matter(segments, random):
    shuffled = list(segments)
    random.shuffle(shuffled)
    assert spans(without_covered(shuffled)) == spans(without_covered(segments))


@given(any_segments)
def test_no_offset_is_lost_and_resolving_again_changes_nothing(segments):
    resolved = without_covered(segments)
    assert offsets(resolved) == offsets(in_time(segments))
    assert spans(without_covered(resolved)) == spans(resolved)


def test_a_merged_segment_replaces_its_parts():
    parts = [segment(0, 9), segment(10, 19), segment(20, 29)]
    assert spans(without_covered([*parts, segment(0, 19, generation=1)])) == [(0, 19, 1), (20, 29, 0)]


def test_a_later_generation_wins_over_a_leftover_of_an_interrupted_merge():
    sources = [segment(0, 9), segment(10, 19), segment(20, 29)]
    left_over = segment(0, 29, generation=1)
    assert spans(without_covered([*sources, left_over])) == [(0, 29, 1)]
    later = segment(0, 19, generation=2)
    assert spans(without_covered([*sources, left_over, later])) == [(0, 19, 2), (20, 29, 0)]
    assert spans(without_covered([*sources[:2], left_over, later])) == [(0, 29, 1), (0, 19, 2)]  # it is all there is


@pytest.mark.parametrize("late", [segment(10, 29), segment(10, 35), segment(20, 60)])
@pytest.mark.parametrize("later", [[], [segment(30, 32)], [segment(30, 39), segment(40, 49)]])
def test_a_late_flush_that_overlaps_a_merged_segment_is_not_read(late, later):
    merged = segment(0, 29, generation=1)
    assert spans(without_covered([merged, late, *later])) == spans([merged, *later])


def test_a_segment_is_covered_by_a_segment_that_begins_far_before_its_neighbour():
    segments = [segment(0, 100, generation=1), segment(10, 20, generation=2), segment(30, 40)]
    assert spans(without_covered(segments)) == [(0, 100, 1), (10, 20, 2)]


def test_a_segment_is_covered_by_two_that_touch_each_other():
    newer = [segment(0, 4, generation=1), segment(5, 9, generation=1)]
    for order in (newer, newer[::-1]):
        assert spans(without_covered([*order, segment(3, 7)])) == [(0, 4, 1), (5, 9, 1)]
        assert spans(without_covered([*order, segment(3, 10)])) == [(0, 4, 1), (5, 9, 1)]


def test_find_returns_the_segment_that_holds_an_offset_or_the_next_segment():
    manifest = Manifest([segment(10, 19), segment(20, 29), segment(40, 49)])
    found = {offset: manifest.find(offset) for offset in (0, 10, 19, 20, 29, 30, 39, 40, 49, 50)}
    bases = {offset: None if each is None else each.base_offset for offset, each in found.items()}
    assert bases == {0: 10, 10: 10, 19: 10, 20: 20, 29: 20, 30: 40, 39: 40, 40: 40, 49: 40, 50: None}


@given(any_segments, st.integers(0, 70))
def test_find_returns_a_segment_with_the_offset_whenever_a_segment_has_the_offset(segments, offset):
    resolved = without_covered(segments)
    found = Manifest(list(resolved)).find(offset)
    holders = [each for each in resolved if each.base_offset <= offset <= each.last_offset]
    if holders:
        assert found is max(holders, key=lambda s: (s.base_offset, s.generation))
    else:
        following = [each for each in resolved if each.base_offset > offset]
        assert found is (following[0] if following else None)


def test_the_manifest_size_follows_added_and_removed_segments():
    manifest = Manifest([segment(0, 9, size_bytes=5)])
    manifest.add(segment(10, 19, size_bytes=7))
    assert manifest.size_bytes == 12
    assert spans(manifest.take_below(10)) == [(0, 9, 0)]
    assert manifest.size_bytes == 7


@given(any_segments, st.integers(0, 70))
def test_take_below_takes_every_segment_that_ends_before_the_offset_except_the_last(segments, offset):
    resolved = without_covered(segments)
    manifest = Manifest(list(resolved))
    taken = manifest.take_below(offset)
    newest = max(resolved, key=lambda each: each.last_offset, default=None)
    expected = [each for each in resolved if each.last_offset < offset and each is not newest]
    assert spans(taken) == spans(expected)
    assert spans(manifest.segments) == spans(each for each in resolved if each not in expected)
    assert manifest.size_bytes == 100 * len(manifest.segments)


def test_a_timestamp_is_learned_for_the_segment_of_that_key_only():
    manifest = Manifest([segment(0, 9), segment(10, 19)])
    manifest.learn_timestamp(attrs.evolve(segment(10, 19), max_timestamp_ms=7))
    manifest.learn_timestamp(attrs.evolve(segment(20, 29), max_timestamp_ms=8))  # it has gone meanwhile
    assert [each.max_timestamp_ms for each in manifest.segments] == [0, 7]


@given(any_segments, st.integers(0, 40), st.integers(0, 20), st.integers(0, 3))
def test_segments_in_newer_generations_are_covered(segments, base, length, generation):
    manifest = Manifest(list(without_covered(segments)))  # what it leaves out is not read, so it covers nothing
    newer = [each for each in manifest.segments if each.generation > generation]
    held = {offset for each in newer for offset in range(each.base_offset, each.last_offset + 1)}
    asked = set(range(base, base + length + 1))
    assert manifest.covers(segment(base, base + length, generation).key, base + length) == (asked <= held)


@given(any_segments, any_segments)
def test_exactly_the_keys_of_its_segments_are_referred_to(segments, others):
    manifest = Manifest(list(without_covered(segments)))
    keys = {each.key for each in manifest.segments}
    for each in (*segments, *others):
        assert manifest.refers_to(each.key) == (each.key in keys)


@given(any_segments, st.randoms())
def test_a_merged_segment_has_the_same_place_as_after_a_restart(segments, random):
    manifest = Manifest(list(without_covered(segments)))
    if not manifest.segments:
        return
    first = random.randrange(len(manifest.segments))
    sources = manifest.segments[first : first + random.randint(1, 5)]
    merged = segment(
        sources[0].base_offset,
        max(each.last_offset for each in sources),
        generation=max(each.generation for each in manifest.segments) + 1,
        size_bytes=33,
    )
    before = list(manifest.segments)
    manifest.replace(sources, merged)
    assert spans(without_covered(manifest.segments)) == spans(without_covered([*before, merged]))
    assert merged in manifest.segments
    assert not set(sources) & set(manifest.segments)
    assert [each for each in manifest.segments if each is not merged] == [
        each for each in before if each not in sources
    ]
    assert manifest.segments == sorted(manifest.segments, key=lambda each: (each.base_offset, each.generation))
    assert manifest.size_bytes == sum(each.size_bytes for each in manifest.segments)


@pytest.mark.parametrize(
    "merged",
    [segment(0, 29), segment(1, 29, generation=1), segment(0, 28, generation=1)],
    ids=["no newer", "begins too late", "ends too early"],
)
def test_a_segment_that_does_not_cover_its_sources_cannot_replace_the_sources(merged):
    parts = [segment(0, 9), segment(10, 19), segment(20, 29)]
    with pytest.raises(AssertionError):
        Manifest(parts).replace(parts, merged)


def test_segments_removed_from_the_manifest_are_not_replaced():
    manifest = Manifest([segment(10, 19)])
    with pytest.raises(AssertionError):
        manifest.replace([segment(0, 9), segment(10, 19)], segment(0, 19, generation=1))
