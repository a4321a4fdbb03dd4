"""The index of an object of a stream: what is read by it is what the object has, and what it can't tell is damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import DamagedObject
from kafscale.formats import wal_index
from kafscale.formats.wal_entries import ENTRY_HEADER_BYTES, INDEX, WalEntry
from kafscale.formats.wal_index import decode_spans, find_index, runs_of, with_index
from kafscale.formats.wal_objects import HEADER_BYTES, ObjectHeader, decode_header, decode_object
from tests.formats.wal_objects import written

KEY = "_kafscale/default/wal/0000000003/00000000000000000007.wal"
TOPIC = bytes(range(16))
CONTENTS = st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=50)), min_size=1, max_size=20)


def entries_of(contents: list[tuple[int, bytes]]) -> list[WalEntry]:
    return [WalEntry(TOPIC, index, 3, offset, data) for offset, (index, data) in enumerate(contents)]


def told(entries: list[WalEntry] | tuple[WalEntry, ...]) -> list[tuple[int, int, int, int, bytes]]:
    return [(each.partition, each.base_offset, each.sequence, each.position, bytes(each.data)) for each in entries]


@given(CONTENTS, st.sets(st.integers(0, 3)), st.sampled_from([0, 100, 1 << 20]))
def test_reading_some_partitions_returns_all_their_entries(contents, wanted, gap_bytes):
    content = written(with_index(entries_of(contents)))
    header, entries = decode_object(KEY, content)
    index = find_index(KEY, header, content)
    assert index is not None
    assert index.keys() == {(TOPIC, partition) for partition, _ in contents}
    before, wal_index.GAP_MAX_BYTES = wal_index.GAP_MAX_BYTES, gap_bytes
    try:
        runs = runs_of(span for (_, partition), span in index.items() if partition in wanted)
    finally:
        wal_index.GAP_MAX_BYTES = before
    found: list[WalEntry] = []
    for run in runs:
        found += decode_spans(KEY, header, run, content[run.start : run.start + run.size_bytes])
    assert told(found) == told([each for each in entries if each.partition in wanted and each.kind != INDEX])
    for partition in wanted:
        offsets = [each.base_offset for each in found if each.partition == partition]
        assert offsets == [offset for offset, (index, _) in enumerate(contents) if index == partition]


def test_an_object_without_an_index_is_read_whole() -> None:
    content = written(entries_of([(0, b"x"), (1, b"y")]))
    assert find_index(KEY, decode_header(KEY, content), content) is None


def test_an_index_that_is_cut_off_is_none() -> None:
    content = written(with_index(entries_of([(index, b"x") for index in range(100)])))
    assert find_index(KEY, decode_header(KEY, content), content[:1000]) is None


@pytest.mark.parametrize("changes", [{"entry_count": 4}, {"body_bytes": 1000}])
def test_an_index_that_does_not_tell_of_all_is_damage(changes: dict[str, int]) -> None:
    content = written(with_index(entries_of([(0, b"x"), (1, b"y")])))
    header = decode_header(KEY, content)
    wrong = ObjectHeader(
        **{name: getattr(header, name) for name in header.__slots__ if not name.startswith("__")} | changes
    )
    with pytest.raises(DamagedObject, match="not all"):
        find_index(KEY, wrong, content)


def test_every_byte_that_is_flipped_in_a_span_is_found() -> None:
    content = written(with_index(entries_of([(0, b"one"), (1, b"two"), (1, b"three"), (2, b"four")])))
    header = decode_header(KEY, content)
    index = find_index(KEY, header, content)
    assert index is not None
    (run,) = runs_of([index[TOPIC, 1]])
    for position in range(run.start, run.start + run.size_bytes):
        damaged = bytearray(content)
        damaged[position] ^= 1
        with pytest.raises(DamagedObject, match="is damaged"):
            decode_spans(KEY, header, run, bytes(damaged[run.start : run.start + run.size_bytes]))


def test_an_index_that_is_damaged_is_none() -> None:
    content = bytearray(written(with_index(entries_of([(0, b"one"), (1, b"two")]))))
    content[HEADER_BYTES + ENTRY_HEADER_BYTES] ^= 1
    assert find_index(KEY, decode_header(KEY, bytes(content)), bytes(content)) is None  # read whole, where it is found
