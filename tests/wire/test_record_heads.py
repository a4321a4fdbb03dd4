import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import DecodeError
from kafscale.wire.primitives import uvarint, varint
from kafscale.wire.records import record_heads

sizes = st.integers(0, 40) | st.integers(60, 70) | st.integers(8150, 8250) | st.just(20_000)
deltas = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-130, 130)
offset_deltas = st.integers(-5, 130) | st.integers(8150, 8250) | st.integers(0, (1 << 31) - 1)
KINDS = (bytes, bytearray, memoryview)


def encoded(timestamp_delta, offset_delta, rest):
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + rest
    return varint(len(body)) + body


@given(st.lists(st.tuples(deltas, offset_deltas, sizes), max_size=20), st.sampled_from(KINDS))
def test_each_record_head_gives_timestamp_and_offset_deltas_and_bounds(made, kind):
    records, expected = b"", []
    for timestamp_delta, offset_delta, size in made:
        rest = b"r" * size
        records += encoded(timestamp_delta, offset_delta, rest)
        expected.append((timestamp_delta, offset_delta, len(records) - size, len(records)))
    assert list(record_heads(kind(records), len(made))) == expected


@given(deltas, offset_deltas, st.data())
def test_a_truncated_record_head_raises_an_index_error(timestamp_delta, offset_delta, data):
    record = encoded(timestamp_delta, offset_delta, b"")
    cut = data.draw(st.integers(0, len(record) - 1))
    with pytest.raises(IndexError):
        list(record_heads(record[:cut], 1))


@pytest.mark.parametrize(
    "record",
    [
        varint(-1) + b"\0\0\0",
        varint(-1000) + b"\0\0\0",
        b"\xff" * 5 + b"\0" * 9,
        uvarint(30) + b"\0" + b"\xff" * 10 + b"\0" * 9,
        uvarint(30) + b"\0\0" + b"\xff" * 5 + b"\0" * 9,
    ],
    ids=["negative length", "long negative length", "length", "timestamp", "offset"],
)
def test_an_invalid_record_head_is_refused(record):
    with pytest.raises(DecodeError):
        list(record_heads(record, 1))


@given(st.binary(max_size=60), st.integers(0, 5))
def test_garbage_is_read_or_refused(garbage, count):
    try:
        heads = list(record_heads(garbage, count))
    except (DecodeError, IndexError):
        return
    assert len(heads) == count
