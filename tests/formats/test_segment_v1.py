"""Version 1: golden objects, damage at every bit, and what a reader gets from a bucket that has such segments."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import DamagedObject
from kafscale.formats import segment_v1
from kafscale.formats.body import BatchSplitter
from kafscale.formats.footer_reading import index_goes_with, read_footer
from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN, segment_of
from kafscale.formats.segment_v1 import IndexEntry, decode_ends, decode_index, footer_from_batches, footer_from_index
from kafscale.log.bucket.listing import list_segments
from kafscale.log.bucket.restore import Restorer
from kafscale.log.read.footers import Footers
from kafscale.log.repair.repair import Examiner
from kafscale.store.memory import MemoryStore
from kafscale.wire.batch_header import parse_header
from tests.devtools.fakes.segment_objects import (
    CREATED_MS,
    make_batches,
    version_1_key,
    version_1_objects,
)

KEY = version_1_key("orders", 2, 100)
BATCHES = make_batches(100, 4)  # of 3 records each: offsets 100 to 111
SMALL = version_1_objects(KEY, BATCHES, interval=6)
SIZE = len(BATCHES[0])
LARGE = version_1_objects(KEY, make_batches(100, 400, value_bytes=500), interval=30)

# Every byte by hand, from the description of the format.
GOLDEN_HEADER = bytes.fromhex("4b414653 0001 0000 0000000000000064 0000000c 0000018bcfe56800 00000000")
GOLDEN_INDEX = bytes.fromhex(
    "49445800 0001 00000002 00000006 0000"
    "0000000000000064 00000020"
    "000000000000006a" + (32 + 2 * SIZE).to_bytes(4, "big").hex()
)


def ends(objects=SMALL):
    return decode_ends(KEY, objects.kfs, objects.kfs, len(objects.kfs))


def headers(batches=BATCHES):
    return [parse_header(memoryview(batch)) for batch in batches]


def test_version_1_golden_objects_match_the_objects_built_by_the_tests():
    assert SMALL.kfs[:32] == GOLDEN_HEADER
    assert SMALL.kfs[-12:] == bytes.fromhex("000000000000006f 454e4421")
    assert SMALL.index == GOLDEN_INDEX
    assert KEY.key == "default/orders/2/segment-00000000000000000100.kfs"


def test_header_and_footer_agree():
    found = ends()
    assert (found.header.base_offset, found.header.record_count, found.header.created_ms) == (100, 12, CREATED_MS)
    assert found.trailer.last_offset == 111
    assert found.body_bytes == 4 * SIZE
    assert SMALL.kfs.endswith(segment_v1.encode_trailer(found.trailer))


def test_a_footer_from_the_index_has_its_rows_and_no_timestamps():
    footer = footer_from_index(ends(), decode_index(SMALL.index, "x"))
    assert list(footer.index.base_offsets) == [100, 106]
    assert list(footer.index.positions) == [32, 32 + 2 * SIZE]
    assert (footer.last_offset, footer.record_count, footer.end_position) == (111, 12, len(SMALL.kfs) - 16)
    assert set(footer.index.max_timestamps_ms) == {MAX_TIMESTAMP_UNKNOWN}
    assert (footer.producers, footer.epochs, footer.version) == ((), (), 1)


def test_a_footer_from_the_batches_has_a_row_for_each_and_their_timestamps():
    footer = footer_from_batches(ends(), headers())
    assert list(footer.index.base_offsets) == [100, 103, 106, 109]
    assert list(footer.index.max_timestamps_ms) == [CREATED_MS + offset for offset in (102, 105, 108, 111)]
    assert footer.identity.max_timestamp_ms == CREATED_MS + 111
    assert decode_index(segment_v1.encode_index(footer.index), "x") == [
        IndexEntry(100 + 3 * number, 32 + number * SIZE) for number in range(4)
    ]


@pytest.mark.parametrize("damaged", [SMALL.kfs[:47], SMALL.kfs[:-1], b"", SMALL.kfs[:32] + SMALL.kfs[-16:]])
def test_a_cut_off_segment_is_a_damaged_object(damaged):
    with pytest.raises(DamagedObject, match="segment-0"):
        decode_ends(KEY, damaged, damaged, len(damaged))


@pytest.mark.parametrize("position", [0, 5, 8, 15, 16, len(SMALL.kfs) - 1, len(SMALL.kfs) - 12])
def test_ends_that_tell_of_another_segment_are_damaged(position):
    damaged = bytearray(SMALL.kfs)
    damaged[position] ^= 0x80
    with pytest.raises(DamagedObject):
        decode_ends(KEY, damaged, damaged, len(damaged))


@given(st.binary(max_size=100))
def test_garbage_is_a_damaged_object_and_nothing_else(garbage):
    for decode in (segment_v1.decode_header, segment_v1.decode_trailer, segment_v1.decode_index):
        with pytest.raises(DamagedObject):
            decode(garbage, "x")


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=9))
def test_an_index_in_disorder_or_pointing_outside_makes_no_footer(rows):
    entries = [IndexEntry(*row) for row in rows]
    try:
        footer = footer_from_index(ends(), entries)
    except DamagedObject:
        return
    positions = list(footer.index.positions)
    assert positions == sorted(set(positions))
    assert positions[0] == 32
    assert positions[-1] < footer.end_position


@given(st.lists(st.integers(1, 200), max_size=20))
def test_batches_are_split_the_same_at_any_sizes_of_pieces(sizes):
    body = SMALL.kfs[32:-16]
    splitter = BatchSplitter(32, 32 + len(body))
    found, start = [], 0
    for size in [*sizes, len(body)]:
        found += splitter.feed(body[start : start + size])
        start += size
    splitter.finish()
    assert [bytes(batch.data) for batch in found] == BATCHES
    assert [batch.position for batch in found] == [32 + number * SIZE for number in range(4)]


async def bucket(*written):
    store = MemoryStore()
    for objects in written:
        await objects.put(store)
    return store


async def test_a_small_segment_is_read_whole_by_one_get():
    store = await bucket(SMALL)
    await store.delete([KEY.of_kind("index").key])
    assert await read_footer(store, KEY) == footer_from_batches(ends(), headers())


async def test_a_large_version_1_segment_opens_by_its_index_or_else_by_its_batches():
    store = await bucket(LARGE)
    footer = await read_footer(store, KEY)
    assert footer.identity.max_timestamp_ms == MAX_TIMESTAMP_UNKNOWN
    assert list(footer.index.base_offsets) == list(range(100, 1300, 30))
    await store.put(KEY.of_kind("index").key, [b"damaged"])
    footer = await read_footer(store, KEY)
    assert len(footer.index.positions) == 400
    assert footer.identity.max_timestamp_ms == CREATED_MS + 1299


async def test_exact_timestamps_are_read_once_and_kept():
    store = await bucket(LARGE)
    footers = Footers(store, 1 << 20)
    segment = segment_of(KEY, await read_footer(store, KEY))
    assert (await footers.get_with_timestamps(segment)).identity.max_timestamp_ms == CREATED_MS + 1299
    assert (await footers.get(segment)).identity.max_timestamp_ms == CREATED_MS + 1299


async def test_a_damaged_batch_length_is_named_with_its_place():
    kfs = bytearray(SMALL.kfs)
    kfs[32 + SIZE + 8] = 0x70
    store = await bucket(attrs.evolve(SMALL, kfs=bytes(kfs)))
    with pytest.raises(DamagedObject, match=f"segment-.*at byte {32 + SIZE}:"):
        await read_footer(store, KEY)


async def test_a_restore_lists_version_1_and_writes_a_missing_index_again():
    later = version_1_objects(version_1_key("orders", 2, 120), make_batches(120, 1))
    store = await bucket(SMALL, later)
    await store.delete([KEY.of_kind("index").key])
    listed = await list_segments(store, "default", lambda _: None)
    restorer = Restorer(
        store=store, examiner=Examiner(store=store), checkpoint={}, log_start_offset=lambda partition_id: 0
    )
    restored = await restorer.restore_partition((KEY.topic_id, 2), listed[KEY.topic_id, 2])
    assert [(each.base_offset, each.last_offset) for each in restored.segments] == [(100, 111), (120, 122)]
    rebuilt = decode_index((await store.get(KEY.of_kind("index").key)).data, "x")
    assert [entry.base_offset for entry in rebuilt] == [100, 103, 106, 109]
    assert restored.end is not None
    assert restored.end.last_offset == 122
    assert await index_goes_with(store, later.key, await read_footer(store, later.key))


async def test_an_index_does_not_match_the_footer_of_another_segment():
    store = await bucket(SMALL)
    other = version_1_objects(KEY, make_batches(100, 4, value_bytes=21), interval=6)
    await store.put(KEY.of_kind("index").key, [other.index])
    assert not await index_goes_with(store, KEY, await read_footer(store, KEY))
