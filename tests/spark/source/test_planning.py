"""From options to splits: offsets and timestamps, what is lost, and what conditions spare."""

import logging
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from kafscale.errors import ConfigError, StoreError
from kafscale.spark.bucket import s3_bucket
from kafscale.spark.bucket.reading import DataLoss
from kafscale.spark.source.offsets import PartitionNotNamed, parse_timestamp
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions
from kafscale.spark.source.planning import Planner, QueryBounds
from kafscale.store.paths import SegmentKey
from kafscale.wire.records import Record, build_batch
from tests.devtools.fakes.s3_server import CREDENTIALS, s3_server_in_thread
from tests.devtools.fakes.segment_objects import CREATED_MS, make_batches, version_2_objects
from tests.spark.logged_bucket import TOPIC_ID, CountingBucket, LoggedBucket, change


def key(base_offset: int, *, topic: str = "t", partition: int = 0, topic_id: bytes = bytes(16)) -> SegmentKey:
    return SegmentKey(topic=topic, topic_id=topic_id, partition=partition, base_offset=base_offset)


def put(directory: Path, base_offset: int, batch_count: int, **of_key) -> None:
    """Three records a batch; that at offset n is as late as CREATED_MS + n."""
    batches = make_batches(base_offset, batch_count)
    version_2_objects(key(base_offset, **of_key), batches).write_to(directory)


@pytest.fixture
def directory(tmp_path):
    """t-0 has 0 to 29 in two segments, t-1 has 10 to 15; u-0 has 0 to 2."""
    put(tmp_path, 0, 5)
    put(tmp_path, 15, 5)
    put(tmp_path, 10, 2, partition=1)
    put(tmp_path, 0, 1, topic="u")
    return tmp_path


def run(directory: Path, options: dict[str, str], bounds: QueryBounds) -> list[list[tuple[str, int, int]]]:
    """The rows of each task."""
    given = Given({"store": f"file:{directory}", **options})
    with closing(Planner.of(ReadOptions.of(given))) as planner:
        reader = planner.reader(["topic", "partition", "offset"])
        return [
            [tuple(row.values()) for part in reader.read(split) for row in part.to_pylist()]
            for split in planner.batch(BatchOptions.of(given), bounds)
        ]


def query(directory: Path, bounds: QueryBounds = QueryBounds(), **options: str) -> list[tuple[str, int, int]]:  # noqa: B008
    if not {"subscribe", "subscribePattern", "assign"} & options.keys():
        options["subscribe"] = "t"
    return [row for task in run(directory, options, bounds) for row in task]


def rows(partition: int, *offsets: int, topic: str = "t") -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for offset in offsets]


def test_all_of_a_topic(directory):
    assert query(directory) == [*rows(0, *range(30)), *rows(1, *range(10, 16))]


def test_topics_by_name_pattern_and_partition(directory):
    assert len(query(directory, subscribe="t, u")) == 39
    assert query(directory, subscribePattern="[u-z]") == rows(0, 0, 1, 2, topic="u")
    assert query(directory, subscribePattern="x.*") == []
    assert query(directory, assign='{"t":[1]}') == rows(1, *range(10, 16))


def test_a_topic_that_there_is_not(directory):
    with pytest.raises(ConfigError, match=r"no segment of topic 'v'.*there is: t, u"):
        query(directory, subscribe="v")


def test_a_bucket_that_there_is_not(tmp_path):
    with pytest.raises(ConfigError, match="there is no bucket at"):
        query(tmp_path / "none")


def test_offsets(directory):
    found = query(directory, startingOffsets='{"t":{"0":28,"1":-2}}', endingOffsets='{"t":{"0":-1,"1":12}}')
    assert found == [*rows(0, 28, 29), *rows(1, 10, 11)]


def test_all_partitions_must_be_named_and_no_others(directory):
    with pytest.raises(PartitionNotNamed, match="startingOffsets says nothing of partition 1 of topic 't'"):
        query(directory, startingOffsets='{"t":{"0":1}}')
    with pytest.raises(ConfigError, match="names partition 0 of topic 'u', which is not read"):
        query(directory, startingOffsets='{"t":{"0":1,"1":-2},"u":{"0":1}}')


