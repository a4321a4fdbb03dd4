"""The segment format: round trips, damage at every byte, cut-off and foreign footers, and its bytes for ever."""

from array import array
from types import SimpleNamespace

import attrs
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import DamagedObject, NewerVersion
from kafscale.formats import segment
from kafscale.formats.footer_reading import FOOTER_READ_BYTES
from kafscale.formats.segment import (
    EpochStart,
    Footer,
    Identity,
    Index,
    build_footer,
    check_index_order,
    decode_footer,
    encode_footer,
    encode_header,
    footer_bytes_needed,
)
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction, ProducedBatch, Producer
from kafscale.wire.batch_header import MIN_TIMESTAMP_UNKNOWN

int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
uint32 = st.integers(0, 2**32 - 1)

identities = st.builds(
    Identity,
    topic_id=st.binary(min_size=16, max_size=16),
    partition=int32,
    base_offset=int64,
    generation=int32,
    leader_epoch=int32,
    created_ms=int64,
    batch_count=int32,
    body_bytes=int64,
    max_timestamp_ms=int64,
    body_crc=uint32,
)
indexes = st.lists(st.tuples(int64, int64, int64, int64), min_size=1, max_size=20).map(
    lambda rows: Index(*(array("q", column) for column in zip(*rows, strict=True)))
)
producers = st.builds(
    Producer,
    int64,
    int16,
    st.lists(st.builds(ProducedBatch, int32, int32, int64, int64), max_size=5),
    int64,
    coordinator_epoch=st.just(-1),
)
footers = st.builds(
    Footer,
    identity=identities,
    last_offset=int64,
    record_count=int64,
    index=indexes,
    producers=st.lists(producers, max_size=4),
    epochs=st.lists(st.builds(EpochStart, int32, int64), max_size=4),
    first_dirty_offset=int64,
    aborted=st.lists(st.builds(AbortedTransaction, int64, int64, int64, int64), max_size=3).map(tuple),
    open_transactions=st.lists(st.builds(OpenTransaction, int64, int16, int64, int32), max_size=3).map(tuple),
    marker_rows=st.none() | st.lists(st.integers(0, 2**16 - 1), max_size=20).map(tuple),
)
ABORTED = AbortedTransaction(producer_id=9, first_offset=100, marker_offset=102, stable_offset=101)
U = MIN_TIMESTAMP_UNKNOWN
OPEN = OpenTransaction(producer_id=8, epoch=2, first_offset=101, coordinator_epoch=5)


def spans(sizes, *, records: int = 3):
    return [
        SimpleNamespace(
            base_offset=100 + records * index,
            last_offset=100 + records * index + records - 1,
            max_timestamp_ms=index,
            min_timestamp_ms=MIN_TIMESTAMP_UNKNOWN,
            size_bytes=size,
        )
        for index, size in enumerate(sizes)
    ]


def footer_of(sizes, **changes) -> Footer:
    identity = Identity(
        topic_id=bytes(range(16)),
        partition=3,
        base_offset=100,
        generation=0,
        leader_epoch=7,
        created_ms=1_700_000_000_000,
        batch_count=len(sizes),
        body_bytes=sum(sizes),
        max_timestamp_ms=len(sizes) - 1,
        body_crc=0xDEADBEEF,
    )
    state = Producer(9, 1, [ProducedBatch(0, 2, 100, 102)], 1_699_999_999_999)
    footer = build_footer(identity, spans(sizes), producers=[state], epochs=[EpochStart(7, 100)])
    return attrs.evolve(footer, **changes)


@given(footers, st.binary(max_size=50))
def test_a_footer_is_read_back_from_the_end_of_an_object(footer, before):
    encoded = encode_footer(footer)
    assert footer_bytes_needed(encoded, "x") == len(encoded)
    assert decode_footer(before + encoded, "x") == footer


