"""Batches with fewer records: every codec, timestamps that change their base, and records that are damaged."""

from __future__ import annotations

from contextlib import suppress

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import CorruptBatch
from kafscale.formats.segment_check import validate_compacted
from kafscale.log.rewrite.compaction_filter import RECORDS_MAX_COUNT, keep_records, locate_records, without_records
from kafscale.wire import compression
from kafscale.wire.batch_header import LOG_APPEND_TIME, TRANSACTIONAL, encode_batch, parse_header, set_log_append_time
from kafscale.wire.primitives import varint
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records

NOW_MS = 1_700_000_000_000
optional_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=3), optional_bytes), max_size=2).map(tuple)
records = st.lists(
    st.builds(Record, optional_bytes, optional_bytes, st.integers(0, 2**45), headers), min_size=1, max_size=70
)
codecs = st.sampled_from(sorted(compression.NAMES))


def batch_of(given_records: list[Record], **changes) -> memoryview:
    return memoryview(build_batch(given_records, base_offset=1000, producer=ProducerStamp(7, 1, 20), **changes))


@given(records, codecs)
def test_located_records_match_the_records_a_consumer_reads(given_records, codec):
    batch = batch_of(given_records, codec=codec)
    places = locate_records(batch, parse_header(batch))
    seen = list(iterate_records(batch))
    assert places.keys == [record.key for record in seen]
    assert places.offsets == [record.offset for record in seen]
    assert places.tombstones == [record.value is None for record in seen]


@given(records, codecs, st.data(), st.none() | st.integers(0, 2**45))
def test_kept_records_are_unchanged(given_records, codec, data, horizon_ms):
    batch = batch_of(given_records, codec=codec)
    header = parse_header(batch)
    numbers = st.integers(0, len(given_records) - 1)
    kept = sorted(data.draw(st.sets(numbers, min_size=1)))
    left = memoryview(keep_records(header, locate_records(batch, header), kept, delete_horizon_ms=horizon_ms))
    seen = list(iterate_records(batch))
    assert list(iterate_records(left)) == [seen[index] for index in kept]
    after = validate_compacted(left)
    assert after.delete_horizon_ms == horizon_ms
    assert after.max_timestamp_ms == max(seen[index].timestamp_ms for index in kept)
    same = ("base_offset", "last_offset", "codec", "producer_id", "producer_epoch", "base_sequence", "last_sequence")
    assert [getattr(after, name) for name in same] == [getattr(header, name) for name in same]


@given(records, st.data())
def test_a_batch_can_be_filtered_again_and_again(given_records, data):
    batch = batch_of(given_records)
    left = list(iterate_records(batch))
    for horizon_ms in (None, NOW_MS, None):
        header = parse_header(batch)
        kept = sorted(data.draw(st.sets(st.integers(0, len(left) - 1), min_size=1)))
        batch = memoryview(keep_records(header, locate_records(batch, header), kept, delete_horizon_ms=horizon_ms))
        left = [left[index] for index in kept]
        assert list(iterate_records(batch)) == left
    assert parse_header(batch).delete_horizon_ms == NOW_MS


def test_the_brokers_time_of_append_stays():
    batch = batch_of([Record(b"a", b"1", 5), Record(b"b", b"2", 6)])
    set_log_append_time(batch, NOW_MS)
    header = parse_header(batch)
    left = memoryview(keep_records(header, locate_records(batch, header), [0], delete_horizon_ms=NOW_MS + 5))
    assert [record.timestamp_ms for record in iterate_records(left)] == [NOW_MS]
    assert parse_header(memoryview(without_records(header))).attributes == LOG_APPEND_TIME


@pytest.mark.parametrize("codec", sorted(compression.NAMES))
def test_an_empty_batch_keeps_its_offsets_and_its_producer(codec):
    batch = batch_of([Record(b"a", b"1"), Record(b"b", b"2")], codec=codec, attributes=TRANSACTIONAL)
    header = parse_header(batch)
    empty = memoryview(without_records(header))
    after = validate_compacted(empty)
    assert list(iterate_records(empty)) == []
    assert len(locate_records(empty, after)) == 0
    assert (after.base_offset, after.last_offset, after.record_count) == (1000, 1001, 0)
    assert (after.producer_id, after.producer_epoch, after.last_sequence) == (7, 1, 21)
    assert after.is_transactional
    assert (after.codec, after.max_timestamp_ms) == (compression.NONE, -1)


@given(st.lists(st.builds(Record, optional_bytes, optional_bytes), min_size=1, max_size=20), st.data())
def test_a_damaged_batch_is_a_corrupt_one_and_nothing_else(given_records, data):
    batch = batch_of(given_records)
    position = data.draw(st.integers(61, len(batch) - 1))
    batch[position] ^= data.draw(st.integers(1, 255))
    header = parse_header(batch)
    with suppress(CorruptBatch):
        places = locate_records(batch, header)
        keep_records(header, places, range(len(places)), delete_horizon_ms=0)


@pytest.mark.parametrize("delta", [b"\xff" * 9 + b"\x7f", b"\x80" * 12 + b"\x00"])
def test_a_timestamp_that_is_none_is_damage(delta):
    record = b"\0" + delta + b"\x00" + b"\x02a" + b"\x01" + b"\0"  # a tombstone of the key a
    header = parse_header(batch_of([Record(b"a", None, 2**62)]))
    batch = memoryview(encode_batch(header, varint(len(record)) + record))
    with pytest.raises(CorruptBatch):
        keep_records(header, locate_records(batch, header), [0], delete_horizon_ms=0)


def test_a_batch_of_more_records_than_memory_is_for_is_refused():
    batch = batch_of([Record(b"a", b"1")])
    header = attrs.evolve(parse_header(batch), record_count=RECORDS_MAX_COUNT + 1)
    with pytest.raises(CorruptBatch, match="1000001 records"):
        locate_records(batch, header)