def test_a_partition_that_nothing_was_flushed_of_is_empty(directory):
    starts = '{"t":{"0":29,"1":-2,"2":-2}}'
    assert query(directory, startingOffsets=starts) == [*rows(0, 29), *rows(1, *range(10, 16))]
    assert query(directory, assign='{"t":[1,2]}') == rows(1, *range(10, 16))


@pytest.mark.parametrize("after_ms", [0, 14, 15, 16, 29])
def test_a_timestamp_is_the_first_record_that_is_as_late(directory, after_ms):
    found = query(directory, assign='{"t":[0]}', startingTimestamp=str(CREATED_MS + after_ms))
    assert found == rows(0, *range(after_ms, 30))
    found = query(directory, assign='{"t":[0]}', endingTimestamp=str(CREATED_MS + after_ms))
    assert found == rows(0, *range(after_ms))


def looking(directory: Path, **options: str) -> Planner:
    planner = Planner.of(ReadOptions.of(Given({"store": f"file:{directory}", "subscribe": "t", **options})))
    planner.catalog.bucket = CountingBucket(planner.catalog.bucket)
    return planner


def starts_at(planner: Planner, timestamp_ms: int) -> dict[int, int]:
    limit = parse_timestamp("startingTimestamp", str(timestamp_ms), latest_if_none=True)
    return {index: offset for (_, index), offset in planner.finder.find(limit, planner.logs()).items()}


@pytest.mark.parametrize(("after_ms", "reads"), [(0, 0), (9, 0), (12, 1), (13, 1), (14, 2)])
def test_a_start_timestamp_reads_records_only_in_ambiguous_index_rows(directory, after_ms, reads):
    planner = looking(directory)
    assert starts_at(planner, CREATED_MS + after_ms) == {0: after_ms, 1: min(max(after_ms, 10), 16)}
    assert len([each for each in planner.catalog.bucket.requests if each.endswith(".kfs")]) == reads


def test_a_row_that_was_deleted_tells_no_timestamp(tmp_path):
    """Of a segment with deleted records, what is left may be earlier."""
    times = [CREATED_MS + 50, CREATED_MS + 50, CREATED_MS, CREATED_MS + 60]
    batches = [bytes(build_batch([Record(value=b"x", timestamp_ms=ms)], base_offset=n)) for n, ms in enumerate(times)]
    bucket = LoggedBucket(tmp_path)
    segment = SegmentKey(topic="t", topic_id=TOPIC_ID, partition=0, base_offset=0)
    version_2_objects(segment, batches).write_to(tmp_path)
    bucket.create_topic()
    bucket.log([change(**{f"log-start-offsets__{TOPIC_ID.hex()}__0": 2})])
    assert starts_at(looking(tmp_path), CREATED_MS + 40) == {0: 3}


def test_timestamps_are_looked_up_in_several_partitions_at_once(directory):
    planner, both = looking(directory), threading.Barrier(2, timeout=10)
    planner.catalog.bucket.before_get = lambda name: both.wait() if name.endswith(".kfs") else None
    assert starts_at(planner, CREATED_MS + 14) == {0: 14, 1: 14}


def test_timestamps_by_partition(directory):
    times = f'{{"t":{{"0":{CREATED_MS + 27},"1":{CREATED_MS + 14}}}}}'
    assert query(directory, startingOffsetsByTimestamp=times) == [*rows(0, 27, 28, 29), *rows(1, 14, 15)]


