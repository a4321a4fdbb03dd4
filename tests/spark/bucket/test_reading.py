"""From what is in a bucket to records: the catalog, the splits, and what tasks read, whatever is merged or damaged."""

import logging
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from kafscale.config import StoreUrl
from kafscale.errors import NotFound
from kafscale.spark.bucket import decode as decoding
from kafscale.spark.bucket import reading
from kafscale.spark.bucket.bucket import BucketOptions
from kafscale.spark.bucket.catalog import Catalog
from kafscale.spark.bucket.reading import DataLoss, SplitReader
from kafscale.spark.bucket.splits import Extent, holes, plan, together
from kafscale.store.paths import SegmentKey
from kafscale.wire import compression
from kafscale.wire.batch_header import parse_header, set_crc
from kafscale.wire.records import build_batch, iterate_records
from tests.devtools.fakes.segment_objects import (
    SegmentObjects,
    make_batches,
    version_1_key,
    version_1_objects,
    version_2_objects,
)

TOPIC_ID = bytes(range(16))
OTHER_ID = bytes(15) + b"\1"


def key(base_offset: int, *, partition: int = 0, generation: int = 0, topic_id: bytes = TOPIC_ID) -> SegmentKey:
    return SegmentKey(topic="t", topic_id=topic_id, partition=partition, base_offset=base_offset, generation=generation)


def segment(base_offset: int, batch_count: int, **of_key) -> SegmentObjects:
    """Three records a batch."""
    return version_2_objects(key(base_offset, **of_key), make_batches(base_offset, batch_count))


