"""Segments that are compacted or deleted between a listing and the reading of their footers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from kafscale.spark.bucket.catalog import LISTINGS_MAX_COUNT, Catalog
from kafscale.spark.bucket.splits import Extent, holes
from tests.spark.logged_bucket import LoggedBucket, batch


@pytest.fixture
def bucket(tmp_path: Path) -> LoggedBucket:
    found = LoggedBucket(tmp_path)
    found.create_topic()
    return found


def before_first_footer(catalog: Catalog, change: Callable[[], object]) -> None:
    """Have the bucket change when the first segment is read."""
    left = [change]

    def notice(key: str) -> None:
        if "/segment-" in key and left:
            left.pop()()

    catalog.bucket.before_get = notice


def test_a_partition_compacted_after_its_listing_keeps_its_end(bucket: LoggedBucket) -> None:
    """Of seed 6223 of the simulation: a reader found the end where the last of the old segments begins."""
    old = [bucket.flush(0, b"a"), bucket.flush(1, b"b")]
    catalog = bucket.catalog()

    def compact() -> None:
        bucket.flush(0, b"a", b"b", generation=1)
        for key in old:
            bucket.delete(key)

    before_first_footer(catalog, compact)
    log = catalog.partitions("t")[0]
    assert log.end_offset == 2
    assert not log.damaged
    assert bucket.read(catalog) == [(0, b"a"), (1, b"b")]


def test_log_records_follow_a_segment_compacted_after_its_listing(bucket: LoggedBucket) -> None:
    bucket.log([batch(1, b"b")])
    old = bucket.flush(0, b"a")
    catalog = bucket.catalog()

    def compact() -> None:
        bucket.flush(0, b"a", generation=1)
        bucket.delete(old)

    before_first_footer(catalog, compact)
    assert bucket.read(catalog) == [(0, b"a"), (1, b"b")]


def test_segments_that_retention_deletes_are_neither_damaged_nor_warned_of(
    bucket: LoggedBucket, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [bucket.flush(0, b"a"), bucket.flush(1, b"b")]
    catalog = bucket.catalog()

    def delete() -> None:
        for key in keys:
            bucket.delete(key)

    before_first_footer(catalog, delete)
    with caplog.at_level(logging.WARNING):
        log = catalog.partitions("t")[0]
    assert not log.segments
    assert not log.damaged
    assert not caplog.messages


def test_a_listed_object_that_stays_missing_is_damage(bucket: LoggedBucket) -> None:
    """As of a store whose listings show what was deleted long ago."""
    bucket.flush(0, b"a")
    key = bucket.flush(1, b"b")
    path = bucket.directory / key.key
    content = path.read_bytes()
    catalog = bucket.catalog()
    bucket.delete(key)
    catalog.bucket.before_list = lambda prefix: path.write_bytes(content) and None
    catalog.bucket.before_get = lambda key: path.unlink(missing_ok=True)
    assert catalog.partitions("t")[0].damaged == [key]
    assert len([each for each in catalog.bucket.requests if each == "list default/t/"]) == LISTINGS_MAX_COUNT


@pytest.mark.parametrize("is_topic_deleted", [False, True])
def test_segments_missing_from_a_later_listing_are_holes_of_an_earlier_one(
    bucket: LoggedBucket, *, is_topic_deleted: bool
) -> None:
    """Of seed 45163 of the simulation: the reader ended with a KeyError."""
    old = [bucket.flush(0, b"a"), bucket.flush(1, b"b")]
    catalog = bucket.catalog()
    log = catalog.partitions("t")[0]
    if not is_topic_deleted:
        bucket.flush(0, b"a", b"b", generation=1)
    for key in old:
        bucket.delete(key)
    catalog.partitions("t")
    assert holes(catalog, Extent(log=log, start_offset=0, end_offset=2)) == [range(2)]
