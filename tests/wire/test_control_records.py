"""Markers of transactions, against what aiokafka makes of them."""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from kafscale.errors import CorruptBatch
from kafscale.wire.control_records import EndMarker, encode_marker, parse_marker
from kafscale.wire.records import CONTROL, ProducerStamp, Record, build_batch, parse_header, validate


def marker_of(is_commit: bool) -> EndMarker:
    return EndMarker(producer_id=7, producer_epoch=3, coordinator_epoch=9, is_commit=is_commit)


@pytest.mark.parametrize("is_commit", [False, True])
def test_a_marker_is_read_back_and_is_what_clients_know_as_one(is_commit):
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


def test_another_control_record_is_no_marker():
    leader_change = control_batch(struct.pack(">hh", 0, 2), b"")
    assert parse_marker(leader_change, parse_header(leader_change)) is None


@pytest.mark.parametrize(("key", "value"), [(None, None), (b"\0\0\0", b"\0" * 6), (b"\0" * 4, b"\0" * 5), (b"", None)])
def test_a_marker_that_is_cut_off_is_a_corrupt_batch(key, value):
    batch = control_batch(key, value)
    with pytest.raises(CorruptBatch):
        parse_marker(batch, parse_header(batch))
