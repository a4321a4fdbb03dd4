"""Totals of footers are those of the records, whatever there is in the log."""

import random
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest

from kafscale.config import StoreUrl
from kafscale.formats import segment
from kafscale.formats.segment import INDEX_ROWS_MAX_COUNT, decode_footer, encode_footer
from kafscale.spark.bucket.bucket import BucketOptions
from kafscale.spark.bucket.catalog import Catalog
from kafscale.spark.bucket.reading import SplitReader
from kafscale.spark.bucket.splits import FIRST_MS, LAST_MS, Extent, Period, Split, plan
from kafscale.spark.bucket.totals import Totals, told_by_footers, totals_of
from kafscale.store.paths import SegmentKey
from kafscale.wire.batch_header import set_base_offset, set_crc
from kafscale.wire.control_records import EndMarker, encode_marker
from kafscale.wire.records import Record, build_batch
from tests.devtools.fakes.segment_objects import make_batches, version_1_key, version_1_objects, version_2_objects
from tests.devtools.world.determinism import seeds

TOPIC_ID = bytes(range(16))
EPOCH, MILLISECOND = datetime.fromtimestamp(0, UTC), timedelta(milliseconds=1)


def key(base_offset: int, generation: int = 0) -> SegmentKey:
    return SegmentKey(topic="t", topic_id=TOPIC_ID, partition=0, base_offset=base_offset, generation=generation)


def catalog(directory: Path) -> Catalog:
    return Catalog(BucketOptions(url=StoreUrl.parse(f"file:{directory}")).open(), "default", committed_only=True)


def planned(made: Catalog, start: int = 0, end: int = 1 << 40, **period: int) -> list[Split]:
    log = made.partitions("t")[0]
    first, behind = max(start, log.start_offset), min(end, log.end_offset)
    return list(plan(made, [Extent(log=log, start_offset=first, end_offset=behind, period=Period(**period))]))


def read(made: Catalog, splits: list[Split]) -> Totals | None:
    reader = SplitReader(
        bucket=made.bucket,
        namespace="default",
        columns=["key", "offset", "timestamp"],
        fail_on_data_loss=True,
        committed_only=True,
    )
    return joined([totals_of(each, records) for each in splits for records in reader.read(each)])


