"""Looking for a time in batches: against a plain reader, and in what older versions have stored."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.errors import CorruptBatch
from kafscale.log.read.time_search import FoundOffset, TimeSearch
from kafscale.log.read.unpacking import Unpacking
from kafscale.wire import compression
from kafscale.wire.batch_header import HEADER_BYTES, LOG_APPEND_TIME, batches, encode_batch, parse_header
from kafscale.wire.records import Record, build_batch, iterate_records

stamps = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=4)


@settings(max_examples=100, deadline=None)
@given(stamps=stamps, wanted=st.integers(0, 10), min_offset=st.integers(0, 15), own_time=st.booleans())
async def test_the_timestamp_search_finds_the_same_record_as_a_plain_reader(
    stamps: list[list[int]], wanted: int, min_offset: int, own_time: bool
) -> None:
    data = b""
    next_offset = 3
    for number, each in enumerate(stamps):
        records = [Record(key=b"k" * 70, value=b"v", timestamp_ms=stamp, headers=[("h", None)]) for stamp in each]
        codec = (compression.NONE, compression.GZIP)[number % 2]
        attributes = 0 if own_time else LOG_APPEND_TIME
        data += build_batch(records, base_offset=next_offset, codec=codec, attributes=attributes)
        next_offset += len(each)
    expected = next(
        (
            FoundOffset(record.offset, record.timestamp_ms, -1)
            for batch in batches(memoryview(data))
            for record in iterate_records(batch)
            if record.timestamp_ms >= wanted and record.offset >= min_offset
        ),
        None,
    )
    assert await TimeSearch(min_offset, wanted, Unpacking(1 << 20)).find(data) == expected


@pytest.mark.parametrize("codec", [compression.NONE, compression.LZ4])
async def test_a_batch_that_was_stored_with_wrong_lengths_is_found_itself(codec: int) -> None:
    """The look-up answered with an error for good."""
    header = parse_header(memoryview(build_batch([Record(timestamp_ms=5)] * 2, base_offset=7, codec=codec)))
    body = b"\x7e" * 20
    batch = bytes(encode_batch(header, compression.compress(codec, body) if codec else body))
    late = bytes(build_batch([Record(timestamp_ms=6)], base_offset=9))
    search = TimeSearch(8, 5, Unpacking(1 << 20))
    assert await search.find(batch + late) == FoundOffset(8, 5, -1)
    assert await attrs.evolve(search, timestamp_ms=6).find(batch + late) == FoundOffset(9, 6, -1)
    assert search.unreadable_count.value == 1
    assert len(batch) > HEADER_BYTES
    damaged = bytearray(batch)
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatch):
        await search.find(damaged + late)


async def test_a_batch_that_unpacks_to_too_much_is_found_itself() -> None:
    batch = build_batch([Record(value=bytes(1 << 20), timestamp_ms=5)], base_offset=7, codec=compression.ZSTD)
    assert await TimeSearch(0, 5, Unpacking(1 << 16)).find(batch) == FoundOffset(7, 5, -1)