def test_a_timestamp_behind_all_records(directory):
    late = str(CREATED_MS + 100)
    with pytest.raises(ConfigError, match="no record of partition 0 of topic 't' is as late"):
        query(directory, startingTimestamp=late)
    assert query(directory, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []
    assert len(query(directory, endingTimestamp=late)) == 36


@pytest.mark.parametrize(
    ("options", "message", "left"),
    [
        ({"startingOffsets": '{"t":{"1":4}}'}, "offsets 4 to 9 of partition 1 of t: .* begins at 10", range(10, 16)),
        ({"endingOffsets": '{"t":{"1":18}}'}, "offsets 16 to 17 .* in the bucket ends at 16", range(10, 16)),
        (
            {"startingOffsets": '{"t":{"1":2}}', "endingOffsets": '{"t":{"1":7}}'},
            "offsets 2 to 6 .* the log begins at 10",
            (),
        ),
    ],
)  # fmt: skip
def test_offsets_that_are_not_there(directory, caplog, options, message, left):
    options["assign"] = '{"t":[1]}'
    with pytest.raises(DataLoss, match=message):
        query(directory, **options)
    assert query(directory, failOnDataLoss="false", **options) == rows(1, *left)
    assert "data loss" in caplog.text


def test_a_start_behind_the_end_is_an_error(directory):
    with pytest.raises(ConfigError, match=r"would begin at 31 .* and end at 30"):
        query(directory, startingOffsets='{"t":{"0":31,"1":-2}}')


@pytest.mark.parametrize("base_offset", [0, 15])
def test_a_damaged_segment_is_an_error_or_reported(directory, base_offset, caplog):
    put(directory, 30, 1)
    damaged = key(base_offset)
    for name in (damaged.key, damaged.of_kind("index").key):
        (directory / name).write_bytes(b"damaged")
    with pytest.raises(DataLoss, match=f"offsets {base_offset} to {base_offset + 14} of partition 0"):
        query(directory)
    left = [offset for offset in range(33) if not base_offset <= offset < base_offset + 15]
    assert query(directory, failOnDataLoss="false")[: len(left)] == rows(0, *left)
    assert "no intact segment has them" in caplog.text


def test_segments_merged_between_listing_and_reading_footers_are_not_lost(directory):
    given = Given({"store": f"file:{directory}", "assign": '{"t":[0]}'})
    with closing(Planner.of(ReadOptions.of(given))) as planner:
        logs = planner.logs()
        merged = attrs.evolve(key(0), generation=1)
        version_2_objects(merged, make_batches(0, 10)).write_to(directory)
        for base_offset in (0, 15):
            for half in ("kfs", "index"):
                (directory / key(base_offset).of_kind(half).key).unlink()
        splits = planner.splits(logs, {("t", 0): 3}, {("t", 0): 28})
        found = [row["offset"] for split in splits for part in planner.reader(["offset"]).read(split)
                 for row in part.to_pylist()]  # fmt: skip
    assert found == list(range(3, 28))


def test_a_topic_that_was_created_again_between_its_listing_and_its_footers_was_read_for_the_one_before(directory):
    given = Given({"store": f"file:{directory}", "assign": '{"t":[0]}'})
    with closing(Planner.of(ReadOptions.of(given))) as planner:
        logs = planner.logs()
        for path in directory.rglob("segment-*"):
            path.unlink()
        put(directory, 0, 10, topic_id=TOPIC_ID)
        with pytest.raises(DataLoss, match="offsets 3 to 27 of partition 0 of t"):
            planner.splits(logs, {("t", 0): 3}, {("t", 0): 28})


def test_a_damaged_segment_at_the_end_is_not_taken_for_the_end(directory, caplog):
    for name in (key(15).key, key(15).of_kind("index").key):
        (directory / name).write_bytes(b"damaged")
    with pytest.raises(DataLoss, match="is damaged, so partition 0 of t ends before it"):
        query(directory)
    assert query(directory, failOnDataLoss="false")[:15] == rows(0, *range(15))


def test_task_count_and_size_follow_the_options(directory):
    for options, count in (({}, 2), ({"maxRecordsPerPartition": "1"}, 12)):
        tasks = run(directory, {"subscribe": "t", **options}, QueryBounds())
        assert len(tasks) == count
        assert sum(map(len, tasks)) == 36


def test_the_planner_logs_its_segments_and_partitions(directory, caplog):
    with caplog.at_level(logging.INFO):
        query(directory, startingTimestamp=str(CREATED_MS + 15), assign='{"t":[0]}')
    assert "of 1 of 2 segments, in 1 partitions" in caplog.text


def condition(kind: str, attribute: str, value: object):
    """As pyspark's filters are."""
    return type(kind, (SimpleNamespace,), {})(attribute=(attribute,), value=value)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([("EqualTo", "partition", 1)], rows(1, *range(10, 16))),
        ([("In", "partition", (0, 7))], rows(0, *range(30))),
        ([("EqualTo", "partition", 0), ("EqualTo", "partition", 1)], []),
        ([("EqualTo", "offset", 28)], rows(0, 28)),
        ([("GreaterThan", "offset", 27)], rows(0, 28, 29)),
        ([("GreaterThanOrEqual", "offset", 27)], rows(0, 27, 28, 29)),
        ([("LessThan", "offset", 2)], rows(0, 0, 1)),
        ([("LessThanOrEqual", "offset", 2)], rows(0, 0, 1, 2)),
        ([("IsNotNull", "offset", None), ("StringStartsWith", "topic", "x")], None),
        ([("GreaterThan", "value", 5), ("EqualTo", "offset", 2.5), ("Not", "partition", 1)], None),
    ],
)
def test_conditions_spare_reading(directory, filters, expected):
    bounds = QueryBounds.of(condition(*each) for each in filters)
    everything = [*rows(0, *range(30)), *rows(1, *range(10, 16))]
    assert query(directory, bounds) == (everything if expected is None else expected)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("EqualTo", [20]),
        ("EqualNullSafe", [20]),
        ("GreaterThan", range(20, 30)),  # Spark leaves out the first one
        ("GreaterThanOrEqual", range(20, 30)),
        ("LessThan", range(21)),
        ("LessThanOrEqual", range(21)),
    ],
)
@pytest.mark.parametrize("micros", [0, 999])
def test_exactly_the_records_within_timestamp_bounds_are_read(directory, kind, expected, micros):
    at = datetime.fromtimestamp((CREATED_MS + 20) / 1000, UTC).replace(microsecond=20_000 + micros)
    found = query(directory, QueryBounds.of([condition(kind, "timestamp", at)]), assign='{"t":[0]}')
    assert found == rows(0, *expected)