class Bucket:
    """A directory that tests put objects into; `requests` is what was asked of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir()
        self.bucket = BucketOptions(url=StoreUrl.parse(f"file:{directory}")).open()
        self.requests: list[str] = []
        self.before_get_range = lambda name: None

    def put(self, *segments: SegmentObjects) -> None:
        for each in segments:
            self.write(each.key.key, each.kfs)
            self.write(each.key.of_kind("index").key, each.index)

    def write(self, name: str, data: bytes) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def remove(self, name: str) -> None:
        (self.directory / name).unlink()

    def get(self, name):
        self.requests.append(f"get {Path(name).suffix}")
        return self.bucket.get(name)

    def get_range(self, name, start, length_bytes):
        self.before_get_range(name)
        self.requests.append(f"range {Path(name).suffix}")
        return self.bucket.get_range(name, start, length_bytes)

    def get_tail(self, name, length_bytes):
        self.requests.append(f"tail {Path(name).suffix}")
        return self.bucket.get_tail(name, length_bytes)

    def list(self, prefix, start_after=""):
        self.requests.append("list")
        return self.bucket.list(prefix, start_after)

    def close(self):
        self.bucket.close()


@pytest.fixture
def bucket(tmp_path):
    return Bucket(tmp_path / "bucket")


def read(bucket: Bucket, splits, *, fail_on_data_loss: bool = True, columns=("offset",)) -> list[int]:
    reader = SplitReader(bucket=bucket, namespace="default", columns=columns, fail_on_data_loss=fail_on_data_loss)
    return [offset for split in splits for records in reader.read(split) for offset in records["offset"].to_pylist()]


def planned(bucket: Bucket, start: int, end: int, *, partition: int = 0, **options):
    catalog = Catalog(bucket)
    log = catalog.partitions("t")[partition]
    return plan(catalog, [Extent(log=log, start_offset=start, end_offset=end)], **options)


def test_all_records_of_the_bucket_are_read(bucket):
    bucket.put(segment(0, 3), segment(9, 2), segment(5, 1, partition=7))
    bucket.put(version_1_objects(version_1_key("old", 2, 100), make_batches(100, 4)))
    catalog = Catalog(bucket)
    assert catalog.topics() == ["old", "t"]
    assert {index: (log.start_offset, log.end_offset) for index, log in catalog.partitions("t").items()} == {
        0: (0, 15),
        7: (5, 8),
    }
    assert {index: (log.start_offset, log.end_offset) for index, log in catalog.partitions("old").items()} == {
        2: (100, 112)
    }
    assert catalog.partitions("none") == {}


def test_planning_gets_only_the_needed_indexes(bucket):
    """And lists the checkpoints of the metadata and the topic."""
    bucket.put(*(segment(base, 3) for base in range(0, 90, 9)))
    planned(bucket, 20, 30)
    assert sorted(bucket.requests) == ["get .index"] * 3 + ["list"] * 2  # two that are wanted, and the last one


@pytest.mark.parametrize("damage", ["missing", "cut off", "another's", "another attempt's"])
def test_a_kfs_stands_for_its_index(bucket, damage):
    whole = segment(0, 3)
    bucket.put(whole)
    name = whole.key.of_kind("index").key
    if damage == "missing":
        bucket.remove(name)
    else:
        bucket.write(name, {"cut off": whole.index[:-3], "another's": segment(0, 3, partition=1).index,
                            "another attempt's": segment(0, 2).index}[damage])  # fmt: skip
    assert read(bucket, planned(bucket, 0, 9)) == list(range(9))


def test_an_index_without_kfs_is_invisible(bucket):
    bucket.put(segment(0, 3), segment(9, 3))
    bucket.remove(key(9).key)
    assert Catalog(bucket).partitions("t")[0].end_offset == 9


def test_a_newer_generation_replaces_its_covered_segments(bucket):
    bucket.put(segment(0, 3), segment(9, 3), segment(18, 1))
    merged = version_2_objects(key(0, generation=1), make_batches(0, 6))
    bucket.put(merged)
    splits = planned(bucket, 0, 21)
    assert {each.key for split in splits for each in split.ranges} == {merged.key, key(18)}
    assert read(bucket, splits) == list(range(21))


def test_the_newer_of_two_topics_of_one_name_is_read(bucket):
    old, new = segment(0, 5), segment(0, 2, topic_id=OTHER_ID)
    bucket.put(old)
    bucket.put(new)
    os.utime(bucket.directory / old.key.key, (1, 1))
    assert Catalog(bucket).partitions("t")[0].end_offset == 6


@pytest.mark.parametrize("seed", range(20))
def test_every_offset_is_in_one_split(bucket, seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(reading, "GET_BYTES", rng.choice([130, 1000, 1 << 20]))
    base, bases = 0, []
    for _ in range(rng.randint(1, 6)):
        count = rng.randint(1, 8)
        bucket.put(segment(base, count))
        bases.append(base)
        base += 3 * count
    start = rng.randint(0, base)
    end = rng.randint(start, base)
    max_records = rng.choice([None, 1, 7, 100])
    splits = planned(bucket, start, end, min_splits=rng.choice([0, 1, 3, 10]), max_records=max_records)
    assert read(bucket, splits) == list(range(start, end))
    for before, after in pairwise(splits):
        assert before.end_offset == after.start_offset
    if max_records is not None:
        assert all(split.end_offset - split.start_offset <= max_records + 2 for split in splits)


def test_the_split_count_follows_min_splits(bucket):
    bucket.put(segment(0, 50), segment(150, 50))
    assert len(planned(bucket, 0, 300)) == 1
    assert 8 <= len(planned(bucket, 0, 300, min_splits=8)) <= 10


def test_small_partitions_are_read_by_one_task_and_large_ones_by_one_each(bucket, monkeypatch):
    sizes = [1, 1, 1, 1, 30, 1, 1]
    bucket.put(*(segment(0, count, partition=index) for index, count in enumerate(sizes)))
    catalog = Catalog(bucket)
    logs = catalog.partitions("t").values()
    found = plan(catalog, [Extent(log=log, start_offset=0, end_offset=log.end_offset) for log in logs])
    assert len(found) == len(sizes)
    monkeypatch.setattr("kafscale.spark.bucket.splits.TASK_BYTES", sum(split.size_bytes for split in found) // 3)
    assert [[split.partition for split in task] for task in together(found)] == [[0, 1, 2, 3], [4], [5, 6]]
    monkeypatch.setattr("kafscale.spark.bucket.splits.TASK_BYTES", 1 << 30)
    assert together(found) == [list(found)]
    assert together([]) == []


def test_a_batch_that_is_larger_than_a_get_is_read(bucket, monkeypatch):
    bucket.put(segment(0, 3))
    splits = planned(bucket, 0, 9)
    monkeypatch.setattr(reading, "GET_BYTES", 70)
    assert read(bucket, splits) == list(range(9))


@pytest.mark.parametrize("left_bytes", [-1, -70, 0])
def test_a_segment_that_is_cut_off_is_an_error_or_reported(bucket, monkeypatch, left_bytes):
    """After its index was read; at the end of the first batches, too, where nothing is there to be read."""
    monkeypatch.setattr(reading, "GET_BYTES", 300)
    bucket.put(segment(0, 6), segment(18, 1))
    splits = planned(bucket, 0, 21)
    kfs = (bucket.directory / key(0).key).read_bytes()
    end = splits[0].ranges[0].end + left_bytes if left_bytes else splits[0].ranges[0].start
    bucket.write(key(0).key, kfs[:end])
    with pytest.raises(DataLoss, match="cut off"):
        read(bucket, splits)
    found = read(bucket, splits, fail_on_data_loss=False)
    assert found[-3:] == [18, 19, 20]
    assert len(found) < 21


def test_segments_that_were_merged_between_planning_and_reading(bucket):
    bucket.put(segment(0, 3), segment(9, 3), segment(18, 3))
    splits = planned(bucket, 4, 24)
    bucket.put(version_2_objects(key(0, generation=1), make_batches(0, 6)))
    for base in (0, 9):
        bucket.remove(key(base).key)
    assert read(bucket, splits) == list(range(4, 24))


def test_a_segment_merged_during_its_read_continues_in_the_merged_one(bucket, monkeypatch):
    monkeypatch.setattr(reading, "GET_BYTES", 300)
    bucket.put(segment(0, 12))
    splits = planned(bucket, 0, 36)

    def merge_at_the_third_get(name: str) -> None:
        if bucket.requests.count("range .kfs") == 2 and name == key(0).key:
            bucket.put(version_2_objects(key(0, generation=1), make_batches(0, 12)))
            bucket.remove(key(0).key)

    bucket.before_get_range = merge_at_the_third_get
    assert read(bucket, splits) == list(range(36))
    with pytest.raises(NotFound):
        bucket.get(key(0).key)


def test_offsets_that_retention_has_taken_are_an_error_or_reported(bucket, caplog):
    bucket.put(segment(0, 3), segment(9, 3), segment(18, 3))
    splits = planned(bucket, 2, 27)
    for base in (0, 9):
        bucket.remove(key(base).key)
        bucket.remove(key(base).of_kind("index").key)
    with pytest.raises(DataLoss, match=r"offsets 2 to 8 of partition 0 of t.*failOnDataLoss"):
        read(bucket, splits)
    with caplog.at_level(logging.ERROR):
        assert read(bucket, splits, fail_on_data_loss=False) == list(range(18, 27))
    assert "offsets 2 to 8 of partition 0" in caplog.text
    assert "offsets 9 to 17 of partition 0" in caplog.text


def test_offsets_of_a_topic_that_was_deleted_were_read_of_another_one_of_its_name(bucket):
    bucket.put(segment(0, 3))
    splits = planned(bucket, 0, 9)
    for half in ("kfs", "index"):
        bucket.remove(key(0).of_kind(half).key)
    bucket.put(segment(0, 3, topic_id=OTHER_ID))
    with pytest.raises(DataLoss, match=r"offsets 0 to 8 of partition 0 of t.*failOnDataLoss"):
        read(bucket, splits)
    assert read(bucket, splits, fail_on_data_loss=False) == []


def test_a_damaged_batch_is_an_error_or_reported(bucket, caplog):
    bucket.put(segment(0, 3), segment(9, 3))
    splits = planned(bucket, 0, 18)
    kfs = bytearray((bucket.directory / key(0).key).read_bytes())
    kfs[100] ^= 1
    bucket.write(key(0).key, bytes(kfs))
    with pytest.raises(DataLoss, match="CRC"):
        read(bucket, splits)
    with caplog.at_level(logging.ERROR):
        assert read(bucket, splits, fail_on_data_loss=False) == list(range(9, 18))
    assert "offsets 0 to 8" in caplog.text


def test_offsets_without_an_intact_segment_are_holes(bucket):
    bucket.put(segment(0, 3), segment(9, 3), segment(18, 3), segment(27, 1))
    bucket.remove(key(9).key)
    bucket.write(key(18).key, b"damaged")
    bucket.write(key(18).of_kind("index").key, b"damaged")
    catalog = Catalog(bucket)
    extent = Extent(log=catalog.partitions("t")[0], start_offset=2, end_offset=29)
    assert holes(catalog, extent) == [range(9, 27)]
    splits = plan(catalog, [extent])
    assert read(bucket, splits) == [*range(2, 9), 27, 28]


def test_version_1_segments_are_read(bucket):
    objects = version_1_objects(version_1_key("t", 0, 0), make_batches(0, 40), interval=30)
    bucket.put(objects)
    assert read(bucket, planned(bucket, 5, 100)) == list(range(5, 100))
    bucket.remove(objects.key.of_kind("index").key)
    assert read(bucket, planned(bucket, 5, 100)) == list(range(5, 100))


def malformed(base_offset: int, kind: str) -> bytes:
    """A batch of three records with a right CRC, as a broker stored it that did not look at the records."""
    batch = bytearray(make_batches(base_offset, 1)[0])
    if kind == "length":
        batch[61] += 2  # of the first record
    elif kind == "last field":
        batch[-1] = 2  # the count of headers
    elif kind == "count":
        batch[57:61] = (1 << 30).to_bytes(4, "big")
    else:
        batch[22] |= compression.GZIP  # which it is not
    set_crc(memoryview(batch))
    return bytes(batch)


@pytest.mark.parametrize("kind", ["length", "last field", "count", "codec"])
@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
def test_one_malformed_batch_cost_the_rest_of_its_range(bucket, caplog, kind, codec):
    """Only with `failOnDataLoss=false`, and now it costs itself alone: offsets 30 to 32, and 90 to 92."""
    batches = [bytes(recompressed(batch, codec)) for batch in make_batches(0, 40)]
    for base_offset in (30, 90):
        batches[base_offset // 3] = malformed(base_offset, kind)
    bucket.put(version_2_objects(key(0), batches))
    splits = planned(bucket, 0, 120)
    with caplog.at_level(logging.ERROR):
        found = read(bucket, splits, fail_on_data_loss=False, columns=["offset", "headers"])
    assert found == [*range(30), *range(33, 90), *range(93, 120)]
    assert [record.message.count("can't be read") for record in caplog.records] == [1, 1]
    assert "offsets 30 to 32 of partition 0 of t" in caplog.text
    assert "offsets 90 to 92 of partition 0 of t" in caplog.text
    with pytest.raises(DataLoss, match=r"offsets 30 to 32 of partition 0 of t.*failOnDataLoss"):
        read(bucket, splits, columns=["offset", "headers"])


def test_a_malformed_batch_is_left_out_as_a_whole(bucket, monkeypatch):
    """No records of it are passed on, however many come before the one that can't be read."""
    monkeypatch.setattr(decoding, "CHUNK_ROWS", 4)
    batches = make_batches(0, 3, records_per_batch=11)
    batch = bytearray(batches[1])
    batch[-1] = 2  # the count of headers of the last record
    set_crc(memoryview(batch))
    bucket.put(version_2_objects(key(0), [batches[0], bytes(batch), batches[2]]))
    found = read(bucket, planned(bucket, 0, 33), fail_on_data_loss=False, columns=["offset", "headers"])
    assert found == [*range(11), *range(22, 33)]


def recompressed(batch: bytes, codec: int) -> bytes | bytearray:
    return build_batch(
        list(iterate_records(memoryview(batch))), codec=codec, base_offset=parse_header(memoryview(batch)).base_offset
    )
