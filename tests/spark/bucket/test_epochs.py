"""The last flush before an epoch that has no records: how far it goes is in its footer alone, so it seems to be late.

A broker took it for late where a reply came cut off, and lost what was acknowledged. No reader may.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kafscale.cluster.membership.records import Placement
from kafscale.formats.wal_objects import WalPosition
from kafscale.spark.bucket.catalog import Catalog
from kafscale.spark.bucket.reading import DataLoss
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions, StreamOptions
from kafscale.spark.source.planning import Planner, QueryBounds
from kafscale.spark.source.progress import StreamProgress
from kafscale.store.base import ObjectPart
from kafscale.store.paths import SegmentKey
from tests.spark.logged_bucket import LoggedBucket, batch

VALUES = [(0, b"a"), (1, b"b"), (2, b"c")]
LAST = SegmentKey(topic="t", topic_id=bytes(range(16)), partition=0, base_offset=1, epoch=0)
THIRD = 5  # the epoch of the last one; it begins at offset 3, as the one before


@pytest.fixture
def bucket(tmp_path: Path) -> LoggedBucket:
    """Of a partition that came to a second broker and a third, neither of which has written to it."""
    found = LoggedBucket(tmp_path)
    found.flush(0, b"a")
    found.flush(1, b"b", b"c")
    found.checkpoint(WalPosition(THIRD, 0), placements=[Placement(1, THIRD, THIRD, 3)])
    return found


def damage(bucket: LoggedBucket, key: SegmentKey) -> None:
    for half in ("kfs", "index"):
        (bucket.directory / key.of_kind(half).key).write_bytes(b"damaged")


def cut_off(catalog: Catalog, key: SegmentKey, times: int) -> None:
    """Have the first replies that are of a segment lack their end."""
    inner, left = catalog.bucket.bucket, [key] * times

    def cut(part: ObjectPart, name: str) -> ObjectPart:
        if left and name.startswith(key.key.removesuffix("kfs")):
            left.pop()
            return ObjectPart(part.data[: len(part.data) // 2], part.object_size_bytes, part.etag)
        return part

    class CutOff:
        def get(self, name: str) -> ObjectPart:
            return cut(inner.get(name), name)

        def get_range(self, name: str, start: int, length_bytes: int) -> ObjectPart:
            return cut(inner.get_range(name, start, length_bytes), name)

        def get_tail(self, name: str, length_bytes: int) -> ObjectPart:
            return cut(inner.get_tail(name, length_bytes), name)

        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

    catalog.bucket.bucket = CutOff()


def planner_of(bucket: LoggedBucket, **options: str) -> Planner:
    return Planner.of(ReadOptions.of(Given({"store": f"file:{bucket.directory}", "subscribe": "t", **options})))


def test_the_last_flush_before_an_empty_epoch_is_read(bucket: LoggedBucket) -> None:
    assert bucket.read() == VALUES


def test_the_last_flush_is_read_despite_one_truncated_index_reply(bucket: LoggedBucket) -> None:
    catalog = bucket.catalog()
    cut_off(catalog, LAST, 1)
    assert bucket.read(catalog) == VALUES


def test_truncated_replies_hide_the_last_flush_only_until_the_next_look(bucket: LoggedBucket) -> None:
    catalog = bucket.catalog()
    cut_off(catalog, LAST, 2)
    log = catalog.partitions("t")[0]
    assert (log.damaged, log.end_offset) == ([LAST], 1)
    assert bucket.read(catalog) == VALUES


def test_a_query_fails_when_the_last_flush_is_damaged(bucket: LoggedBucket) -> None:
    damage(bucket, LAST)
    with pytest.raises(DataLoss, match="is damaged, so partition 0 of t ends before it"):
        planner_of(bucket).batch(BatchOptions.of(Given({})), QueryBounds())


def test_a_stream_fails_while_the_last_flush_is_damaged_and_recovers_after(bucket: LoggedBucket) -> None:
    options = StreamOptions.of(Given({"startingOffsets": "earliest"}))
    progress = StreamProgress(planner=planner_of(bucket), options=options)
    contents = {half: (bucket.directory / LAST.of_kind(half).key).read_bytes() for half in ("kfs", "index")}
    damage(bucket, LAST)
    with pytest.raises(DataLoss, match="is damaged"):
        progress.latest()
    for half, content in contents.items():
        (bucket.directory / LAST.of_kind(half).key).write_bytes(content)
    again = StreamProgress(planner=planner_of(bucket), options=options)
    assert again.latest().offsets == {("t", 0): 3}


def test_a_late_flush_behind_the_last_one_is_neither_read_nor_missed(bucket: LoggedBucket) -> None:
    bucket.flush(3, b"late")
    assert bucket.read() == VALUES
    assert planner_of(bucket).batch(BatchOptions.of(Given({})), QueryBounds())


def test_a_damaged_late_flush_is_not_missed(bucket: LoggedBucket) -> None:
    """It failed all queries: nobody may read it, so nobody misses it."""
    damage(bucket, bucket.flush(3, b"late"))
    assert bucket.read() == VALUES
    assert not bucket.catalog().partitions("t")[0].damaged
    assert planner_of(bucket).batch(BatchOptions.of(Given({})), QueryBounds())


def test_the_third_brokers_log_does_not_hide_a_damaged_last_flush(bucket: LoggedBucket) -> None:
    bucket.log([batch(3, b"d", epoch=THIRD)], epoch=THIRD)
    assert bucket.read() == [*VALUES, (3, b"d")]
    damage(bucket, LAST)
    with pytest.raises(DataLoss):
        planner_of(bucket).batch(BatchOptions.of(Given({})), QueryBounds())


def test_damage_to_the_only_flush_fails_the_query(tmp_path: Path) -> None:
    bucket = LoggedBucket(tmp_path)
    key = bucket.flush(0, b"a", b"b", b"c")
    bucket.checkpoint(WalPosition(THIRD, 0), placements=[Placement(1, THIRD, THIRD, 3)])
    bucket.log([batch(3, b"d", epoch=THIRD)], epoch=THIRD)
    assert bucket.read() == [*VALUES, (3, b"d")]
    damage(bucket, key)
    with pytest.raises(DataLoss, match="is damaged, so partition 0 of t ends before it"):
        planner_of(bucket).batch(BatchOptions.of(Given({})), QueryBounds())