def test_each_flipped_bit_is_noticed():
    encoded = encode_footer(footer_of([50, 60, 70]))
    for position in range(len(encoded)):
        for bit in range(8):
            damaged = bytearray(encoded)
            damaged[position] ^= 1 << bit
            with pytest.raises(DamagedObject, match="name of it"):
                decode_footer(damaged, "name of it")


def test_each_length_but_the_whole_is_noticed():
    encoded = encode_footer(footer_of([50, 60, 70]))
    for length in range(len(encoded)):
        for part in (encoded[:length], encoded[len(encoded) - length :]):
            with pytest.raises(DamagedObject):
                decode_footer(part, "x")


@given(st.binary(max_size=200))
def test_garbage_is_a_damaged_object_and_nothing_else(garbage):
    with pytest.raises(DamagedObject):
        decode_footer(garbage, "x")


@given(st.binary(max_size=200))
def test_garbage_with_valid_checksums_is_a_damaged_object_and_nothing_else(garbage):
    """What a program with a bug would write: the sections' own rules must hold, too."""
    sections = b"".join(segment.SECTION.pack(kind, 1, len(garbage), crc32c(garbage)) + garbage for kind in range(1, 5))
    with pytest.raises(DamagedObject):
        decode_footer(with_trailer(sections), "x")
    with pytest.raises(DamagedObject):
        decode_footer(with_trailer(garbage), "x")


def with_trailer(sections: bytes, *, version: int = 2) -> bytes:
    trailer = segment.TRAILER.pack(len(sections), 0, 5, 6, version, 0, segment.TRAILER_MAGIC)
    crc = crc32c(trailer[8:], crc32c(trailer[:4], crc32c(sections)))
    return sections + trailer[:4] + crc.to_bytes(4, "big") + trailer[8:]


def section(kind: int, payload: bytes, *, version: int = 1) -> bytes:
    return segment.SECTION.pack(kind, version, len(payload), crc32c(payload)) + payload


def sections_of(footer: Footer) -> bytes:
    return encode_footer(footer)[: -segment.TRAILER.size]


@pytest.mark.parametrize("first", [True, False])
def test_a_section_of_an_unknown_kind_is_skipped(first):
    footer = footer_of([50], last_offset=5, record_count=6)
    unknown = section(99, b"of a later version", version=3)
    sections = unknown + sections_of(footer) if first else sections_of(footer) + unknown
    assert decode_footer(with_trailer(sections), "x") == footer


@pytest.mark.parametrize("kind", range(1, 9))
def test_a_section_in_a_newer_version_is_refused(kind):
    sections = sections_of(footer_of([50])) + section(kind, b"", version=3)
    with pytest.raises(DamagedObject, match="newer KafScale"):
        decode_footer(with_trailer(sections), "x")


def test_a_trailer_of_another_version_is_refused():
    with pytest.raises(DamagedObject, match="version 2"):
        decode_footer(with_trailer(sections_of(footer_of([50])), version=1), "x")
    with pytest.raises(NewerVersion, match="newer KafScale"):
        decode_footer(with_trailer(sections_of(footer_of([50])), version=4), "x")


# ---- transactions ---------------------------------------------------------------------------------------------------

NOT_DECIDED = {"open_transactions": [OPEN]}
ONE_ABORTED = {"aborted": [ABORTED]}


def transactional_footer(**transactions) -> Footer:
    plain = footer_of([50, 60])
    producers, epochs = plain.producers, plain.epochs
    return build_footer(plain.identity, spans([50, 60]), producers=producers, epochs=epochs, **transactions)


