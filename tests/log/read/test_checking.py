"""Checking batches when they are first read: what is left of a range that is damaged."""

from __future__ import annotations

import pytest

from kafscale.errors import DamagedBatch
from kafscale.log.partition.tail import Slices
from kafscale.log.read import checking
from kafscale.log.read.checking import are_whole, is_whole, keep_whole, whole_until
from tests.devtools.fakes.segment_objects import batches_of_size, make_batch


def batch_of(offset: int, *, damaged: bool = False) -> bytes:
    batch = make_batch(offset, [b"x"])
    return batch[:-1] + b"?" if damaged else batch


@pytest.mark.parametrize("turn_batches", [1, 3, 1000])
async def test_checking_in_turns_finds_damage_at_any_position(monkeypatch, turn_batches):
    monkeypatch.setattr(checking, "TURN_BATCHES", turn_batches)
    data = batches_of_size(100, 10)
    assert await are_whole(memoryview(data))
    assert is_whole(memoryview(data))
    assert whole_until(memoryview(data)) == min(10, turn_batches) * 100
    for position in (*range(8, 12), *range(16, 100)):
        damaged = bytearray(data)
        damaged[700 + position] ^= 1
        assert not await are_whole(memoryview(damaged)), position
        assert not is_whole(memoryview(damaged)), position


@pytest.mark.parametrize(("offset", "first", "end"), [(0, 0, 1), (2, 2, 6), (4, 5, 6), (5, 5, 6)])
def test_the_whole_batches_from_an_offset_on_are_left(offset, first, end):
    """Compaction has removed the offsets 3 and 4."""
    parts = {0: batch_of(0), 1: batch_of(1, damaged=True), 2: batch_of(2), 5: batch_of(5)}
    slices = Slices([memoryview(b"".join(parts.values()))], end_offset=6)
    damage = keep_whole(slices, offset, 0, "name")
    assert b"".join(slices.buffers) == b"".join(parts[each] for each in parts if first <= each < end)
    assert slices.end_offset == end
    assert (damage is None) is (end == 6)


@pytest.mark.parametrize(("whole", "damaged", "last"), [((0, 5), (1,), 4), ((0, 5), (1, 2), 4), ((0,), (1,), 5)])
def test_a_damaged_batch_is_reported_up_to_the_next_whole_batch(whole, damaged, last):
    """Its own header tells no offset that can be trusted."""
    data = b"".join(batch_of(each, damaged=each in damaged) for each in sorted((*whole, *damaged)))
    for offset in range(1, last + 1):
        with pytest.raises(DamagedBatch, match=f"name: the record batch with offsets 1 to {last} is damaged"):
            keep_whole(Slices([memoryview(data)], end_offset=6), offset, 0, "name")
