from __future__ import annotations

import struct

import pytest

from kafscale.errors import CorruptBatch, InvalidRecord
from kafscale.wire import compression
from kafscale.wire.batch_header import (
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    batches,
    compute_crc,
    parse_header,
    set_base_offset,
    set_log_append_time,
)
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records, validate

RECORDS = [Record(key=b"k", value=b"%d" % i, timestamp_ms=1000 + i) for i in range(5)]


def batch_of(records: list[Record] = RECORDS, **options: object) -> memoryview:
    return memoryview(build_batch(records, **options))  # type: ignore[arg-type]


def test_every_field() -> None:
    view = batch_of(
        base_offset=1 << 40,
        codec=compression.GZIP,
        attributes=TRANSACTIONAL | LOG_APPEND_TIME,
        producer=ProducerStamp(producer_id=7, producer_epoch=3, base_sequence=100),
    )
    header = parse_header(view)
    assert (header.base_offset, header.last_offset, header.next_offset) == (1 << 40, (1 << 40) + 4, (1 << 40) + 5)
    assert (header.size_bytes, header.record_count, header.leader_epoch, header.magic) == (len(view), 5, -1, 2)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1000, 1004)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 3, 100, 104)
    assert (header.codec, header.is_log_append_time, header.is_transactional, header.is_control) == (
        1,
        True,
        True,
        False,
    )
    assert header.has_producer_id
    assert header.crc == compute_crc(view)


def test_a_plain_batch_has_no_producer_and_no_flags() -> None:
    header = parse_header(batch_of())
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (-1, -1, -1, -1)
    assert (header.attributes, header.has_producer_id) == (0, False)
    assert parse_header(batch_of(attributes=CONTROL)).is_control


def test_sequences_wrap_to_zero() -> None:
    header = parse_header(batch_of(producer=ProducerStamp(producer_id=0, producer_epoch=0, base_sequence=2**31 - 2)))
    assert header.last_sequence == 2


def test_a_batch_gets_its_place_without_a_new_crc() -> None:
    view = batch_of()
    set_base_offset(view, 12345678901, 9)
    header = validate(view)
    assert (header.base_offset, header.leader_epoch) == (12345678901, 9)
    assert [record.offset for record in iterate_records(view)] == list(range(12345678901, 12345678906))


def test_log_append_time_is_every_records_timestamp() -> None:
    view = batch_of(attributes=TRANSACTIONAL)
    set_log_append_time(view, 5_000_000)
    header = validate(view)
    assert (header.max_timestamp_ms, header.base_timestamp_ms) == (5_000_000, 1000)
    assert header.is_log_append_time
    assert header.is_transactional
    assert {record.timestamp_ms for record in iterate_records(view)} == {5_000_000}


def test_concatenated_batches_come_apart() -> None:
    parts = [build_batch(RECORDS[:count], codec=codec) for count, codec in ((1, 0), (5, 4), (2, 0))]
    assert list(batches(memoryview(b"".join(parts)))) == parts
    assert list(batches(memoryview(b""))) == []


@pytest.mark.parametrize("left", [1, 11, 12, 60, 61, -1])
def test_a_batch_that_is_cut_off_is_reported_after_the_whole_ones(left: int) -> None:
    whole = bytes(batch_of())
    cut = iter(batches(memoryview(whole + whole[:left])))
    assert next(cut) == whole
    with pytest.raises(CorruptBatch):
        next(cut)


@pytest.mark.parametrize("length", [-1, 0, 48, 2**31 - 1, -(2**31)])
def test_a_length_that_no_batch_has(length: int) -> None:
    view = batch_of()
    struct.pack_into(">i", view, 8, length)
    with pytest.raises(CorruptBatch, match=str(length)):
        list(batches(view))


@pytest.mark.parametrize(
    ("magic", "error"), [(0, InvalidRecord), (1, InvalidRecord), (3, CorruptBatch), (255, CorruptBatch)]
)
def test_other_magics_are_refused_as_kafka_does(magic: int, error: type[Exception]) -> None:
    view = batch_of()
    view[16] = magic
    for data in (view, view[:34]):  # a message of the old formats may be shorter than a v2 header
        with pytest.raises(error, match=f"magic {magic}"):
            parse_header(data)


@pytest.mark.parametrize("size", [0, 16, 17, HEADER_BYTES - 1])
def test_less_than_a_header(size: int) -> None:
    with pytest.raises(CorruptBatch, match=f"{size} bytes"):
        parse_header(batch_of()[:size])
