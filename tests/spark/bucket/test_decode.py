"""The vectorised decoder against the plain one, record for record."""

import random
import struct

import attrs
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.errors import CorruptBatch, InvalidRecord
from kafscale.formats.transactions import AbortedTransaction
from kafscale.spark.bucket import batches as batching
from kafscale.spark.bucket import decode as decoding
from kafscale.spark.bucket.aborted import AbortedBatches
from kafscale.spark.bucket.decode import COLUMN_TYPES, LANES_MIN_COUNT, Wanted
from kafscale.spark.bucket.splits import Period
from kafscale.wire import compression
from kafscale.wire.batch_header import (
    CONTROL,
    TRANSACTIONAL,
    batches,
    parse_header,
    set_base_offset,
    set_crc,
    set_log_append_time,
)
from kafscale.wire.primitives import varint
from kafscale.wire.record_check import RecordCheck
from kafscale.wire.records import Record, build_batch, iterate_records, validate

EVERYTHING = Wanted(topic="t", partition=3, start_offset=0, end_offset=1 << 62)

unhurried = settings(deadline=None)  # the first example imports codecs, and machines that are busy are slow

some_bytes = st.none() | st.binary(max_size=200)
records = st.builds(
    Record,
    key=some_bytes,
    value=some_bytes,
    timestamp_ms=st.integers(0, 1 << 42),
    headers=st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=3),
)


def log_of(contents: list[list[Record]], codec: int = compression.NONE) -> bytes:
    """Batches of consecutive offsets."""
    data = bytearray()
    offset = 0
    for each in contents:
        batch = build_batch(each, codec=codec)
        set_base_offset(memoryview(batch), offset, 0)
        data += batch
        offset += len(each)
    return bytes(data)


def expected(data: bytes, wanted: Wanted = EVERYTHING) -> list[dict]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": wanted.topic,
            "partition": wanted.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "timestampType": 0,
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for batch in batches(memoryview(data))
        for record in iterate_records(batch)
        if wanted.start_offset <= record.offset < wanted.end_offset
    ]


def decode(data: bytes | bytearray, wanted: Wanted) -> pa.Table:
    schema = pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in wanted.columns])
    return pa.Table.from_batches(decoding.decode(data, wanted), schema)


def decoded(data: bytes, wanted: Wanted = EVERYTHING) -> list[dict]:
    table = decode(data, wanted)
    assert table.schema.names == list(wanted.columns)
    table.validate(full=True)
    rows = table.to_pylist()
    for row, micros in zip(rows, table["timestamp"].cast("int64").to_pylist(), strict=True):
        row["timestamp"] = micros // 1000
    return rows


@unhurried
@given(st.lists(st.lists(records, min_size=1, max_size=6), max_size=LANES_MIN_COUNT * 2), st.sampled_from(range(5)))
def test_records_match_the_plain_decoder(contents, codec):
    data = log_of(contents, codec)
    assert decoded(data) == expected(data)


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
def test_highly_compressed_batches_are_decoded_in_parts(codec, monkeypatch):
    data = log_of([[Record(value=bytes(1000))] * 4] * 10, codec)
    monkeypatch.setattr(batching, "GROUP_BYTES", 8500)
    assert [part.num_rows for part in decoding.decode(data, EVERYTHING)] == [12, 12, 12, 4]
    assert decoded(data) == expected(data)


def test_many_batches_of_uneven_length_are_walked_together_and_the_rest_alone():
    rng = random.Random(7)
    contents = [
        [Record(key=rng.randbytes(rng.randrange(300)), value=rng.randbytes(rng.randrange(300))) for _ in range(count)]
        for count in [1, 40, 3] * LANES_MIN_COUNT
    ]
    data = log_of(contents)
    assert decoded(data) == expected(data)


@unhurried
@given(st.integers(0, 40), st.integers(0, 40))
def test_only_the_offsets_that_are_wanted(start, end):
    data = log_of([[Record(value=b"%d" % number) for number in range(count)] for count in (1, 9, 10, 3, 7)])
    wanted = Wanted(topic="t", partition=0, start_offset=start, end_offset=end)
    assert decoded(data, wanted) == expected(data, wanted)


@unhurried
@given(st.lists(st.lists(records, min_size=1, max_size=6), max_size=9), st.data(), st.sampled_from([0, 4]))
def test_only_the_times_that_are_wanted(contents, data, codec):
    log = log_of(contents, codec)
    times = sorted({row["timestamp"] for row in expected(log)}) or [0]
    first_ms, last_ms = (data.draw(st.sampled_from(times)) + data.draw(st.integers(-1, 1)) for _ in range(2))
    wanted = attrs.evolve(EVERYTHING, period=Period(first_ms=first_ms, last_ms=last_ms))
    assert decoded(log, wanted) == [row for row in expected(log) if first_ms <= row["timestamp"] <= last_ms]


