"""The check of records against an oracle, which parses one field after the other without any short cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.errors import CorruptBatch, DecodeError, InvalidRecord, KafkaError
from kafscale.log.rewrite.compaction_filter import locate_records
from kafscale.wire.batch_header import CODEC_MASK, HEADER_BYTES, encode_batch, parse_header
from kafscale.wire.error_codes import MESSAGE_TOO_LARGE
from kafscale.wire.primitives import read_varint, read_varlong, varint
from kafscale.wire.record_check import NULL_KEYS_TOLD_MAX_COUNT, STEP_UNITS, RecordCheck
from kafscale.wire.record_shapes import MAX_SEEN_ONCE, MAX_SHAPES, Shapes, Times
from kafscale.wire.records import Record, build_batch, iterate_records

BASE_MS = 1_700_000_000_000
ALL = 1 << 30


@attrs.frozen
class Found:
    """What a check has found out."""

    max_timestamp_ms: int
    min_timestamp_ms: int | None
    null_keys: Sequence[int]
    first_timestamp_ms: int


def raw_records(records: Sequence[Record]) -> bytearray:
    return build_batch(records)[HEADER_BYTES:]


def raw_record(offset_delta: int, rest: bytes = b"\1\1\0", *, attributes: bytes = b"\0", stamp: bytes = b"\0") -> bytes:
    body = attributes + stamp + varint(offset_delta) + rest
    return varint(len(body)) + body


def oracle(raw: bytes, count: int, base_timestamp_ms: int) -> Found | None:
    """None if the records are to be refused."""
    position = 0
    stamps, null_keys = [], []
    try:
        for index in range(count):
            length, position = read_varint(raw, position)
            end = position + length
            stamp, position = read_varlong(raw, position + 1)
            offset_delta, position = read_varint(raw, position)
            key_size, position = read_varint(raw, position)
            position += max(key_size, 0)
            value_size, position = read_varint(raw, position)
            position += max(value_size, 0)
            headers_count, position = read_varint(raw, position)
            sizes = [0]
            for _ in range(headers_count):
                name_size, position = read_varint(raw, position)
                value_size, position = read_varint(raw, position + max(name_size, 0))
                position += max(value_size, 0)
                sizes.append(name_size)
            if position != end or offset_delta != index or min(sizes) < 0 or headers_count < 0:
                return None
            if not -(1 << 63) <= stamp < 1 << 63:
                return None
            stamps.append(base_timestamp_ms + stamp)
            if key_size < 0:
                null_keys.append(index)
    except (IndexError, DecodeError):
        return None
    if position != len(raw):
        return None
    told = [stamp for stamp in stamps if stamp != -1]
    return Found(max([-1, *told]), min(told, default=None), null_keys[:NULL_KEYS_TOLD_MAX_COUNT], min(stamps))


def outcome(raw: bytes | memoryview, count: int, base_timestamp_ms: int = BASE_MS, units: int = ALL) -> Found | None:
    """What the check says; None if it refuses the records."""
    check = RecordCheck(raw, 0, count, base_timestamp_ms, needs_keys=True)
    try:
        while check.advance(units) <= 0:
            pass
    except (InvalidRecord, CorruptBatch):
        return None
    assert check.null_keys_count >= len(check.null_keys)
    return Found(check.max_timestamp_ms, check.min_timestamp_ms, check.null_keys, check.first_timestamp_ms)


def batch_of(raw: bytes, count: int, base_timestamp_ms: int) -> memoryview:
    """As a reader gets it."""
    header = parse_header(memoryview(build_batch([Record()])))
    changed = attrs.evolve(header, record_count=count, last_offset_delta=count - 1, base_timestamp_ms=base_timestamp_ms)
    return memoryview(encode_batch(changed, raw))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records were looked at one by one, each time."""
    counts: list[int] = []
    take_any = RecordCheck._take_any

    def watched(self: RecordCheck, end_index: int, units: int) -> int:
        counts.append(end_index - self.index)
        return take_any(self, end_index, units)

    monkeypatch.setattr(RecordCheck, "_take_any", watched)
    return counts


