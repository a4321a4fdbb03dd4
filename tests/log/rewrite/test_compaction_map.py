"""The offset map against a dict, and its memory."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from kafscale.log.rewrite.compaction_filter import EMPTY, SLOT_BYTES, OffsetMap, capacity_of

keys = st.lists(st.binary(max_size=2), max_size=60)


def numbered(put: Iterable[bytes]) -> Iterable[tuple[bytes, int]]:
    return ((key, offset) for offset, key in enumerate(put))


@given(keys, keys)
def test_the_offset_map_returns_the_last_offset_of_each_key_and_no_other_key(put, asked):
    latest = OffsetMap(64)
    assert latest.put_all(numbered(put)) is None
    model = {key: offset for offset, key in enumerate(put)}
    assert latest.key_count == len(model)
    assert latest.get_all([*put, *asked]) == [model.get(key, EMPTY) for key in [*put, *asked]]


@given(keys, st.integers(0, 10))
def test_a_full_offset_map_returns_the_first_offset_without_room(put, capacity):
    latest = OffsetMap(capacity)
    model: dict[bytes, int] = {}
    stopped = None
    for offset, key in enumerate(put):
        if key not in model and len(model) == capacity:
            stopped = offset
            break
        model[key] = offset
    assert latest.put_all(numbered(put)) == stopped
    assert latest.get_all(put) == [model.get(key, EMPTY) for key in put]


def test_the_offset_map_fits_its_byte_budget():
    size_bytes = 1 << 20
    latest = OffsetMap(capacity_of(size_bytes))
    columns = (latest._high_halves, latest._low_halves, latest._ends)
    assert sum(column.nbytes for column in columns) <= size_bytes + SLOT_BYTES
    assert latest.put_all(numbered(b"%d" % number for number in range(latest.capacity))) is None
    assert latest.put_all([(b"one more", 7)]) == 7
