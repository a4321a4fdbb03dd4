"""The bytes of the WAL: round trips, every damaged byte noticed, and what proves an acknowledgement."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import DamagedObject
from kafscale.formats.wal_entries import (
    ENTRY_HEADER_BYTES,
    FILE_HEADER_BYTES,
    FileHeader,
    WalEntry,
    decode_entry,
    decode_file_header,
    encode,
    encode_file_header,
    find_proof,
    is_zero,
    scan,
)

TOPIC = bytes(range(16))
SALT = 0x12345678
HEADER = FileHeader(number=3, sequence=17, salt=SALT, created_ms=1_700_000_000_000, started=True)


def entries(*data: bytes, first: int = 1) -> list[WalEntry]:
    made = [WalEntry(TOPIC, 2, 5, 1000 + index, each) for index, each in enumerate(data)]
    for sequence, entry in enumerate(made, start=first):
        entry.sequence = sequence
    return made


def encoded(*data: bytes, first: int = 1, durable: int = 0, salt: int = SALT) -> bytes:
    return b"".join(encode(entries(*data, first=first), durable_sequence=durable, salt=salt))


@given(
    topic=st.binary(min_size=16, max_size=16),
    partition=st.integers(0, 2**31 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    base_offset=st.integers(0, 2**63 - 1),
    data=st.binary(max_size=300),
    kind=st.integers(0, 255),
    sequence=st.integers(1, 2**64 - 1),
    salt=st.integers(0, 2**32 - 1),
)
def test_an_encoded_wal_entry_decodes_to_the_same_entry(
    topic, partition, leader_epoch, base_offset, data, kind, sequence, salt
):
    entry = WalEntry(topic, partition, leader_epoch, base_offset, data, None, kind)
    entry.sequence = sequence
    written = b"".join(encode([entry], durable_sequence=sequence - 1, salt=salt))
    (found,) = scan(memoryview(b"ab" + written + b"\0\0"), 2, salt=salt)
    assert (found.topic_id, found.partition, found.leader_epoch) == (topic, partition, leader_epoch)
    assert (found.base_offset, found.kind, bytes(found.data)) == (base_offset, kind, data)
    assert (found.sequence, found.durable_sequence) == (sequence, sequence - 1)
    assert (found.position, found.end) == (2 + ENTRY_HEADER_BYTES, 2 + len(written))


def test_the_data_is_not_copied():
    data = memoryview(bytearray(b"batch"))
    (entry,) = entries(data)
    assert encode([entry], durable_sequence=0, salt=0)[1] is data


def test_the_layout_of_an_entry_stays_as_documented():
    parts = [
        "574c4f47 00000004 5a1fb57b",  # magic, length, CRC
        "0000000000000001 0000000000000000",  # sequence, durable sequence
        "000102030405060708090a0b0c0d0e0f 00000002 00000005 00000000000003e8",  # topic id to base offset
        "00 000000 64617461",  # kind, padding, data
    ]
    assert encoded(b"data") == bytes.fromhex(" ".join(parts))


def test_every_flipped_bit_and_every_cut_is_noticed():
    written = encoded(b"some data")
    for position in range(len(written)):
        for bit in range(8):
            damaged = bytearray(written)
            damaged[position] ^= 1 << bit
            assert decode_entry(memoryview(damaged), 0, salt=SALT) is None, (position, bit)
        assert decode_entry(memoryview(written)[:position], 0, salt=SALT) is None


def test_a_scan_ends_at_the_first_place_that_holds_no_entry():
    written = encoded(b"one", b"two", b"three")
    assert [bytes(entry.data) for entry in scan(memoryview(written + bytes(100)), 0, salt=SALT)] == [
        b"one",
        b"two",
        b"three",
    ]
    assert list(scan(memoryview(bytes(100)), 0, salt=SALT)) == []
    assert list(scan(memoryview(written), 1, salt=SALT)) == []
    assert list(scan(memoryview(written), -1, salt=SALT)) == []


def test_the_wal_file_header_decodes_and_every_flipped_bit_is_detected():
    written = encode_file_header(HEADER)
    assert len(written) == FILE_HEADER_BYTES
    assert decode_file_header("f", written + b"entries") == HEADER
    for position in range(len(written)):
        damaged = bytearray(written)
        damaged[position] ^= 1
        assert decode_file_header("f", damaged) is None
        assert decode_file_header("f", written[:position]) is None


def test_a_file_of_a_later_version_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("kafscale.formats.wal_entries.VERSION", 9)
    written = encode_file_header(HEADER)
    monkeypatch.undo()
    with pytest.raises(DamagedObject, match="wal-7: WAL format version 9 is not known"):
        decode_file_header("wal-7", written)


def test_proof_is_a_later_valid_entry_written_when_the_bad_one_was_durable():
    bad = b"\1" * 80
    same_group = encoded(b"x", first=6, durable=4)
    next_group = encoded(b"y", first=7, durable=6)
    assert find_proof(bad + same_group, 0, sequence=5, salt=SALT) is None
    assert find_proof(bad + same_group + next_group, 0, sequence=5, salt=SALT) == len(bad + same_group)
    assert find_proof(bad + next_group[:-1], 0, sequence=5, salt=SALT) is None


def test_record_data_that_looks_like_an_entry_proves_nothing():
    forged = encoded(b"z", first=900, durable=899, salt=SALT + 1)
    assert find_proof(b"\1" * 80 + forged, 0, sequence=5, salt=SALT) is None


@pytest.mark.parametrize(("content", "expected"), [(b"ab\0\0", True), (b"ab\0\1", False), (b"ab", True), (b"a", True)])
def test_whether_the_rest_is_zero(content, expected):
    assert is_zero(content, 2) is expected
