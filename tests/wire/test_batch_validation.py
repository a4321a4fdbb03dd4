from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.errors import CorruptBatch, InvalidRecord, KafkaError
from kafscale.wire import compression, error_codes
from kafscale.wire.batch_header import HEADER_BYTES, parse_header, set_crc
from kafscale.wire.primitives import varint
from kafscale.wire.records import Record, build_batch, iterate_records, validate, validate_compressed

MIB = 1 << 20
CODECS = list(compression.NAMES)

codecs = pytest.mark.parametrize("codec", CODECS, ids=compression.NAMES.get)

# the sizes at which a length, a timestamp delta or an offset delta takes one more byte
EDGES = [
    [Record(value=bytes(size)) for size in (0, 50, 56, 57, 58, 59, 8180, 8183, 8184, 8185, 8186, 1_100_000)],
    [Record(timestamp_ms=stamp) for stamp in (0, 63, 64, -64, -65, 8191, 8192, 1 << 34, -(1 << 40), 1 << 62)],
    [Record()] * 16_500,
    [Record()] * 65,
]


def check(view: memoryview) -> None:
    """All that a produce request's batch goes through."""
    header = validate(view)
    if header.codec != compression.NONE:
        validate_compressed(view, header, MIB)


def with_records(raw_records: bytes, count: int, codec: int) -> memoryview:
    """A batch with a correct header and CRC around these bytes as its records."""
    packed = compression.compress(codec, raw_records) if codec else raw_records
    batch = build_batch([Record()])[:HEADER_BYTES] + packed
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    view = memoryview(batch)
    set_crc(view)
    return view


def raw_record(offset_delta: int, rest: bytes = b"\1\1\0") -> bytes:
    body = b"\0" + varint(0) + varint(offset_delta) + rest
    return varint(len(body)) + body


@pytest.mark.parametrize("records", EDGES, ids=["sizes", "timestamps", "offsets", "two-byte offsets"])
@codecs
def test_every_width_of_varint_is_walked(records: list[Record], codec: int) -> None:
    view = memoryview(build_batch(records, codec=codec))
    header = validate(view)
    assert header.record_count == len(records)
    if codec:
        validate_compressed(view, header, 2 * MIB)


@given(st.integers(0, 1000), st.integers(0, 255))
def test_every_damaged_byte_is_noticed(position: int, byte: int) -> None:
    raw = build_batch([Record(key=b"key", value=b"value %d" % i) for i in range(20)])
    position %= len(raw)
    covered = position >= 8 and not 12 <= position < 16  # base offset and leader epoch are the broker's to write
    if not covered or raw[position] == byte:
        return
    raw[position] = byte
    with pytest.raises(KafkaError):
        validate(memoryview(raw))


def test_a_wrong_crc() -> None:
    view = memoryview(build_batch([Record(value=b"a")]))
    view[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        validate(view)


@pytest.mark.parametrize(("count", "last_offset_delta"), [(0, -1), (0, 0), (-1, -2), (3, 1), (2, 2), (2**31 - 1, 1)])
def test_counts_that_disagree_are_invalid_records_as_in_kafka(count: int, last_offset_delta: int) -> None:
    view = memoryview(build_batch([Record(), Record()]))
    struct.pack_into(">i", view, 23, last_offset_delta)
    struct.pack_into(">i", view, 57, count)
    set_crc(view)
    with pytest.raises(InvalidRecord, match=str(last_offset_delta)):
        validate(view)


@codecs
@pytest.mark.parametrize("count", [1, 3, 2**31 - 1])
def test_a_count_that_is_not_the_number_of_records(codec: int, count: int) -> None:
    with pytest.raises(InvalidRecord):
        check(with_records(raw_record(0) + raw_record(1), count, codec))


@codecs
@pytest.mark.parametrize("deltas", [(1, 2), (0, 2), (0, 0), (0, -1), (0, 64), (0, 8192), (0, 2**31 - 1)])
def test_a_wrong_offset_delta_is_corrupt(codec: int, deltas: tuple[int, int]) -> None:
    with pytest.raises(CorruptBatch, match="offset delta"):
        check(with_records(b"".join(map(raw_record, deltas)), 2, codec))


@codecs
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        raw_record(0),
        raw_record(0) + raw_record(1)[:-1],
        raw_record(0) + raw_record(1) + b"\0",
        raw_record(0) + varint(100) + raw_record(1)[1:],
        raw_record(0) + varint(3) + raw_record(1)[1:],
        raw_record(0) + varint(-7) + raw_record(1)[1:],
        raw_record(0) + b"\xff" * 20,
        raw_record(0) + b"\x80" * 20,
        raw_record(0) + raw_record(1, rest=b"\1"),
    ],
    ids=["none", "one", "cut", "rest", "long", "short", "negative", "endless", "endless zeros", "too short to be one"],
)
def test_a_broken_chain_of_lengths_is_an_invalid_record(codec: int, raw: bytes) -> None:
    with pytest.raises(InvalidRecord):
        check(with_records(raw, 2, codec))


def test_a_records_field_must_hold_exactly_one_batch() -> None:
    raw = bytes(build_batch([Record(value=b"a")]))
    with pytest.raises(InvalidRecord, match="no record batch"):
        validate(memoryview(b""))
    with pytest.raises(InvalidRecord, match="more than one"):
        validate(memoryview(raw + raw))
    for cut in (1, 20, HEADER_BYTES, len(raw) - 1):
        with pytest.raises(CorruptBatch):
            validate(memoryview(raw[:cut]))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_that_do_not_exist(codec: int) -> None:
    view = memoryview(build_batch([Record()]))
    struct.pack_into(">h", view, 21, codec)
    set_crc(view)
    with pytest.raises(KafkaError) as caught:
        validate(view)
    assert caught.value.code == error_codes.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", CODECS[1:], ids=compression.NAMES.get)
def test_a_batch_that_decompresses_to_too_much(codec: int) -> None:
    view = memoryview(build_batch([Record(value=bytes(2 * MIB))], codec=codec))
    header = validate(view)
    with pytest.raises(KafkaError) as caught:
        validate_compressed(view, header, MIB)
    assert caught.value.code == error_codes.MESSAGE_TOO_LARGE


def test_records_not_compressed_with_the_codec_of_the_header_are_refused() -> None:
    view = memoryview(build_batch([Record()]))
    struct.pack_into(">h", view, 21, compression.ZSTD)
    set_crc(view)
    with pytest.raises(CorruptBatch, match="zstd"):
        check(view)


@codecs
@settings(max_examples=150)
@given(raw=st.binary(max_size=60) | st.lists(st.sampled_from([b"\0", b"\x0e", b"\x80", b"\xff", b"\1"])).map(b"".join))
def test_any_records_can_be_read_or_are_refused(codec: int, raw: bytes) -> None:
    for count in (1, 3):
        view = with_records(raw, count, codec)
        try:
            check(view)
        except KafkaError:
            continue
        assert len(list(iterate_records(view))) == count


def test_validation_does_not_change_or_keep_the_buffer() -> None:
    raw = build_batch([Record(value=b"a")])
    before = bytes(raw)
    with memoryview(raw) as view:
        assert validate(view) == parse_header(view)
    raw += b"resizable again"
    assert raw.startswith(before)
