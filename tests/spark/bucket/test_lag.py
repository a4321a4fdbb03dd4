"""How far behind a stream is: counted from the bucket, and told by the listener after each batch."""

from pathlib import Path

import attrs
import pytest

from kafscale.config import StoreUrl
from kafscale.spark.bucket.bucket import BucketOptions
from kafscale.spark.bucket.catalog import Catalog
from kafscale.spark.bucket.position import PartitionLag, Position, QueryLag, measure
from kafscale.store.paths import SegmentKey
from kafscale.wire.batch_header import parse_header
from tests.devtools.external.clients import wait_until
from tests.devtools.fakes.segment_objects import CREATED_MS, make_batches, version_2_objects
from tests.spark.topic_checkpoints import TopicCheckpoints


def put(directory: Path, base_offset: int, batch_count: int, *, partition: int = 0) -> None:
    """Three records a batch."""
    key = SegmentKey(topic="t", topic_id=bytes(16), partition=partition, base_offset=base_offset)
    version_2_objects(key, make_batches(base_offset, batch_count)).write_to(directory)


def catalog(directory: Path) -> Catalog:
    return Catalog(BucketOptions(url=StoreUrl.parse(f"file:{directory}")).open())


def lag(offset: int, end_offset: int, batch_count: int) -> PartitionLag:
    """Of which the last batches are to be read."""
    batches = make_batches(end_offset - 3 * batch_count, batch_count)
    unread_ms = parse_header(memoryview(batches[0])).max_timestamp_ms if batches else None
    behind = sum(map(len, batches))
    return PartitionLag(offset=offset, end_offset=end_offset, bytes_behind=behind, unread_ms=unread_ms)


def test_lag_is_counted_in_offsets_and_bytes(tmp_path):
    put(tmp_path, 0, 3)
    put(tmp_path, 9, 2)
    put(tmp_path, 0, 1, partition=1)
    found = measure(catalog(tmp_path), {("t", 0): 4, ("t", 1): 3, ("t", 7): 0, ("unknown", 0): 1})
    assert found == {("t", 0): lag(4, 15, 4), ("t", 1): lag(3, 3, 0)}
    query = QueryLag(query_id="id", query_name=None, batch_id=0, partitions=found)
    assert (query.records_behind, query.bytes_behind) == (11, lag(4, 15, 4).bytes_behind)


def test_new_records_add_to_the_lag(tmp_path):
    put(tmp_path, 0, 1)
    made = catalog(tmp_path)
    assert measure(made, {("t", 0): 3}) == {("t", 0): lag(3, 3, 0)}
    put(tmp_path, 3, 2)
    assert measure(made, {("t", 0): 3}) == {("t", 0): lag(3, 9, 2)}


def test_deleted_records_are_not_behind(tmp_path):
    """They were counted as offsets, for ever, and not as bytes."""
    put(tmp_path, 0, 3)
    checkpoints = TopicCheckpoints(directory=tmp_path)
    checkpoints.create("t", bytes(16))
    checkpoints.set_log_start_offset(bytes(16), 0, 6)
    checkpoints.write()
    found = measure(catalog(tmp_path), {("t", 0): 0})
    assert found == {("t", 0): attrs.evolve(lag(0, 9, 1), log_start_offset=6)}
    assert found["t", 0].offsets_behind == 3


def test_the_age_of_the_first_unread_record(tmp_path):
    """The latest of its batch; the partition that is furthest behind tells of the query."""
    put(tmp_path, 0, 3)
    put(tmp_path, 0, 2, partition=1)
    found = measure(catalog(tmp_path), {("t", 0): 4, ("t", 1): 6})
    now_ms = CREATED_MS + 3_005
    assert [each.seconds_behind(now_ms) for each in found.values()] == [3.0, 0.0]
    query = QueryLag(query_id="id", query_name=None, batch_id=0, partitions=found, measured_ms=now_ms)
    assert (query.seconds_behind, query.description) == (3.0, "KafScale[t]")
    assert found["t", 0].seconds_behind(CREATED_MS) == 0.0


def test_a_stream_that_is_ahead_of_the_bucket_is_not_behind():
    assert lag(10, 4, 0).offsets_behind == 0


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pyspark leaves sockets open
def test_a_listener_tells_after_each_batch(spark, tmp_path):
    from kafscale.spark import LagListener

    bucket = tmp_path / "bucket"
    put(bucket, 0, 20)
    put(bucket, 0, 1, partition=1)
    told: list[QueryLag] = []
    listener = LagListener(told.append, store=f"file:{bucket}")
    spark.streams.addListener(listener)
    source = spark.readStream.format("kafscale").options(
        store=f"file:{bucket}", subscribe="t", startingOffsets='{"t":{"0":0,"1":3}}', maxOffsetsPerTrigger="30"
    )
    query = source.load().writeStream.format("noop").queryName("orders").start()
    try:
        query.processAllAvailable()
        wait_until(
            lambda: told and not told[-1].records_behind,
            "the listener, which is told from a thread of its own",
            seconds=60,
        )
        assert [each.partitions[("t", 0)] for each in told[:2]] == [lag(30, 60, 10), lag(60, 60, 0)]
        assert told[0].partitions[("t", 1)] == lag(3, 3, 0)
        assert (told[0].query_name, told[0].query_id, told[0].batch_id) == ("orders", str(query.id), 0)
        assert listener.lags["orders"] == told[-1]
        if tuple(map(int, spark.version.split(".")[:2])) >= (4, 2):
            (source,) = query.recentProgress[0].sources
            assert Position.parse(source.latestOffset).offsets == {("t", 0): 60, ("t", 1): 3}
            assert told[0].metrics["recordsBehind"] == 30
        query.stop()
        wait_until(lambda: not listener.lags, "the end of the query", seconds=60)
    finally:
        query.stop()
        spark.streams.removeListener(listener)


@pytest.mark.spark
def test_a_listener_counts_as_far_as_the_isolation_level_of_its_stream_reads(tmp_path):
    from kafscale.spark import LagListener

    for level in ("read_committed", "read_uncommitted"):
        listener = LagListener(store=f"file:{tmp_path}", isolationLevel=level)
        assert listener._catalog.committed_only == (level == "read_committed")
