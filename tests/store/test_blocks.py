import os

import pytest

from kafscale.store.blocks import BLOCK_BYTES, BlockPool, fill

SIZES = [1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 5]


def filled(parts):
    content = BlockPool().take(sum(map(len, parts)))
    fill(content, parts)
    return content


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("make", [bytes, bytearray], ids=["read-only", "writable"])
def test_an_object_is_its_parts_joined(size_bytes, make):
    data = os.urandom(size_bytes)
    content = filled([make(data[:7]), b"", make(data[7:])])
    assert content.read(0, size_bytes) == data


@pytest.mark.parametrize("start", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 3])
@pytest.mark.parametrize("length_bytes", [1, 2, BLOCK_BYTES, 2 * BLOCK_BYTES, 4 * BLOCK_BYTES])
def test_a_range_can_start_anywhere_and_ends_with_the_object(start, length_bytes):
    data = os.urandom(2 * BLOCK_BYTES + 9)
    assert filled([bytearray(data)]).read(start, length_bytes) == data[start : start + length_bytes]


def test_blocks_are_used_again_and_new_ones_made_where_they_do_not_suffice():
    pool = BlockPool()
    first = pool.take(2 * BLOCK_BYTES)
    pool.give_back(first)
    second = pool.take(3 * BLOCK_BYTES)
    assert {id(block) for block in first.blocks} < {id(block) for block in second.blocks}
    assert len(pool) == 0
    pool.give_back(second)
    assert len(pool) == 3
