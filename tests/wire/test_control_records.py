"""Markers of transactions, against what aiokafka makes of them and what Kafka's own classes write.

The batches in hexadecimal are those of `MemoryRecords.withEndTransactionMarker` in kafka-clients 4.1.1, with an
`EndTransactionMarker(ControlRecordType, coordinatorEpoch)` of the values that are named beside them.
"""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from kafscale.errors import CorruptBatch
from kafscale.wire import control_records
from kafscale.wire.batch_header import CONTROL, parse_header, set_base_offset
from kafscale.wire.control_records import EndMarker, encode_marker, parse_marker
from kafscale.wire.records import ProducerStamp, Record, build_batch, validate

COMMITTED = EndMarker(producer_id=1000, producer_epoch=5, coordinator_epoch=9, is_commit=True)
# offset 42, leader epoch 7
COMMITTED_BY_JAVA = (
    "000000000000002a00000042000000070205019c070030000000000000018bcfe5687b0000018bcfe5687b"
    "00000000000003e80005ffffffff000000012000000008000000010c00000000000900"
)
ABORTED = EndMarker(producer_id=2**63 - 1, producer_epoch=2**15 - 1, coordinator_epoch=0, is_commit=False)
# offset 0, leader epoch -1
ABORTED_BY_JAVA = (
    "000000000000000000000042ffffffff02e447a9910030000000000000018bcfe5687b0000018bcfe5687b"
    "7fffffffffffffff7fffffffffff000000012000000008000000000c00000000000000"
)
JAVA_TIMESTAMP_MS = 1_700_000_000_123


def marker_of(is_commit: bool) -> EndMarker:
    return EndMarker(producer_id=7, producer_epoch=3, coordinator_epoch=9, is_commit=is_commit)


@pytest.mark.parametrize("is_commit", [False, True])
def test_an_encoded_marker_is_parsed_back_and_recognized_by_aiokafka(is_commit):
    encoded = encode_marker(marker_of(is_commit), 1234)
    header = validate(memoryview(encoded))
    assert (header.is_control, header.is_transactional, header.record_count) == (True, True, 1)
    assert (header.base_sequence, header.max_timestamp_ms) == (-1, 1234)
    assert parse_marker(memoryview(encoded), header) == marker_of(is_commit)
    theirs = DefaultRecordBatch(encoded)
    assert (theirs.is_control_batch, theirs.is_transactional, theirs.producer_id) == (True, True, 7)
    (record,) = theirs
    assert struct.unpack(">hh", record.key) == (0, int(is_commit))
    assert struct.unpack(">hi", record.value) == (0, 9)


def control_batch(key: bytes | None, value: bytes | None) -> memoryview:
    return memoryview(build_batch([Record(key=key, value=value)], attributes=CONTROL, producer=ProducerStamp(7, 3, -1)))


def test_a_control_record_of_another_type_is_not_a_marker():
    leader_change = control_batch(struct.pack(">hh", 0, 2), b"")
    assert parse_marker(leader_change, parse_header(leader_change)) is None


@pytest.mark.parametrize(("key", "value"), [(None, None), (b"\0\0\0", b"\0" * 6), (b"\0" * 4, b"\0" * 5), (b"", None)])
def test_a_marker_that_is_cut_off_is_a_corrupt_batch(key, value):
    batch = control_batch(key, value)
    with pytest.raises(CorruptBatch):
        parse_marker(batch, parse_header(batch))


def test_encoded_markers_equal_those_written_by_java():
    committed = encode_marker(COMMITTED, JAVA_TIMESTAMP_MS)
    set_base_offset(memoryview(committed), 42, 7)
    assert committed.hex() == COMMITTED_BY_JAVA
    assert encode_marker(ABORTED, JAVA_TIMESTAMP_MS).hex() == ABORTED_BY_JAVA


@pytest.mark.parametrize(
    ("written", "marker"), [(COMMITTED_BY_JAVA, COMMITTED), (ABORTED_BY_JAVA, ABORTED)], ids=["commit", "abort"]
)
def test_markers_written_by_java_are_parsed(written, marker):
    batch = memoryview(bytes.fromhex(written))
    assert parse_marker(batch, validate(batch)) == marker


def test_bytes_appended_to_a_marker_by_later_versions_are_ignored():
    batch = control_batch(struct.pack(">hh", 1, 1) + b"more", struct.pack(">hi", 3, 8) + b"more")
    assert parse_marker(batch, parse_header(batch)) == EndMarker(
        producer_id=7, producer_epoch=3, coordinator_epoch=8, is_commit=True
    )


@pytest.mark.parametrize("is_commit", [False, True])
def test_any_byte_of_a_marker_is_read_alike_by_the_short_way_and_the_long_one(monkeypatch, is_commit):
    for at in range(21, len(encode_marker(marker_of(is_commit), 1234))):  # from the attributes on
        for bit in range(8):
            batch = encode_marker(marker_of(is_commit), 1234)
            batch[at] ^= 1 << bit
            header = parse_header(memoryview(batch))
            short = control_records._parse_usual(memoryview(batch), header)
            if short is not None:
                with monkeypatch.context() as patched:
                    patched.setattr(control_records, "_parse_usual", lambda batch, header: None)
                    assert parse_marker(memoryview(batch), header) == short
    assert control_records._parse_usual(memoryview(encode_marker(marker_of(is_commit), 1)), header) is not None
