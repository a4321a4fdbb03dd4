"""Records against what kafka-python's and aiokafka's own builders and readers make of them, both ways."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from random import Random

import pytest
from aiokafka.record import default_records as aiokafka_records
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import CorruptBatch, KafkaError
from kafscale.wire import compression
from kafscale.wire.batch_header import LOG_APPEND_TIME, TRANSACTIONAL, set_crc
from kafscale.wire.records import (
    ProducerStamp,
    Record,
    build_batch,
    iterate_records,
    max_timestamp,
    validate,
    validate_compressed,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python loads its schemas by a deprecated function
    from kafka.record import default_records as kafka_python_records

CODECS = list(compression.NAMES)

# kafka-python needs further packages for the other codecs; aiokafka does them all with cramjam
CLIENTS = [(aiokafka_records, codec) for codec in CODECS] + [
    (kafka_python_records, codec) for codec in (compression.NONE, compression.GZIP)
]
clients = pytest.mark.parametrize(
    ("client", "codec"),
    CLIENTS,
    ids=[f"{module.__name__.split('.')[0]}-{compression.NAMES[c]}" for module, c in CLIENTS],
)

RECORD_COUNTS = (1, 1, 2, 3, 10, 63, 64, 65, 80)  # offset deltas of one byte and of two
CHARACTERS = "az \0\x7f\x80\u07ff\u0800\uffff\U00010000"


def records_of(seed: int) -> list[Record]:
    """What a producer might send. Drawn value by value by Hypothesis it costs more than all that is tested with it."""
    rng = Random(seed)

    def some_bytes(max_size: int) -> bytes | None:
        return None if rng.random() < 0.2 else rng.randbytes(rng.choice((0, 1, rng.randint(0, max_size), max_size)))

    def header() -> tuple[str, bytes | None]:
        return "".join(rng.choices(CHARACTERS, k=rng.randint(0, 20))), some_bytes(20)

    return [
        Record(
            key=some_bytes(100),
            value=some_bytes(300),
            timestamp_ms=rng.choice((0, 1 << 44, rng.randint(0, 1 << 44), rng.randint(1 << 43, (1 << 43) + 1000))),
            headers=tuple(header() for _ in range(rng.choice((0, 0, 1, 3)))),
        )
        for _ in range(rng.choice(RECORD_COUNTS))
    ]


record_lists = st.integers(0, (1 << 64) - 1).map(records_of)


def numbered(records: Sequence[Record], base_offset: int = 0) -> list[Record]:
    return [
        Record(record.key, record.value, record.timestamp_ms, record.headers, base_offset + index)
        for index, record in enumerate(records)
    ]


@pytest.mark.parametrize("codec", CODECS, ids=compression.NAMES.get)
@given(records=record_lists, base_offset=st.integers(0, 1 << 62))
def test_round_trip(codec: int, records: list[Record], base_offset: int) -> None:
    view = memoryview(build_batch(records, base_offset=base_offset, codec=codec))
    header = validate(view)
    if codec:
        validate_compressed(view, header, 1 << 20)
    assert list(iterate_records(view)) == numbered(records, base_offset)


@clients
@given(records=record_lists)
def test_clients_read_the_batches_we_build(client: object, codec: int, records: list[Record]) -> None:
    raw = bytes(
        build_batch(records, codec=codec, producer=ProducerStamp(producer_id=5, producer_epoch=1, base_sequence=9))
    )
    batch = client.DefaultRecordBatch(raw)  # type: ignore[attr-defined]
    assert batch.validate_crc()
    assert (batch.compression_type, batch.producer_id, batch.producer_epoch, batch.base_sequence) == (codec, 5, 1, 9)
    read = [Record(r.key, r.value, r.timestamp, tuple(r.headers), r.offset) for r in batch]
    assert read == numbered(records)


@clients
@given(records=record_lists)
def test_we_read_the_batches_clients_build(client: object, codec: int, records: list[Record]) -> None:
    builder = client.DefaultRecordBatchBuilder(2, codec, 1, 5, 1, 9, 1 << 20)  # type: ignore[attr-defined]
    for index, record in enumerate(records):
        assert builder.append(index, record.timestamp_ms, record.key, record.value, list(record.headers)) is not None
    view = memoryview(bytes(builder.build()))
    header = validate(view)
    if header.codec:  # they leave a batch as it is where compression does not make it smaller
        assert header.codec == codec
        validate_compressed(view, header, 1 << 20)
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 9)
    assert list(iterate_records(view)) == numbered(records)


@given(records=record_lists)
def test_uncompressed_batches_equal_those_of_aiokafka_byte_for_byte(records: list[Record]) -> None:
    builder = aiokafka_records.DefaultRecordBatchBuilder(2, 0, 1, 5, 1, 9, 1 << 20)
    for index, record in enumerate(records):
        builder.append(index, record.timestamp_ms, record.key, record.value, list(record.headers))
    stamp = ProducerStamp(producer_id=5, producer_epoch=1, base_sequence=9)
    ours = memoryview(build_batch(records, attributes=TRANSACTIONAL, producer=stamp))
    theirs = memoryview(bytearray(builder.build()))
    theirs[12:16] = ours[12:16]  # it writes leader epoch 0, Java writes -1; no client's counts
    assert ours == theirs


@given(record_lists, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_records_give_records_or_a_kafka_error(records: list[Record], damage: list[tuple[int, int]]) -> None:
    raw = build_batch(records)
    for position, byte in damage:
        raw[position % len(raw)] = byte
    try:
        list(iterate_records(memoryview(raw), max_decompressed_bytes=1 << 20))
    except KafkaError:
        return


def test_records_that_run_into_each_other_are_corrupt() -> None:
    raw = build_batch([Record(value=b"abc"), Record(value=b"def")])
    raw[raw.index(b"abc") - 1] += 4  # two bytes more, zigzag
    view = memoryview(raw)
    set_crc(view)
    with pytest.raises(CorruptBatch, match="offset 0 is damaged"):
        list(iterate_records(view))


def test_max_timestamp_returns_the_greatest_timestamp_and_its_first_offset() -> None:
    records = [Record(timestamp_ms=stamp) for stamp in (5, 9, 3, 9, 1)]
    assert max_timestamp(memoryview(build_batch(records, base_offset=100))) == (9, 101)
    appended = build_batch(records, base_offset=100, attributes=LOG_APPEND_TIME)
    assert max_timestamp(memoryview(appended)) == (9, 100)


def test_header_names_that_are_not_text_are_read_all_the_same() -> None:
    raw = build_batch([Record(headers=[("name", b"value")])])
    at = raw.index(b"name")
    raw[at] = 0xFF
    (record,) = iterate_records(memoryview(raw))
    assert record.headers == (("\ufffdame", b"value"),)


def test_an_empty_batch_is_not_built() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])
