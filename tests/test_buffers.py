"""Whatever the lengths, the bytes stay the same ones, in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.buffers import copy_into, cut, drop_first, pieces, size_of, slices_of

KINDS = (bytes, bytearray, lambda data: memoryview(bytearray(data)))
lists_of_buffers = st.lists(st.tuples(st.binary(max_size=50), st.sampled_from(KINDS)), max_size=30).map(
    lambda made: [kind(data) for data, kind in made]
)


@given(lists_of_buffers)
def test_the_size_is_that_of_the_bytes_joined(buffers):
    assert size_of(buffers) == len(b"".join(buffers))


@given(lists_of_buffers, st.integers(1, 120))
def test_cut_lists_are_the_same_bytes_and_of_one_size(buffers, size_bytes):
    found = [b"".join(each) for each in cut(buffers, size_bytes)]
    assert b"".join(found) == b"".join(buffers)
    assert {len(each) for each in found[:-1]} <= {size_bytes}
    assert all(0 < len(each) <= size_bytes for each in found)


@given(lists_of_buffers, st.integers(1, 120))
def test_cutting_buffers_copies_no_bytes(buffers, size_bytes):
    passed_on = [buffer for each in cut(buffers, size_bytes) for buffer in each]
    assert all(buffer for buffer in passed_on)
    originals = {id(buffer) for buffer in buffers} | {
        id(buffer.obj) for buffer in buffers if isinstance(buffer, memoryview)
    }
    for buffer in passed_on:
        assert id(buffer) in originals or id(buffer.obj) in originals


@given(lists_of_buffers, st.data())
def test_dropping_bytes_keeps_the_bytes_after_them(buffers, data):
    joined = b"".join(buffers)
    count = data.draw(st.integers(0, len(joined)))
    left = list(buffers)
    drop_first(left, count)
    assert b"".join(left) == joined[count:]
    assert not left or left[0]


@pytest.mark.parametrize("count", range(11))
def test_a_partial_send_resumes_where_it_stopped(count):
    buffers = [memoryview(b"abc"), b"", memoryview(b"defg"), memoryview(b"hij")]
    drop_first(buffers, count)
    assert b"".join(buffers) == b"abcdefghij"[count:]


@given(lists_of_buffers, st.lists(st.integers(1, 40)))
def test_dropping_a_part_at_a_time_ends_with_nothing(buffers, parts):
    left, rest = list(buffers), b"".join(buffers)
    for count in parts:
        drop_first(left, min(count, len(rest)))
        rest = rest[count:]
        assert b"".join(left) == rest


@given(lists_of_buffers)
def test_copying_into_a_buffer_joins_the_bytes_and_writes_nothing_after_them(buffers):
    joined = b"".join(buffers)
    target = bytearray(b"\xff" * (len(joined) + 5))
    assert copy_into(memoryview(target), buffers) == len(joined)
    assert target == joined + b"\xff" * 5


def test_a_copy_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="different structures"):
        copy_into(memoryview(bytearray(5)), [b"123", b"456"])


@given(st.binary(max_size=50), st.integers(1, 60))
def test_slices_of_one_buffer_are_its_bytes(buffer, max_bytes):
    found = list(slices_of(buffer, max_bytes))
    assert b"".join(found) == buffer
    assert {len(each) for each in found[:-1]} <= {max_bytes}
    assert all(each.obj is buffer and 0 < len(each) <= max_bytes for each in found)


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(1, 40))
def test_pieces_are_the_same_bytes_in_bounded_calls(parts, piece_bytes):
    found = list(pieces(parts, piece_bytes))
    assert b"".join(found) == b"".join(parts)
    assert all(0 < len(piece) <= piece_bytes for piece in found)
    assert (
        len(found) <= 2 * sum(map(len, parts)) / piece_bytes + sum(len(part) > piece_bytes // 2 for part in parts) + 1
    )