@pytest.mark.parametrize("transactions", [NOT_DECIDED, ONE_ABORTED, NOT_DECIDED | ONE_ABORTED])
def test_a_segment_with_transactions_is_refused_by_readers_without_transactions(transactions):
    """By what tells it to start a newer version: a section that it knows, in a version that it does not.

    Another version in the trailer it would take for damage. It looks for version 2 in the header before it makes a
    lost footer anew.
    """
    footer = transactional_footer(**transactions)
    encoded = encode_footer(footer)
    *_, version, _, magic = segment.TRAILER.unpack(encoded[-segment.TRAILER.size :])
    assert (version, magic) == (2, segment.TRAILER_MAGIC)
    assert kinds_and_versions(footer)[4] == 2
    assert segment.HEADER.unpack(encode_header(footer))[1] == 3
    assert decode_footer(encoded, "x") == footer


def kinds_and_versions(footer: Footer) -> dict[int, int]:
    """The versions of the sections by their kinds."""
    encoded, position, found = sections_of(footer), 0, {}
    while position < len(encoded):
        kind, version, length, _ = segment.SECTION.unpack_from(encoded, position)
        found[kind] = version
        position += segment.SECTION.size + length
    return found


def test_a_segment_without_transactions_keeps_its_old_format():
    footer = transactional_footer()
    assert footer.version == 2
    assert encode_footer(footer) == encode_footer(footer_of([50, 60]))
    assert segment.HEADER.unpack(encode_header(footer))[1] == 2


@pytest.mark.parametrize(("transactions", "version"), [(NOT_DECIDED, 1), (ONE_ABORTED, 1), ({}, 2)])
def test_a_version_that_does_not_go_with_the_sections_is_damage(transactions, version, monkeypatch):
    footer = transactional_footer(**transactions)
    monkeypatch.setattr(segment, "_epochs_version", lambda footer: version)
    with pytest.raises(DamagedObject, match="has transactions, and says that it has none"):
        decode_footer(encode_footer(footer), "x")


def test_a_trailer_of_a_version_to_come_is_of_a_newer_kafscale():
    with pytest.raises(NewerVersion, match="version 3; a newer KafScale has written it"):
        decode_footer(with_trailer(sections_of(transactional_footer()), version=3), "x")


def test_a_segment_is_stable_up_to_the_oldest_transaction_that_is_open_at_its_end():
    assert transactional_footer(**ONE_ABORTED).stable_end == 106
    later = attrs.evolve(OPEN, first_offset=103)
    assert transactional_footer(open_transactions=[OPEN, later]).stable_end == 101


def test_coordinator_epochs_are_stored_in_a_section_that_old_readers_skip():
    footer = footer_of([50, 60])
    fenced = [attrs.evolve(footer.producers[0], coordinator_epoch=4), Producer(10, 0, [], 5)]
    told = attrs.evolve(footer, producers=fenced)
    assert decode_footer(encode_footer(told), "x") == told
    assert told.version == 2
    assert segment.SECTION.unpack_from(sections_of(told), len(sections_of(told)) - 24)[0] == 8


@given(st.binary(max_size=100))
def test_garbage_in_the_sections_of_transactions_is_a_damaged_object_or_decoded(garbage):
    for kind in (6, 7, 8):
        try:
            decode_footer(with_trailer(sections_of(footer_of([50])) + section(kind, garbage), version=3), "x")
        except DamagedObject:
            continue
        assert len(garbage) % {6: 32, 7: 22, 8: 12}[kind] == 0


def test_a_footer_without_one_of_its_sections_is_damaged():
    with pytest.raises(DamagedObject):
        decode_footer(with_trailer(section(1, sections_of(footer_of([50]))[12:76])), "x")


def test_the_footer_of_64_mib_of_1_kib_batches_fits_the_one_read():
    footer = footer_of([1024] * (64 << 10))
    assert len(encode_footer(footer)) <= FOOTER_READ_BYTES
    check_index_order(footer, "x")