def test_of_records_of_the_brokers_time_all_have_the_latest():
    own, brokers = (build_batch([Record(value=b"v", timestamp_ms=at) for at in (5, 70, 3)]) for _ in range(2))
    set_log_append_time(memoryview(brokers), 900)
    rows = decoded(bytes(own + brokers))
    assert [(row["timestamp"], row["timestampType"]) for row in rows] == [(5, 0), (70, 0), (3, 0), *[(900, 1)] * 3]
    late = attrs.evolve(EVERYTHING, period=Period(first_ms=70))
    assert [row["timestamp"] for row in decoded(bytes(own + brokers), late)] == [70, 900, 900, 900]


TOLD = ("topic", "partition", "offset", "timestampType")  # by headers


@unhurried
@given(
    st.lists(st.lists(records, min_size=1, max_size=9), min_size=1, max_size=9),
    st.sampled_from(sorted(compression.NAMES)),
    st.sampled_from([TOLD, ("partition",), ("offset",)]),
    st.data(),
)
def test_columns_of_batch_headers_match_the_full_decoder(contents, codec, columns, data):
    log = log_of(contents, codec)
    count = sum(map(len, contents))
    start = data.draw(st.integers(0, count))
    wanted = attrs.evolve(EVERYTHING, start_offset=start, end_offset=data.draw(st.integers(start, count)))
    rows = decoded(log, wanted)
    found = decode(log, attrs.evolve(wanted, columns=columns)).to_pylist()
    assert found == [{name: row[name] for name in columns} for row in rows]


@pytest.mark.parametrize(("columns", "is_looked_into"), [(("partition",), False), (("offset",), True)])
def test_of_a_compacted_batch_headers_tell_how_many_and_not_which(columns, is_looked_into, monkeypatch):
    batch = build_batch([Record(value=b"v", timestamp_ms=1)] * 3)
    set_base_offset(memoryview(batch), 20, 0)
    struct.pack_into(">i", batch, 23, 9)  # the last offset delta: of ten records, three are left
    set_crc(memoryview(batch))
    looked_into = []
    find = decoding._find_records
    monkeypatch.setattr(decoding, "_find_records", lambda batches: looked_into.append(1) or find(batches))
    log = log_of([[Record(value=b"v", timestamp_ms=1)] * 20]) + batch
    wanted = attrs.evolve(EVERYTHING, columns=columns, start_offset=15)
    found = decode(log, wanted)
    assert len(found) == 8
    assert bool(looked_into) is is_looked_into
    if is_looked_into:
        assert found["offset"].to_pylist() == list(range(15, 23))
    assert len(decode(log, attrs.evolve(wanted, end_offset=22))) == 7  # some of it, so that it has to be looked into
    assert looked_into


def test_a_damaged_batch_is_reported_even_if_only_headers_are_decoded():
    log = bytearray(log_of([[Record(value=b"v" * 50, timestamp_ms=1)] * 3] * 2))
    log[-1] ^= 1
    with pytest.raises(CorruptBatch, match="offset 3: the CRC-32C"):
        decode(log, attrs.evolve(EVERYTHING, columns=("partition",)))


def test_a_header_with_an_impossible_record_count_is_refused():
    batch = build_batch([Record(value=b"v", timestamp_ms=1)])
    struct.pack_into(">i", batch, 23, (1 << 31) - 2)
    struct.pack_into(">i", batch, 57, (1 << 31) - 1)
    set_crc(memoryview(batch))
    with pytest.raises(CorruptBatch, match="more records than bytes"):
        decode(batch, attrs.evolve(EVERYTHING, columns=("partition",)))


@pytest.mark.parametrize("lanes", [1, LANES_MIN_COUNT + 1])
def test_lengths_of_one_two_and_more_bytes(lanes):
    sizes = [0, 40, 50, 60, 64, 8000, 8180, 8192, 9000, 3]
    data = log_of([[Record(value=bytes(size)) for size in sizes]] * lanes)
    assert decoded(data) == expected(data)