def all_of(made: Catalog, start: int = 0, end: int = 1 << 40, first_ms: int = FIRST_MS, last_ms: int = LAST_MS):
    """What a reader finds that knows nothing of times before it has the records."""
    reader = SplitReader(
        bucket=made.bucket,
        namespace="default",
        columns=["offset", "timestamp"],
        fail_on_data_loss=True,
        committed_only=True,
    )
    rows = [row for split in planned(made, start, end) for records in reader.read(split) for row in records.to_pylist()]
    times = [(row["timestamp"] - EPOCH) // MILLISECOND for row in rows]
    kept = [(row["offset"], time) for row, time in zip(rows, times, strict=True) if first_ms <= time <= last_ms]
    if not kept:
        return None
    offsets, times = zip(*kept, strict=True)
    return Totals(
        topic="t",
        partition=0,
        count=len(kept),
        first_offset=min(offsets),
        last_offset=max(offsets),
        first_ms=min(times),
        last_ms=max(times),
    )


def joined(found: list[Totals | None]) -> Totals | None:
    totals = [each for each in found if each is not None]
    result = totals[0] if totals else None
    for each in totals[1:]:
        result = result.joined(each)
    return result


def check(directory: Path, *between: int, asks_for_first: bool = False, **period: int) -> int:
    """Footers and what is left of records give what all records do. Returns how many bytes are left."""
    made = catalog(directory)
    splits = planned(made, *between, **period)
    expected = all_of(made, *between, **period)
    left_bytes = []
    for with_first_time in (True, False):
        told = told_by_footers(made, splits, with_first_time=with_first_time)
        found = joined([*told.totals, read(made, told.left)])
        if not with_first_time and found is not None and expected is not None:
            found = attrs.evolve(found, first_ms=expected.first_ms)
        assert found == expected
        left_bytes.append(sum(each.size_bytes for each in told.left))
    assert left_bytes[1] <= left_bytes[0]
    return left_bytes[0 if asks_for_first else 1]


def marker(offset: int) -> bytes:
    """The end of a transaction that was committed, which no footer tells of, later than all records."""
    batch = encode_marker(EndMarker(producer_id=7, producer_epoch=0, coordinator_epoch=0, is_commit=True), 1 << 41)
    set_base_offset(memoryview(batch), offset, 0)
    return bytes(batch)


def batch(base_offset: int, count: int, times: random.Random, **details) -> bytes:
    records = [Record(value=b"v" * times.randrange(40), timestamp_ms=times.randrange(1000)) for _ in range(count)]
    return bytes(build_batch(records, base_offset=base_offset, **details))


@pytest.mark.parametrize("rows_max_count", [INDEX_ROWS_MAX_COUNT, 3])
@pytest.mark.parametrize("seed", seeds(10, more=30))
def test_footer_totals_equal_the_totals_of_the_records(tmp_path, seed, rows_max_count, monkeypatch):
    monkeypatch.setattr(segment, "INDEX_ROWS_MAX_COUNT", rows_max_count)
    rng = random.Random(seed)
    offset = 0
    for _ in range(rng.randrange(1, 5)):
        base_offset, batches = offset, []
        for _ in range(rng.randrange(1, 9)):
            if rng.random() < 0.3:
                batches.append(marker(offset))
                offset += 1
            else:
                count = rng.choice([1, 1, 2, 30])
                batches.append(batch(offset, count, rng))
                offset += count
        tells = {"tells_markers": rng.random() < 0.7, "tells_earliest": rng.random() < 0.7}
        version_2_objects(key(base_offset), batches, **tells).write_to(tmp_path)
    for _ in range(10):
        first = rng.randrange(offset)
        check(tmp_path, first, rng.randrange(first, offset + 1))
        check(tmp_path, 0, offset, last_ms=rng.randrange(1000))
        check(tmp_path, 0, offset, first_ms=rng.randrange(1000))
        check(tmp_path, 0, offset, first_ms=rng.randrange(500), last_ms=rng.randrange(500, 1000))


def test_of_batches_of_records_nothing_is_left_to_read(tmp_path):
    version_2_objects(key(0), make_batches(0, 50)).write_to(tmp_path)
    version_2_objects(key(150), make_batches(150, 50)).write_to(tmp_path)
    assert check(tmp_path) == 0
    assert check(tmp_path, 3, 297) == 0
    assert check(tmp_path, 4, 297) == len(make_batches(3, 1)[0])
    assert check(tmp_path, 10, 10) == 0


def test_first_timestamps_come_from_footers_and_older_segments_are_read(tmp_path):
    told, before = make_batches(0, 50), make_batches(150, 50)
    version_2_objects(key(0), told).write_to(tmp_path)
    assert check(tmp_path, asks_for_first=True) == 0
    version_2_objects(key(150), before, tells_earliest=False).write_to(tmp_path)
    assert check(tmp_path) == 0
    assert check(tmp_path, asks_for_first=True) == sum(map(len, before))


def test_index_rows_outside_the_time_range_are_not_read(tmp_path):
    """Also where they come first: records need not be in order of time."""
    batches = [
        bytes(build_batch([Record(value=b"v", timestamp_ms=time_ms + each) for each in (0, 5)], base_offset=2 * number))
        for number, time_ms in enumerate([900, 100, 500, 200, 800])
    ]
    version_2_objects(key(0), batches).write_to(tmp_path)
    made = catalog(tmp_path)
    for first_ms, last_ms, wanted in ((0, 202, [1, 3]), (101, 199, [1]), (0, 99, []), (505, 2000, [0, 2, 4])):
        splits = planned(made, first_ms=first_ms, last_ms=last_ms)
        assert sum(each.size_bytes for each in splits) == sum(len(batches[number]) for number in wanted)
        check(tmp_path, first_ms=first_ms, last_ms=last_ms)
    assert check(tmp_path, first_ms=100, last_ms=505) == 0
    assert check(tmp_path, first_ms=101, last_ms=505) == len(batches[1])


def test_a_marker_is_not_counted_as_a_record(tmp_path):
    version_2_objects(key(0), [*make_batches(0, 1), marker(3), *make_batches(4, 1)]).write_to(tmp_path)
    assert check(tmp_path) == len(marker(3))


def test_index_rows_of_several_batches_are_read_if_one_holds_a_marker(tmp_path):
    batches = make_batches(0, 3 * INDEX_ROWS_MAX_COUNT)
    version_2_objects(key(0), batches).write_to(tmp_path)
    assert check(tmp_path) == 0
    offset = 3 * len(batches)
    version_2_objects(key(offset), [marker(offset), *make_batches(offset + 1, 3 * INDEX_ROWS_MAX_COUNT)]).write_to(
        tmp_path
    )
    assert len(marker(0)) < check(tmp_path) < 5 * len(batches[0])


def test_a_small_record_is_not_taken_for_a_marker_if_footers_record_markers(tmp_path):
    batches = make_batches(0, 3, records_per_batch=1, value_bytes=2)
    version_2_objects(key(0), batches).write_to(tmp_path)
    assert check(tmp_path) == 0
    version_2_objects(key(3), make_batches(3, 3, records_per_batch=1, value_bytes=2), tells_markers=False).write_to(
        tmp_path
    )
    assert check(tmp_path) == sum(map(len, batches))


def test_rows_of_several_batches_are_read_where_footers_do_not_tell_of_markers(tmp_path):
    batches = make_batches(0, INDEX_ROWS_MAX_COUNT + 1)
    version_2_objects(key(0), batches, tells_markers=False).write_to(tmp_path)
    assert check(tmp_path) == sum(map(len, batches))


def test_a_segment_of_version_1_is_read(tmp_path):
    batches = make_batches(0, 3, value_bytes=20_000)  # more than the one look at its end shows
    version_1_objects(version_1_key("t", 0, 0), batches).write_to(tmp_path)
    assert check(tmp_path) == sum(map(len, batches))


def test_a_batch_that_compaction_has_made_holes_in_is_read(tmp_path):
    """As footers are that were written before compaction told of itself: more offsets than records."""
    batch = bytearray(make_batches(0, 1)[0])
    struct.pack_into(">i", batch, 23, 9)  # the last offset delta
    set_crc(memoryview(batch))
    objects = version_2_objects(key(0), [bytes(batch)])
    footer = attrs.evolve(decode_footer(objects.index, "index"), record_count=3)
    index = encode_footer(footer)
    body = objects.kfs[: footer.end_position]
    attrs.evolve(objects, kfs=body + index, index=index).write_to(tmp_path)
    assert check(tmp_path) == len(batch)