@given(st.lists(st.integers(61, 100_000), min_size=1, max_size=60), st.integers(1, 10))
def test_each_index_row_begins_at_a_batch_and_has_the_right_maximum_timestamp(sizes, rows_max_count):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "INDEX_ROWS_MAX_COUNT", rows_max_count)
        footer = footer_of(sizes)
    all_spans = spans(sizes)
    positions = [segment.HEADER.size + sum(sizes[:index]) for index in range(len(sizes))]
    rows = list(zip(footer.index.base_offsets, footer.index.positions, footer.index.max_timestamps_ms, strict=True))
    assert len(rows) == len(sizes) if len(sizes) <= rows_max_count else len(rows) <= rows_max_count
    where = {position: index for index, position in enumerate(positions)}
    starts = [where[position] for _, position, _ in rows]
    for (base_offset, _, latest), start, end in zip(rows, starts, [*starts[1:], len(sizes)], strict=True):
        assert base_offset == all_spans[start].base_offset
        assert latest == max(each.max_timestamp_ms for each in all_spans[start:end])
    check_index_order(footer, "x")


@given(st.lists(st.integers(61, 500), min_size=1, max_size=20), st.data())
def test_rows_within_a_byte_limit_are_the_rows_that_fit_and_at_least_one(sizes, data):
    footer = footer_of(sizes)
    row = data.draw(st.integers(0, len(sizes) - 1))
    max_bytes = data.draw(st.integers(0, sum(sizes) + 10))
    end = footer.rows_within(row, max_bytes)
    fitting = [n for n in range(row + 1, len(sizes) + 1) if sum(sizes[row:n]) <= max_bytes]
    assert end == max(fitting, default=row + 1)
    assert footer.row_start(end) - footer.row_start(row) == sum(sizes[row:end])


def test_an_offset_is_looked_up_in_the_row_that_holds_it():
    footer = footer_of([100] * 4)
    assert [footer.row_of(offset) for offset in range(100, 112)] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_an_offset_in_a_hole_is_looked_up_in_the_row_that_holds_the_next_offset():
    left = [spans([100] * 6)[index] for index in (1, 2, 5)]  # 100 to 102 and 109 to 114 were compacted away
    footer = footer_of([100] * 3)
    footer = build_footer(footer.identity, left, producers=[], epochs=[])
    assert list(footer.index.base_offsets) == [100, 106, 109]
    assert [footer.row_of(offset) for offset in (100, 103, 106, 108, 109, 114, 115)] == [0, 0, 1, 1, 2, 2, 2]
    check_index_order(footer, "x")


def test_a_footer_has_no_first_dirty_offset_section_before_compaction():
    plain, compacted = footer_of([50]), footer_of([50], first_dirty_offset=70)
    assert encode_footer(compacted)[: len(sections_of(plain))] == sections_of(plain)
    assert len(encode_footer(compacted)) == len(encode_footer(plain)) + segment.SECTION.size + 8


@pytest.mark.parametrize(
    ("base_offsets", "positions"),
    [
        ([100, 100], [32, 82]),
        ([100, 90], [32, 82]),
        ([100, 103], [82, 32]),
        ([100, 103], [33, 82]),
        ([100, 103], [32, 142]),
        ([99, 103], [32, 82]),
        ([100, 106], [32, 82]),
    ],
)
def test_an_index_out_of_order_or_with_wrong_positions_is_damaged(base_offsets, positions):
    index = Index(array("q", base_offsets), array("q", positions), array("q", [0, 0]))
    with pytest.raises(DamagedObject, match="index"):
        check_index_order(footer_of([50, 60], index=index), "x")


def test_minimum_timestamps_are_stored_only_if_a_row_has_one():
    plain = footer_of([50, 60])
    unknown, known = (attrs.evolve(plain.index, min_timestamps_ms=array("q", rows)) for rows in ([U, U], [U, -1]))
    assert encode_footer(attrs.evolve(plain, index=unknown)) == encode_footer(plain)
    told = encode_footer(attrs.evolve(plain, index=known))
    assert told[: len(sections_of(plain))] == sections_of(plain)
    assert len(told) == len(encode_footer(plain)) + segment.SECTION.size + 16
    assert decode_footer(told, "x").index.min_timestamps_ms == array("q", [U, -1])