@pytest.mark.parametrize("lanes", [1, LANES_MIN_COUNT + 1])
@pytest.mark.parametrize(
    "length", [b"\x01", b"\x03", b"\x35", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x80" * 12, b"\xfe" * 12]
)
def test_records_of_a_length_below_0_or_without_an_end_are_refused(lanes, length):
    batch = bytearray(build_batch([Record(value=b"v" * 20)]))
    batch[61 : 61 + len(length)] = length
    set_crc(memoryview(batch))
    with pytest.raises(CorruptBatch):
        decode(bytes(batch) * lanes, EVERYTHING)


def test_records_of_transactions_are_read_unless_they_were_aborted():
    data = transactional(b"committed or not")
    producer_id = parse_header(memoryview(data)).producer_id
    assert decode(data, EVERYTHING)["value"].to_pylist() == [b"committed or not"]
    for of_producer, count in ((producer_id, 0), (producer_id + 1, 1)):
        aborted = AbortedBatches.of([AbortedTransaction(of_producer, 0, 1, 2)])
        assert decode(data, attrs.evolve(EVERYTHING, aborted=aborted)).num_rows == count


def test_transaction_markers_are_decoded_only_on_request():
    data = transactional(b"", CONTROL)
    assert decode(data, EVERYTHING).num_rows == 0
    assert decode(data, attrs.evolve(EVERYTHING, with_markers=True)).num_rows == 1


def transactional(value: bytes, further: int = 0) -> bytes:
    """A batch of a transaction."""
    data = build_batch([Record(value=value, timestamp_ms=0)])
    data[21:23] = (TRANSACTIONAL | further).to_bytes(2, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def test_only_the_columns_that_are_wanted():
    data = log_of([[Record(key=b"k", value=b"v", headers=[("h", None)])]])
    for names in (["value"], ["offset", "headers"], []):
        table = decode(data, Wanted(topic="t", partition=0, start_offset=0, end_offset=9, columns=names))
        assert table.schema.names == names
    assert {field.name: field.type for field in decode(data, EVERYTHING).schema} == dict(COLUMN_TYPES)


@pytest.mark.parametrize("lanes", [1, LANES_MIN_COUNT + 1])
def test_no_damage_goes_unseen(lanes):
    """Every byte that the CRC covers, and the length; with the CRC made right, whatever the lengths say is checked."""
    data = log_of([[Record(key=b"key", value=b"value", headers=[("h", b"x")])] * 3] * lanes)
    for position in range(len(data) // lanes):
        if position in range(8) or position in range(12, 16):  # base offset and leader epoch: the CRC leaves them out
            continue
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptBatch):
            decode(damaged, EVERYTHING)
    with pytest.raises(CorruptBatch):
        decode(data[:-1], EVERYTHING)


def test_a_header_name_that_is_not_utf_8_is_decoded_with_replacement():
    batch = bytearray(build_batch([Record(headers=[("name", b"x"), ("\u00e9", None)])]))
    batch[batch.index(b"name")] = 0xFF
    set_crc(memoryview(batch))
    assert decoded(bytes(batch)) == expected(bytes(batch))
    assert decoded(bytes(batch))[0]["headers"][0]["key"] == "\ufffdame"


def test_an_offset_outside_of_its_batch_is_damage_and_was_left_out():
    for delta in (b"\x01", b"\x06"):  # -1, and 3 in a batch of three
        batch = bytearray(build_batch([Record(value=b"v")] * 3))
        batch[64:65] = delta
        set_crc(memoryview(batch))
        with pytest.raises(CorruptBatch):
            decode(bytes(batch), EVERYTHING)


@unhurried
@given(st.data(), st.sampled_from([1, LANES_MIN_COUNT + 1]))
def test_lengths_that_lie_are_refused_or_harmless(data, lanes):
    """With a CRC that is right: nothing outside of the batches is read, and nothing but CorruptBatch is raised."""
    damaged = bytearray(log_of([[Record(key=b"key", value=b"value", headers=[("h", b"x")])] * 3] * lanes))
    size = len(damaged) // lanes
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(61, size - 1))] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]))
    damaged[17:21] = crc32c(damaged[21:size]).to_bytes(4, "big")
    try:
        table = decode(damaged, EVERYTHING)
    except CorruptBatch:
        return
    table.slice(0, 3).validate(full=False)
    assert table.num_rows == 3 * lanes


@unhurried
@given(st.integers(0, 1 << 32), st.sampled_from([1, LANES_MIN_COUNT + 1]))
def test_all_accepted_batches_decode_as_by_the_plain_decoder(seed, lanes):
    """Any length below 0 is null, as in Kafka; it was damage."""
    rng = random.Random(seed)
    batch = bytearray(build_batch([Record(key=b"key", value=b"value", headers=[("h", b"x")])] * 3))
    records = bytes(batch[61:])
    for _ in range(1000):
        changed = bytearray(records)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.choice((0, 1, 2, 3, 4, 5, 7, 0x0E, 0x10, 0x7F, 0x80, 0xFF))
        try:
            RecordCheck(bytes(changed), 0, 3, 0).finish()
        except (CorruptBatch, InvalidRecord):
            continue
        if changed[3] == 0 and changed != records:  # not only another timestamp
            break
    batch[61:] = changed
    set_crc(memoryview(batch))
    try:
        validate(memoryview(batch))
    except (CorruptBatch, InvalidRecord):
        return
    assert decoded(bytes(batch) * lanes) == expected(bytes(batch)) * lanes


@pytest.mark.parametrize("length", [-2, -3, -64, -65, -(1 << 31)])
def test_any_length_below_0_is_null_as_in_kafka(length):
    """A broker accepts it, and it was damage to a reader."""
    body = b"\0\0\0" + varint(length) + varint(length) + b"\2\2h" + varint(length)
    batch = bytearray(build_batch([Record()])[:61]) + varint(len(body)) + body
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    set_crc(memoryview(batch))
    validate(memoryview(batch))
    [row] = decoded(bytes(batch))
    assert (row["key"], row["value"], row["headers"]) == (None, None, [{"key": "h", "value": None}])
    assert decoded(bytes(batch)) == expected(bytes(batch))
