"""What verify finds wrong with the earliest times that segments tell of the rows of their index."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import attrs
import pytest

from kafscale.formats.footer_reading import read_footer
from kafscale.formats.segment import HEADER, INDEX_ROWS_MAX_COUNT, encode_footer, encode_header
from kafscale.log.check.verification import Verifier
from kafscale.log.repair import verify_segment as verify_earliest
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from kafscale.wire import compression
from kafscale.wire.batch_header import LOG_APPEND_TIME, MIN_TIMESTAMP_UNKNOWN, set_crc
from kafscale.wire.records import Record, build_batch
from tests.devtools.fakes.segment_objects import CREATED_MS, version_2_objects

KEY = SegmentKey(topic="orders", topic_id=bytes(range(16)), partition=0, base_offset=0)
CODECS = [compression.NONE, compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD]


def batches_of(*times_ms: Sequence[int], codec: int = compression.NONE, attributes: int = 0) -> list[bytes]:
    """A batch of each, of records with these times."""
    found, base_offset = [], 0
    for each in times_ms:
        records = [Record(value=b"value", timestamp_ms=timestamp_ms) for timestamp_ms in each]
        found.append(bytes(build_batch(records, base_offset=base_offset, codec=codec, attributes=attributes)))
        base_offset += len(each)
    return found


async def store_of(batches: Sequence[bytes]) -> MemoryStore:
    store = MemoryStore(clock_ms=lambda: CREATED_MS)
    await version_2_objects(KEY, batches).put(store)
    return store


async def findings(store: MemoryStore) -> list[str]:
    verifier = Verifier(store=store, namespace="default", clock_ms=lambda: CREATED_MS)
    await verifier.list_bucket()
    await verifier.read_bucket(lambda _: None)
    return [each.message for each in verifier.report.findings if each.damage]


async def rows_of(store: MemoryStore) -> list[int]:
    return list((await read_footer(store, KEY)).index.min_timestamps_ms)


async def tell_otherwise(store: MemoryStore, row: int, min_timestamp_ms: int) -> None:
    """Write the segment again with another footer."""
    content = bytes((await store.get(KEY.key)).data)
    footer = await read_footer(store, KEY)
    told = array("q", footer.index.min_timestamps_ms)
    told[row] = min_timestamp_ms
    wrong = attrs.evolve(footer, index=attrs.evolve(footer.index, min_timestamps_ms=told))
    index = encode_footer(wrong)
    await store.put(KEY.key, [encode_header(wrong), content[HEADER.size : footer.end_position], index])
    await store.put(KEY.of_kind("index").key, [index])


MANY = [[CREATED_MS + 9 * number, CREATED_MS - 5 * number, CREATED_MS] for number in range(1, 9)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("wrong_by", [-1, 1])
async def test_a_row_that_tells_another_earliest_time_is_found(codec: int, wrong_by: int) -> None:
    store = await store_of(batches_of(*MANY, codec=codec))
    assert await findings(store) == []
    rows = await rows_of(store)
    assert CREATED_MS - 40 in rows
    assert MIN_TIMESTAMP_UNKNOWN not in rows
    for row, told_ms in enumerate(rows):
        store = await store_of(batches_of(*MANY, codec=codec))
        await tell_otherwise(store, row, told_ms + wrong_by)
        assert await findings(store) == [
            f"the earliest timestamp of index row {row} is {told_ms}, not {told_ms + wrong_by}"
        ]


async def test_all_batches_of_a_row_count() -> None:
    times_ms = [CREATED_MS - number * 7919 % 10_007 for number in range(INDEX_ROWS_MAX_COUNT + 100)]  # in no order
    batches = batches_of(*([CREATED_MS, each] for each in times_ms))
    store = await store_of(batches)
    rows = await rows_of(store)
    assert len(rows) < len(batches)
    assert await findings(store) == []
    await tell_otherwise(store, 1, rows[1] + 1)
    assert await findings(store) == [f"the earliest timestamp of index row 1 is {rows[1]}, not {rows[1] + 1}"]


async def test_records_without_a_time_are_the_earliest() -> None:
    store = await store_of(batches_of([CREATED_MS, -1, CREATED_MS]))
    assert await rows_of(store) == [-1]
    assert await findings(store) == []
    await tell_otherwise(store, 0, CREATED_MS)
    assert await findings(store) == [f"the earliest timestamp of index row 0 is -1, not {CREATED_MS}"]


@pytest.mark.parametrize("batches", [batches_of([CREATED_MS]), batches_of([7, 8], attributes=LOG_APPEND_TIME)])
async def test_batches_are_not_unpacked_if_headers_suffice(
    batches: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await store_of(batches)
    monkeypatch.setattr(verify_earliest, "check_of", None)
    assert await findings(store) == []
    await tell_otherwise(store, 0, 3)
    assert len(await findings(store)) == 1


async def test_rows_that_tell_none_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await store_of(batches_of(*MANY))
    for row in range(len(await rows_of(store))):
        await tell_otherwise(store, row, MIN_TIMESTAMP_UNKNOWN)
    monkeypatch.setattr(verify_earliest, "check_of", None)
    assert await findings(store) == []


async def test_a_time_of_records_that_can_not_be_read_is_found() -> None:
    batch = bytearray(batches_of([CREATED_MS, CREATED_MS])[0])
    batch[61] ^= 0x10  # the length of the first record
    set_crc(memoryview(batch))
    store = await store_of([bytes(batch)])
    assert await findings(store) == []
    await tell_otherwise(store, 0, CREATED_MS)
    (message,) = await findings(store)
    assert message.startswith("the earliest timestamp of index row 0 is told, and what it is of can't be read: record")


async def test_too_large_batches_are_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await store_of(batches_of(*MANY, codec=compression.ZSTD))
    await tell_otherwise(store, 0, 3)
    monkeypatch.setattr(verify_earliest, "UNPACKED_MAX_BYTES", 8)
    assert await findings(store) == []