sizes = st.sampled_from([0, 1, 55, 60, 63, 64, 100, 600, 8200])
runs = st.lists(
    st.fixed_dictionaries(
        {
            "count": st.sampled_from([1, 2, 9, 10, 11, 30, 64, 70]),
            "key": st.none() | st.sampled_from([0, 1, 8, 63, 64, 70]),
            "value": st.none() | sizes,
            "headers": st.sampled_from([0, 0, 0, 1, 2, 9, 70]),
            "spread": st.sampled_from([0, 0, 1, -1, 3, 200, 1 << 20, -(1 << 33), 1 << 60]),
            "is_uneven": st.booleans(),
        }
    ),
    min_size=1,
    max_size=3,
)


def records_of(drawn: Sequence[dict[str, object]], rng: random.Random) -> list[Record]:
    """Runs of records that are alike, or nearly."""
    records = []
    for run in drawn:
        for number in range(int(run["count"])):  # type: ignore[call-overload]
            more = rng.randrange(3) if run["is_uneven"] else 0
            key, value, spread = run["key"], run["value"], int(run["spread"])  # type: ignore[call-overload]
            records.append(
                Record(
                    key=None if key is None or (more == 2 and rng.randrange(2)) else bytes(int(key) + more),  # type: ignore[call-overload]
                    value=None if value is None else bytes(int(value) + more),  # type: ignore[call-overload]
                    timestamp_ms=BASE_MS + (number % 5) * spread,
                    headers=[("h" * (number % 2 * more), b"v" if more < 2 else None)] * int(run["headers"]),  # type: ignore[call-overload]
                )
            )
    return records


NUMBERS = (b"\0", b"\1", b"\2", b"\x7e", b"\x7f", b"\x80", b"\x80\1", b"\x80\0", b"\xff\xff\xff\xff\x0f", b"\xff" * 9)


def mutated(raw: bytearray, rng: random.Random) -> None:
    """Change one thing, mostly near the beginning of a record, where its lengths are."""
    position = rng.randrange(len(raw))
    match rng.randrange(5):
        case 0:
            raw[position] = rng.randrange(256)
        case 1:
            raw[position] = (raw[position] + rng.choice((-2, -1, 1, 2, 128))) % 256
        case 2:
            raw[position : position + rng.randrange(3)] = rng.choice(NUMBERS)
        case 3:
            del raw[position : position + rng.randrange(1, 9)]
        case _:
            other = rng.randrange(len(raw))
            raw[position : position + 4] = raw[other : other + 4]


@settings(max_examples=300, deadline=None)
@given(drawn=runs, seed=st.integers(0, 1 << 32), mutations=st.integers(0, 3), base=st.sampled_from([BASE_MS, -1, 0, 5]))
def test_a_batch_is_accepted_exactly_when_a_plain_parser_reads_it(
    drawn: list[dict[str, object]], seed: int, mutations: int, base: int
) -> None:
    rng = random.Random(seed)
    records = records_of(drawn, rng)
    raw = raw_records(records)
    for _ in range(mutations):
        if raw:
            mutated(raw, rng)
    count = len(records)
    expected = oracle(bytes(raw), count, base)
    assert mutations or expected is not None
    assert outcome(bytes(raw), count, base) == expected
    assert outcome(memoryview(raw), count, base) == expected
    assert outcome(raw, count, base, units=rng.choice((1, 2, 7, 40, 500))) == expected
    if expected is not None:
        batch = batch_of(bytes(raw), count, base)
        read = list(iterate_records(batch))
        assert [record.offset for record in read] == list(range(count))
        assert len(locate_records(batch, parse_header(batch))) == count


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.sampled_from([10, 12, 64, 74, 80]), mutations=st.integers(0, 2))
def test_checking_equal_shaped_records_together_matches_checking_one_by_one(
    seed: int, count: int, mutations: int
) -> None:
    rng = random.Random(seed)
    key = bytes(rng.choice((0, 3, 64))) if rng.randrange(3) else None
    headers = [("name", bytes(rng.choice((0, 70))))] * rng.choice((0, 0, 1, 3))
    value = bytes(rng.choice((0, 9, 70)))
    raw = raw_records([Record(key, value, BASE_MS + rng.randrange(3), headers) for _ in range(count)])
    size = len(raw) // count
    for _ in range(mutations):
        raw[rng.randrange(count) * size + rng.randrange(min(size, 9))] = rng.choice((0, 1, 2, 3, 8, 126, 127, 128, 255))
    assert outcome(bytes(raw), count) == oracle(bytes(raw), count, BASE_MS)


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("headers", [(), [("a", b"1"), ("b", None)]])
def test_records_of_one_shape_are_taken_together_up_to_offset_deltas_of_three_bytes(
    key: bytes | None, headers: Sequence[tuple[str, bytes | None]], alone: list[int]
) -> None:
    count = 20_000
    raw = bytes(raw_records([Record(key, b"value", BASE_MS + i % 50, headers) for i in range(count)]))
    assert outcome(raw, count, BASE_MS) == oracle(raw, count, BASE_MS)
    assert not alone


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    runs=st.lists(
        st.tuples(st.sampled_from([1, 10, 31, 32, 33, 100]), st.sampled_from([0, 1, 70, 300, 8000, -70, 9000])),
        min_size=1,
        max_size=5,
    ),
    mutations=st.integers(0, 2),
    base=st.sampled_from([BASE_MS, -1, 0]),
)
def test_checking_runs_of_records_together_matches_checking_one_by_one(
    seed: int, runs: Sequence[tuple[int, int]], mutations: int, base: int
) -> None:
    rng = random.Random(seed)
    records, now_ms = [Record(None, b"value", BASE_MS)], BASE_MS
    for count, pause_ms in runs:
        now_ms += pause_ms
        records += [Record(None, b"value", now_ms + rng.randrange(3)) for _ in range(count)]
    raw = raw_records(records)
    for _ in range(mutations):
        mutated(raw, rng)
    expected = oracle(bytes(raw), len(records), base)
    assert mutations or expected is not None
    assert outcome(bytes(raw), len(records), base) == expected
    assert outcome(raw, len(records), base, units=rng.choice((1, 20, 500))) == expected


