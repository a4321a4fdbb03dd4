"""Batches that are made of columns, read by `kafscale.wire`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import ConfigError
from kafscale.spark.producing.batches import RECORD_OVERHEAD_BYTES, encode, next_sequence, pieces_of
from kafscale.spark.producing.rows import HEADERS, Rows, by_topic, cut
from kafscale.spark.producing.transaction import WriterIdentity
from kafscale.wire import compression
from kafscale.wire.batch_header import parse_header
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records, validate

TEXT_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", TEXT_HEADERS)])
IDENTITY = WriterIdentity(producer_id=7, producer_epoch=2)
LIMIT = 300

texts = st.one_of(st.none(), st.binary(max_size=10), st.binary(min_size=60, max_size=140), st.just(b"x" * 20_000))
headers = st.one_of(
    st.none(), st.lists(st.fixed_dictionaries({"key": st.text(max_size=5), "value": texts}), max_size=3)
)
rows = st.fixed_dictionaries({"key": texts, "value": texts, "headers": headers})
codecs = st.sampled_from(sorted(compression.NAMES))


def expected(row: dict) -> tuple:
    return row["key"], row["value"], [(each["key"], each["value"]) for each in row["headers"] or ()]


def batch_of(found: Rows, partitions: list[int], codec: int = compression.NONE, limit: int = LIMIT) -> list[tuple]:
    """The partition, the header and the records of each batch."""
    made = []
    for piece in pieces_of(found, np.array(partitions), limit):
        batch = encode(piece, IDENTITY, 5, codec=codec, timestamp_ms=1234)
        view = memoryview(batch)
        header = parse_header(view)
        validate(view)
        made.append((piece.partition, header, list(iterate_records(view))))
    return made


@given(st.lists(st.tuples(rows, st.integers(0, 3)), min_size=1, max_size=40), st.integers(0, 3), codecs)
def test_records_match_their_rows_in_order(found, skipped, codec):
    table = pa.RecordBatch.from_pylist([{"value": b"before"}] * skipped + [row for row, _ in found], SCHEMA)
    batches = batch_of(Rows.of(table.slice(skipped)), [partition for _, partition in found], codec)
    for partition in range(4):
        records = [one for at, _, of_batch in batches if at == partition for one in of_batch]
        assert [(one.key, one.value, list(one.headers)) for one in records] == [
            expected(row) for row, at in found if at == partition
        ]
    for _, header, of_batch in batches:
        assert [one.offset for one in of_batch] == list(range(header.record_count))
        assert {one.timestamp_ms for one in of_batch} == {1234}


@given(st.lists(rows, min_size=1, max_size=200))
def test_batches_are_filled_up_to_the_size_limit(found):
    sizes = [len(row["key"] or b"") + len(row["value"] or b"") + RECORD_OVERHEAD_BYTES for row in found]
    columns = {name: [row[name] for row in found] for name in ("key", "value")}
    batches = batch_of(Rows.of(pa.RecordBatch.from_pydict(columns, SCHEMA.remove(2))), [0] * len(found))
    start = 0
    for _, header, _ in batches:
        end = start + header.record_count
        assert header.record_count == 1 or sum(sizes[start:end]) <= LIMIT
        assert end == len(found) or sum(sizes[start : end + 1]) > LIMIT
        start = end


def test_a_batch_is_byte_for_byte_that_of_records_one_by_one():
    found = [{"key": b"k" * number, "value": None if number == 70 else b"v", "headers": None} for number in range(200)]
    found[3]["headers"] = [{"key": "a", "value": b"1"}, {"key": "ä", "value": None}]
    rows = Rows.of(pa.RecordBatch.from_pylist(found, SCHEMA))
    (piece,) = pieces_of(rows, np.zeros(200, np.int64), 1 << 20)
    records = [Record(*expected(row)[:2], 1234, expected(row)[2]) for row in found]
    same = build_batch(records, producer=ProducerStamp(7, 2, 5))
    assert encode(piece, IDENTITY, 5, codec=compression.NONE, timestamp_ms=1234) == same


def test_columns_of_text_and_of_other_types_are_bytes():
    schema = pa.schema([("key", pa.string()), ("value", pa.large_string()), ("other", pa.int32())])
    found = Rows.of(pa.RecordBatch.from_pylist([{"key": "k", "value": "ä", "other": 1}], schema))
    ((_, _, (record,)),) = batch_of(found, [0])
    assert (record.key, record.value) == (b"k", "ä".encode())
    assert found.headers is None
    assert found.partitions is None


def test_a_header_without_a_name_is_refused():
    for bad in ([{"key": None, "value": b"1"}], [None]):
        table = pa.RecordBatch.from_arrays([pa.array([b"v"]), pa.array([bad], HEADERS)], ["value", "headers"])
        with pytest.raises(ConfigError, match="a header has null as its key"):
            Rows.of(table)


def test_rows_go_to_the_topic_of_their_column_in_order():
    table = pa.RecordBatch.from_pydict({"value": ["1", "2", "3", "4"], "topic": ["a", "b", "a", "b"]})
    parts = {topic: part["value"].to_pylist() for topic, part in by_topic(table, None)}
    assert parts == {"a": ["1", "3"], "b": ["2", "4"]}
    assert [(topic, part.num_rows) for topic, part in by_topic(table, "c")] == [("c", 4)]
    assert list(by_topic(table.slice(0, 0), None)) == []
    with pytest.raises(ConfigError, match="a row has null as its topic"):
        list(by_topic(pa.RecordBatch.from_pydict({"value": ["1"], "topic": pa.nulls(1, pa.string())}), None))


def test_rows_are_cut_where_they_are_too_large_together():
    table = pa.RecordBatch.from_pydict({"value": [b"x" * 60, b"y" * 60, b"z" * 300, b"u"] * 2})
    assert [part.num_rows for part in cut(table, 130)] == [2, 1, 3, 1, 1]
    assert [part.num_rows for part in cut(table, 1 << 20)] == [8]


def test_sequences_go_on_from_0_behind_the_greatest_one():
    assert next_sequence(2**31 - 2, 1) == 2**31 - 1
    assert next_sequence(2**31 - 2, 3) == 1
