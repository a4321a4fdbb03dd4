"""WAL objects: what is whole comes back, and what is not is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import DamagedObject
from kafscale.formats.wal_entries import ENTRY_HEADER_BYTES, METADATA, WalEntry
from kafscale.formats.wal_objects import (
    HEADER_BYTES,
    ObjectHeader,
    WalPosition,
    decode_header,
    decode_object,
    encode_header,
    encode_object,
)
from tests.formats import wal_objects

KEY = "_kafscale/default/wal/0000000003/00000000000000000007.wal"


def written(contents: list[bytes]) -> bytes:
    entries = [WalEntry(bytes(16), 2, 3, 100 + index, data) for index, data in enumerate(contents)]
    return wal_objects.written(entries)


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=5))
def test_an_encoded_wal_object_decodes_to_the_same_entries(contents):
    header, entries = decode_object(KEY, written(contents))
    assert (header.epoch, header.number, header.durable_number, header.is_fence) == (3, 7, 5, False)
    assert [bytes(entry.data) for entry in entries] == contents
    assert [entry.base_offset for entry in entries] == list(range(100, 100 + len(contents)))


def test_the_kind_of_an_entry_is_kept():
    entry = WalEntry(bytes(16), -1, 3, 0, b"x", kind=METADATA)
    entry.sequence = 1
    header = ObjectHeader(
        salt=1, epoch=3, entry_count=1, number=1, durable_number=0, sequence=1, body_bytes=ENTRY_HEADER_BYTES + 1
    )
    (found,) = decode_object(KEY, b"".join(encode_object(header, [entry], durable_sequence=0)))[1]
    assert found.kind == METADATA


def test_every_flipped_byte_is_found_and_the_key_named():
    content = written([b"one", b"two"])
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        with pytest.raises(DamagedObject, match=KEY):
            decode_object(KEY, damaged)


def test_an_object_that_is_cut_off_anywhere_is_damaged():
    content = written([b"one", b"two"])
    for length in range(len(content)):
        with pytest.raises(DamagedObject, match=KEY):
            decode_object(KEY, content[:length])
    with pytest.raises(DamagedObject, match=KEY):
        decode_object(KEY, content + b"x")


def test_a_fence_is_an_object_without_entries():
    fence = ObjectHeader(salt=0, epoch=4, entry_count=0, number=8, durable_number=7, sequence=0, body_bytes=0)
    assert len(encode_header(fence)) == HEADER_BYTES
    assert decode_header(KEY, encode_header(fence)).is_fence


def test_positions_are_in_order_of_epochs_then_numbers():
    assert WalPosition(1, 9) < WalPosition(2, 0) < WalPosition(2, 1)