def test_a_footer_with_earliest_times_of_more_rows_than_there_are_is_damaged():
    footer = footer_of([50, 60])
    index = attrs.evolve(footer.index, min_timestamps_ms=array("q", [1, 2, 3]))
    with pytest.raises(DamagedObject, match="uneven"):
        decode_footer(encode_footer(attrs.evolve(footer, index=index)), "x")


def test_an_index_row_has_no_minimum_timestamp_if_one_of_its_batches_has_none(monkeypatch):
    monkeypatch.setattr(segment, "INDEX_ROWS_MAX_COUNT", 2)
    batches = spans([50] * 6)
    for batch, earliest_ms in zip(batches, [5, 3, 4, U, 8, 9], strict=True):
        batch.min_timestamp_ms = earliest_ms
    footer = footer_of([50] * 6)
    index = build_footer(footer.identity, batches, producers=[], epochs=[]).index
    assert list(index.min_timestamps_ms) == [min(each) for each in ([5, 3, 4, U], [8, 9])]


def test_the_segment_format_keeps_its_golden_bytes():
    footer = footer_of([50, 60])
    assert encode_header(footer).hex() == ("4b414653000200000000000000000064000000020000018bcfe5680000000000")
    assert encode_footer(footer).hex() == GOLDEN_FOOTER
    assert decode_footer(bytes.fromhex(GOLDEN_FOOTER), "x") == footer


GOLDEN_FOOTER = (
    "0001000100000044065250bc"  # identity
    "000102030405060708090a0b0c0d0e0f"  # topic id
    "00000003"  # partition
    "0000000000000064"  # base offset
    "00000000"  # generation
    "00000007"  # leader epoch
    "0000018bcfe56800"  # created ms
    "00000002"  # batch count
    "000000000000006e"  # body bytes
    "0000000000000001"  # max timestamp ms
    "deadbeef"  # CRC of the body
    "0002000100000030a8a63b89"  # index
    "00000000000000640000000000000067"  # base offsets
    "00000000000000200000000000000052"  # positions
    "00000000000000000000000000000001"  # max timestamps
    "000300010000002bd685cae3"  # producers
    "0000000000000009"  # producer id
    "0001"  # epoch
    "0000018bcfe567ff"  # last timestamp ms
    "01"  # batches
    "0000000000000002"  # sequences
    "00000000000000640000000000000066"  # offsets
    "000400010000000c4a5c7f3a"  # leader epochs
    "00000007"  # epoch
    "0000000000000064"  # start offset
    "000000db"  # length of the footer
    "fcd0e304"  # CRC
    "0000000000000069"  # last offset
    "0000000000000006"  # record count
    "000200004b464532"  # version, 0, magic
)


def test_the_bytes_of_transactions_stay_as_they_are():
    footer = transactional_footer(**NOT_DECIDED, **ONE_ABORTED)
    footer = attrs.evolve(footer, producers=[attrs.evolve(footer.producers[0], coordinator_epoch=4)])
    plain = sections_of(footer_of([50, 60]))
    assert sections_of(footer)[len(plain) :].hex() == TRANSACTIONS
    assert sections_of(footer)[: len(plain)].hex() == plain.hex().replace("000400010000000c", "000400020000000c")


TRANSACTIONS = (
    "00060001000000209595cec0"  # aborted transactions
    "0000000000000009"  # producer id
    "0000000000000064"  # first offset
    "0000000000000066"  # marker offset
    "0000000000000065"  # last stable offset
    "0007000100000016a0cb6f0d"  # open transactions
    "0000000000000008"  # producer id
    "0002"  # epoch
    "0000000000000065"  # first offset
    "00000005"  # coordinator epoch
    "000800010000000c118c467f"  # coordinator epochs
    "0000000000000009"  # producer id
    "00000004"  # coordinator epoch
)