@pytest.mark.parametrize("stamp", [b"\x82\1", b"\x83\1", b"\x82\x81", b"\x82\x80\1", b"\x82\x80\x80\1"])
def test_timestamp_deltas_of_several_bytes(stamp: bytes) -> None:
    raw = b"".join(raw_record(index, stamp=stamp) for index in range(60))
    assert outcome(raw, 60) == oracle(raw, 60, BASE_MS)


@pytest.mark.parametrize("step_ms", [0, 1, 7])
def test_a_batch_of_several_moments_is_taken_together_run_by_run(alone: list[int], step_ms: int) -> None:
    count = 1000
    raw = bytes(raw_records([Record(None, b"value", BASE_MS + i * step_ms) for i in range(count)]))
    assert outcome(raw, count) == oracle(raw, count, BASE_MS)
    assert sum(alone) <= 64  # the last records before the offset deltas, or these, get longer


def test_looking_for_runs_costs_no_more_than_a_few_looks_at_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0
    for name in ("_take_alike", "_end_of_run"):
        look = getattr(RecordCheck, name)

        def watched(self: RecordCheck, end_index: int, look: Callable[..., object] = look) -> object:
            nonlocal looked_at
            looked_at += end_index - self.index
            return look(self, end_index)

        monkeypatch.setattr(RecordCheck, name, watched)
    for run in (10, 32, 40, 500):
        looked_at, count = 0, 20_000
        raw = bytes(raw_records([Record(None, bytes(index // run % 2), BASE_MS) for index in range(count)]))
        assert outcome(raw, count) is not None
        assert looked_at < 8 * count


@pytest.mark.parametrize("first", [(1 << 20) - 100, (1 << 20) - 8192 - 50, 8192 - 60, 2 * 8192 - 60, 1 << 27])
def test_offset_deltas_of_every_width(first: int) -> None:
    deltas = range(first, first + 120)
    for damage in (0, -2, 2):
        raw = [raw_record(delta) for delta in deltas]
        raw[77] = raw_record(deltas[77] + damage)
        check = RecordCheck(b"".join(raw), 0, deltas.stop, BASE_MS)
        check.index = first
        if damage:
            with pytest.raises(CorruptBatch, match=f"record {deltas[77]} has the offset delta {deltas[77] + damage}"):
                check.finish()
        else:
            check.finish()


def test_one_record_with_many_headers_is_checked_in_steps() -> None:
    count = 30_000
    raw = raw_record(0, b"\1\1" + varint(count) + b"\2a\1" * count) + raw_record(1)
    check = RecordCheck(raw, 0, 2, BASE_MS)
    steps = 1
    while check.advance() <= 0:
        steps += 1
    assert steps >= count // STEP_UNITS
    assert outcome(raw, 2) is not None
    for wrong in (count - 1, count + 1):
        assert outcome(raw_record(0, b"\1\1" + varint(wrong) + b"\2a\1" * count) + raw_record(1), 2) is None


@pytest.mark.parametrize("headers_count", [0, 3, 30_000])
def test_a_record_with_a_length_covering_the_next_record_is_refused(headers_count: int) -> None:
    rest = b"\1\1" + varint(headers_count) + b"\2a\1" * headers_count
    inside = raw_record(0, rest + raw_record(1))
    assert outcome(inside, 2, units=STEP_UNITS) is None
    assert outcome(raw_record(0, rest) + raw_record(1), 2, units=STEP_UNITS) is not None


@pytest.mark.parametrize("others_count", [0, 80])
def test_a_negative_length_is_refused(others_count: int) -> None:
    for place in {0, others_count}:
        raw = [raw_record(i) for i in range(others_count + 1)]
        raw[place] = bytes([raw[place][0] | 1]) + raw[place][1:]
        with pytest.raises(InvalidRecord, match="negative length"):
            RecordCheck(b"".join(raw), 0, others_count + 1, BASE_MS).finish()


@pytest.mark.parametrize(
    "rest",
    [
        varint(10) + b"key" + b"\1\0",  # the key is longer than the record
        varint(3) + b"key" + varint(10) + b"value" + b"\0",
        varint(3) + b"key" + varint(4) + b"value" + b"\0",
        b"\1\1\2",  # a header that is not there
        b"\1\1\1",  # minus one headers
        b"\1\1\2\1\1",  # a header without a key
        b"\1\1\2\2a\4b",
        b"\1\1\0\0",  # a rest
        varint(1 << 30) + b"\1\0",
    ],
)
@pytest.mark.parametrize("others_count", [0, 80])
def test_wrong_lengths_inside_of_a_record_are_refused(rest: bytes, others_count: int) -> None:
    """They were acknowledged, and compaction of the partition stopped, as did its consumers."""
    for place in {0, others_count}:
        raw = b"".join(raw_record(i, rest if i == place else b"\1\1\0") for i in range(others_count + 1))
        with pytest.raises(InvalidRecord):
            RecordCheck(raw, 0, others_count + 1, BASE_MS).finish()
    raw = b"".join(raw_record(i, rest) for i in range(others_count + 1))  # of one shape
    with pytest.raises(InvalidRecord):
        RecordCheck(raw, 0, others_count + 1, BASE_MS).finish()


def test_numbers_of_three_bytes_are_not_taken_for_shorter_ones() -> None:
    """Each batch is whole if its first long number is taken to end a byte earlier, and was accepted so."""
    count = 20
    lengths = [b"\x80\x81\1" + b"\0" + varint(i) + b"\1" + varint(8250) + bytes(8250) for i in range(count)]
    nulls = [raw_record(i, b"\x81\x80\0\0") for i in range(count)]
    for raw in (b"".join(each) for each in (lengths, nulls)):
        for cut in range(3):
            for more in range(3):
                changed = raw[: len(raw) - cut] + bytes(more)
                assert outcome(changed, count) == oracle(changed, count, BASE_MS)
    for value_bytes in range(8180, 8200):
        body = [
            b"\x80\x80\1" + b"\0" + varint(i) + b"\1" + varint(value_bytes) + bytes(value_bytes + 1)
            for i in range(count)
        ]
        assert outcome(b"".join(body), count) == oracle(b"".join(body), count, BASE_MS)


def test_null_is_any_negative_length_as_in_kafka() -> None:
    raw = raw_record(0, varint(-2) + varint(-7) + b"\2" + b"\2a" + varint(-3))
    assert outcome(raw, 1) == Found(BASE_MS, BASE_MS, [0], BASE_MS)


@pytest.mark.parametrize("stamp", [b"\xff" * 9 + b"\2", b"\xff" * 10, b"\x80" * 10 + b"\0"])
def test_a_timestamp_delta_of_more_than_64_bits_is_refused(stamp: bytes) -> None:
    with pytest.raises(InvalidRecord, match="64 bits"):
        RecordCheck(raw_record(0, stamp=stamp), 0, 1, BASE_MS).finish()


def test_null_keys_are_all_counted_and_the_first_ones_are_listed() -> None:
    raw = bytes(raw_records([Record(key=None if i % 3 else b"k") for i in range(3_000)]))
    check = RecordCheck(raw, 0, 3_000, BASE_MS, needs_keys=True)
    check.finish()
    assert check.null_keys_count == 2_000
    assert check.null_keys == [i for i in range(150) if i % 3]


# ---- shapes ---------------------------------------------------------------------------------------------------------


def alike(rng: random.Random, count: int) -> list[Record]:
    """Records of one size and layout, which the same `rng` makes the same but for their times and bytes."""
    key = rng.choice((None, 0, 3, 64))
    headers = [("name", bytes(rng.choice((0, 70))))] * rng.choice((0, 0, 1, 3))
    value = rng.choice((None, 0, 9, 70, 9000, 17_000))
    return [
        Record(
            None if key is None else random.randbytes(key),
            None if value is None else random.randbytes(value),
            BASE_MS + random.randrange(-2, 3) * (number > 0),
            headers,
        )
        for number in range(count)
    ]


def shapes_that_know(*batches: memoryview) -> Shapes:
    shapes = Shapes()
    for batch in batches:
        for _ in range(2):
            shapes.learn(parse_header(batch), batch)
    return shapes


def times_of(found: Found) -> Times:
    return found.max_timestamp_ms, found.min_timestamp_ms


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    count=st.sampled_from([1, 2, 16, 64]),
    mutations=st.integers(0, 2),
    base=st.sampled_from([BASE_MS, -1, 0, 5]),
)
def test_a_learned_shape_gives_the_same_timestamps_as_a_plain_parser(
    seed: int, count: int, mutations: int, base: int
) -> None:
    known = batch_of(bytes(raw_records(alike(random.Random(seed), count))), count, base)
    shapes = shapes_that_know(known)
    assert shapes.times(parse_header(known), known, needs_keys=False) is not None or base < 5
    rng = random.Random(seed)
    raw = raw_records(alike(rng, count))
    size = len(raw) // count
    for _ in range(mutations):
        raw[rng.randrange(count) * size + rng.choice((rng.randrange(min(size, 9)), size - 1))] = rng.choice(
            (0, 1, 2, 3, 8, 126, 127, 128, 255)
        )
    expected = oracle(bytes(raw), count, base)
    other = batch_of(bytes(raw), count, base)
    times = shapes.times(parse_header(other), other, needs_keys=False)
    assert times is None or (expected is not None and times == times_of(expected))
    if not mutations:
        assert times is not None or base < 5
    needing_keys = shapes_that_know(known).times(parse_header(other), other, needs_keys=True)
    assert needing_keys is None or (expected is not None and not expected.null_keys and needing_keys == times)


@settings(max_examples=300, deadline=None)
@given(drawn=runs, seed=st.integers(0, 1 << 32), mutations=st.integers(0, 3))
def test_no_learned_shape_accepts_a_batch_that_a_plain_parser_refuses(
    drawn: list[dict[str, object]], seed: int, mutations: int
) -> None:
    rng = random.Random(seed)
    records = records_of(drawn, rng)
    raw, count = raw_records(records), len(records)
    shapes = shapes_that_know(batch_of(bytes(raw), count, BASE_MS))
    for _ in range(mutations):
        mutated(raw, rng)
    expected = oracle(bytes(raw), count, BASE_MS)
    batch = batch_of(bytes(raw), count, BASE_MS)
    times = shapes.times(parse_header(batch), batch, needs_keys=False)
    assert times is None or (expected is not None and times == times_of(expected))


def test_a_shape_is_learned_at_the_second_batch_and_forgotten_after_a_mismatch() -> None:
    raw = bytes(raw_records([Record(b"key", b"value", BASE_MS)] * 3))
    batch = batch_of(raw, 3, BASE_MS)
    header, shapes = parse_header(batch), Shapes()
    for is_known in (False, False, True):
        times = shapes.times(header, batch, needs_keys=True)
        assert times == ((BASE_MS, BASE_MS) if is_known else None)
        shapes.learn(header, batch)
    uneven = bytes(raw_records([Record(b"keys", b"valu", BASE_MS)] * 3))
    other = batch_of(uneven, 3, BASE_MS)
    assert shapes.times(parse_header(other), other, needs_keys=True) is None
    assert shapes.times(header, batch, needs_keys=True) is None


def test_a_compressed_batch_is_not_taken_for_one_of_its_size() -> None:
    batch = batch_of(bytes(raw_records([Record(None, b"value", BASE_MS)])), 1, BASE_MS)
    shapes = shapes_that_know(batch)
    header = parse_header(batch)
    assert shapes.times(header, batch, needs_keys=False) == (BASE_MS, BASE_MS)
    for codec in range(1, CODEC_MASK + 1):
        assert shapes.times(attrs.evolve(header, attributes=codec), batch, needs_keys=False) is None


def test_the_shapes_of_many_sizes_take_bounded_memory() -> None:
    shapes = Shapes()
    for size in range(MAX_SHAPES + 300):
        batch = batch_of(bytes(raw_records([Record(None, bytes(size), BASE_MS)])), 1, BASE_MS)
        for _ in range(2):
            shapes.learn(parse_header(batch), batch)
    assert len(shapes._known) == MAX_SHAPES
    assert shapes.times(parse_header(batch), batch, needs_keys=False) is not None
    for size in range(2 * MAX_SEEN_ONCE):
        batch = batch_of(bytes(raw_records([Record(None, bytes(size + 5_000), BASE_MS)])), 1, BASE_MS)
        shapes.learn(parse_header(batch), batch)
        assert len(shapes._seen_once) <= MAX_SEEN_ONCE


@pytest.mark.parametrize(
    "raw",
    [
        b"".join(raw_record(i, b"\1" + varint(4 + i) + b"value"[: 4 + i] + b"\0") for i in range(2)),
        raw_record(0, b"\1" + varint(5) + b"value\0") + raw_record(1, varint(5) + b"value" + b"\1\0"),
        raw_record(0, stamp=b"\x80\1") + raw_record(1, stamp=b"\x80\1"),
        raw_record(0, varint(90) + bytes(90) + b"\1\0", stamp=b"\xff\xff\3"),
    ],
    ids=["of two sizes", "of two layouts", "with long stamps", "with a long stamp and key"],
)
def test_no_shape_is_learnt_of_records_that_are_not_alike_or_have_long_stamps(raw: bytes) -> None:
    count = 1 if b"\xff" in raw else 2
    assert oracle(raw, count, BASE_MS)
    assert not shapes_that_know(batch_of(raw, count, BASE_MS))._known


@pytest.mark.parametrize("null", [-1, -2, -3, -70])
def test_a_null_of_any_negative_length_has_no_bytes_in_a_shape_either(null: int) -> None:
    def batch(value: bytes) -> memoryview:
        rest = varint(null) + varint(len(value)) + value + b"\2\2a" + varint(null)
        return batch_of(raw_record(0, rest), 1, BASE_MS)

    shapes = shapes_that_know(batch(b"\0" * 9))
    other = batch(b"other one")
    assert shapes.times(parse_header(other), other, needs_keys=False) == (BASE_MS, BASE_MS)
    assert shapes.times(parse_header(other), other, needs_keys=True) is None


@pytest.mark.parametrize(
    ("base", "stamp", "expected"), [(-1, b"\5", (-1, -4)), (-1, b"\0", (-1, None)), (0, b"\1", (-1, None))]
)
def test_the_latest_time_of_a_shape_is_never_below_that_of_none(base: int, stamp: bytes, expected: Times) -> None:
    known = batch_of(raw_record(0), 1, BASE_MS)
    raw = raw_record(0, stamp=stamp)
    batch = batch_of(raw, 1, base)
    found = oracle(raw, 1, base)
    assert found is not None
    assert times_of(found) == expected
    assert shapes_that_know(known).times(parse_header(batch), batch, needs_keys=False) == expected


def finish(check: RecordCheck, units: int) -> None:
    while check.advance(units) <= 0:
        pass


@pytest.mark.parametrize("headers_counts", [[10, 10, 10], [30], [1] * 30, [0, 29, 1]])
@pytest.mark.parametrize("units", [1, 7, ALL])
def test_headers_that_are_looked_at_one_by_one_are_bounded(headers_counts: list[int], units: int) -> None:
    records = [Record(key=b"k" * (n % 3), headers=[("", None)] * count) for n, count in enumerate(headers_counts)]
    body = bytes(build_batch(records)[HEADER_BYTES:])
    check = RecordCheck(body, 0, len(records), 0, headers_left=30)
    finish(check, units)
    assert check.headers_left == 0
    with pytest.raises(KafkaError) as caught:
        finish(RecordCheck(body, 0, len(records), 0, headers_left=29), units)
    assert caught.value.code == MESSAGE_TOO_LARGE