def test_two_bounds_of_timestamps_hold_together(directory):
    begin, end = (datetime.fromtimestamp((CREATED_MS + number) / 1000, UTC) for number in (12, 18))
    filters = [condition("GreaterThanOrEqual", "timestamp", begin), condition("LessThan", "timestamp", end)]
    assert query(directory, QueryBounds.of(filters), assign='{"t":[0]}') == rows(0, *range(12, 19))


def test_a_bound_of_timestamps_before_1970_lost_records_without_one(tmp_path):
    """Their timestamp is -1, which is in 1969."""
    version_2_objects(key(0), [bytes(build_batch([Record(value=b"v", timestamp_ms=-1)]))]).write_to(tmp_path)
    at = datetime(1960, 1, 1, tzinfo=UTC)
    assert query(tmp_path, QueryBounds.of([condition("GreaterThan", "timestamp", at)])) == rows(0, 0)


def test_a_bound_of_timestamps_without_zone_spares_nothing(directory):
    at = datetime.fromtimestamp(CREATED_MS / 1000, UTC)
    assert len(query(directory, QueryBounds.of([condition("GreaterThan", "timestamp", at.replace(tzinfo=None))]))) == 36


@pytest.fixture
def s3(directory):
    """A server that has the same objects, and the options to reach it."""
    with s3_server_in_thread() as server:
        files = [path for path in directory.rglob("*") if path.is_file()]
        objects = {f"p/{path.relative_to(directory)}": path.read_bytes() for path in files}
        server.service.fill("bucket", objects)
        yield {
            "store": "s3://bucket/p",
            "subscribe": "t",
            "s3Endpoint": server.endpoint,
            "s3Region": "us-east-1",
            "s3AccessKeyId": CREDENTIALS.access_key_id,
            "s3SecretAccessKey": CREDENTIALS.secret_access_key,
        }


def test_a_bucket_in_s3_reads_the_same(directory, s3):
    assert query(directory, **s3) == query(directory)


@pytest.mark.parametrize(
    "wrong", [{"s3SecretAccessKey": "no"}, {"store": "s3://another"}, {"s3Endpoint": "http://127.0.0.1:1"}]
)
def test_a_bucket_that_can_not_be_listed(directory, s3, wrong, monkeypatch):
    monkeypatch.setattr(s3_bucket, "RETRY_SECONDS", 0.0)
    with pytest.raises(StoreError, match=r"can't be listed: .*Check the options store, s3Endpoint"):
        query(directory, **(s3 | wrong))


def test_a_timestamp_search_stops_at_a_damaged_segment(directory, caplog):
    for name in (key(0).key, key(0).of_kind("index").key):
        (directory / name).write_bytes(b"damaged")
    options = {"assign": '{"t":[0]}', "startingTimestamp": str(CREATED_MS + 5)}
    with pytest.raises(DataLoss, match="offsets 0 to 14 of partition 0"):
        query(directory, **options)
    assert query(directory, failOnDataLoss="false", **options) == rows(0, *range(15, 30))
