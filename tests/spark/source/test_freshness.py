"""The option `freshness`: a stream from the log to segments, limits, timestamps, and what is damaged."""

import pickle
import shutil

import attrs
import pytest

from kafscale.errors import ConfigError
from kafscale.formats.wal_objects import WalPosition
from kafscale.spark.bucket.catalog import Catalog
from kafscale.spark.bucket.position import Position, measure
from kafscale.spark.bucket.reading import GIVEN_MAX_BYTES, DataLoss, get_count, give
from kafscale.spark.bucket.splits import GivenRange, together
from kafscale.spark.bucket.totals import told_by_footers, totals_of
from kafscale.spark.source.options import BatchOptions, Freshness, Given, ReadOptions, StreamOptions
from kafscale.spark.source.planning import Planner, QueryBounds
from kafscale.spark.source.progress import StreamProgress
from kafscale.spark.sql.topics import tail_offsets
from tests.devtools.fakes.segment_objects import CREATED_MS
from tests.spark.logged_bucket import TOPIC, CountingBucket, LoggedBucket, batch, marker


@pytest.fixture
def bucket(tmp_path) -> LoggedBucket:
    """Offsets 0 and 1 are in a segment and in the log, 2 to 4 in the log alone."""
    made = LoggedBucket(tmp_path)
    made.create_topic()
    made.log([batch(0, b"a", b"b")])
    made.log([batch(2, b"c"), batch(3, b"d", b"e")])
    made.flush(0, b"a", b"b")
    return made


def planner(bucket: LoggedBucket, **options: str) -> tuple[Given, Planner]:
    given = Given({"store": f"file:{bucket.directory}", "subscribe": TOPIC, **options})
    return given, Planner.of(ReadOptions.of(given))


def values(bucket: LoggedBucket, **options: str) -> list[bytes]:
    """What a batch query reads."""
    given, planned = planner(bucket, **options)
    splits = planned.batch(BatchOptions.of(given), QueryBounds())
    return [row["value"] for rows in planned.reader(["value"]).read_all(splits) for row in rows.to_pylist()]


class Stream:
    """As Spark drives it."""

    def __init__(self, bucket: LoggedBucket, **options: str) -> None:
        given, self.planner = planner(bucket, startingOffsets="earliest", **options)
        self.progress = StreamProgress(planner=self.planner, options=StreamOptions.of(given))
        self.position = self.progress.initial()

    def batch(self) -> list[bytes]:
        """Read the next micro-batch."""
        end = self.progress.latest()
        splits = self.progress.splits(self.position, end)
        self.position = end
        return [row["value"] for rows in self.planner.reader(["value"]).read_all(splits) for row in rows.to_pylist()]


def test_the_default_reads_the_log_too(bucket):
    assert Freshness.BUCKET is planner(bucket)[1].options.freshness
    assert values(bucket) == [b"a", b"b", b"c", b"d", b"e"]
    assert values(bucket, freshness="Segments") == [b"a", b"b"]
    with pytest.raises(ConfigError, match="freshness is bucket or segments or broker, not 'log'"):
        planner(bucket, freshness="log")


def test_a_stream_goes_from_the_log_to_segments(bucket):
    stream = Stream(bucket)
    assert stream.batch() == [b"a", b"b", b"c", b"d", b"e"]
    bucket.log([batch(5, b"f")])
    assert stream.batch() == [b"f"]
    bucket.flush(2, b"c", b"d", b"e")
    bucket.log([batch(6, b"g")])
    bucket.checkpoint(WalPosition(0, 5))
    for number in (1, 2, 3, 4):
        (bucket.directory / f"_kafscale/default/wal/0000000000/{number:020d}.wal").unlink()
    bucket.flush(5, b"f")
    assert stream.batch() == [b"g"]
    assert stream.batch() == []
    bucket.fence(0, 6, by=1)
    bucket.log([batch(7, b"h", epoch=1)], epoch=1)
    assert stream.batch() == [b"h"]
    assert Position.from_json(stream.position.to_json()) == stream.position


def test_a_planned_batch_is_read_from_segments_when_its_objects_have_gone(bucket):
    stream = Stream(bucket)
    end = stream.progress.latest()
    splits = stream.progress.splits(stream.position, end)
    bucket.flush(2, b"c", b"d", b"e")
    bucket.log([batch(5, b"f")])
    bucket.checkpoint(WalPosition(0, 4))
    for number in (1, 2, 3):
        (bucket.directory / f"_kafscale/default/wal/0000000000/{number:020d}.wal").unlink()
    read = stream.planner.reader(["value"]).read_all(splits)
    assert [row["value"] for rows in read for row in rows.to_pylist()] == [b"a", b"b", b"c", b"d", b"e"]


def test_one_task_reads_the_log_of_all_partitions_so_that_objects_are_got_once(tmp_path, monkeypatch):
    made = LoggedBucket(tmp_path)
    made.create_topic(partition_count=2)
    large = b"a" * 1000
    made.flush(0, large)
    made.log([batch(1, b"b"), batch(0, b"x", partition=1)])
    made.log([batch(2, b"c"), batch(1, b"y", partition=1)])
    given, planned = planner(made)
    splits = planned.batch(BatchOptions.of(given), QueryBounds())
    assert together(splits) == [splits]  # as it is little

    monkeypatch.setattr("kafscale.spark.bucket.splits.TASK_BYTES", 1000)
    tasks = together(splits)
    assert [[(each.partition, each.start_offset, each.end_offset) for each in task] for task in tasks] == [
        [(0, 0, 1)],
        [(0, 1, 3), (1, 0, 2)],
    ]
    counted = CountingBucket(planned.catalog.bucket)
    reader = attrs.evolve(planned.reader(["value"]), bucket=counted)
    read = [row["value"] for task in tasks for rows in reader.read_all(task) for row in rows.to_pylist()]
    assert read == [large, b"b", b"c", b"x", b"y"]
    assert sum(".wal" in request for request in counted.requests) == 2


def test_limits_hold_in_the_log(bucket):
    stream = Stream(bucket, maxOffsetsPerTrigger="2")
    assert [stream.batch() for _ in range(4)] == [[b"a", b"b"], [b"c", b"d"], [b"e"], []]


def test_a_stream_at_read_committed_waits_for_the_end_of_a_transaction(bucket):
    stream = Stream(bucket)
    stream.batch()
    bucket.log([batch(5, b"mine", producer_id=7), batch(6, b"behind")])
    assert stream.batch() == []
    bucket.log([marker(7, 7, is_commit=False)])
    assert stream.batch() == [b"behind"]


def test_timestamps_are_found_in_the_log(bucket):
    assert values(bucket, startingTimestamp=str(CREATED_MS + 4)) == [b"e"]
    assert values(bucket, startingTimestamp=str(CREATED_MS + 1), endingTimestamp=str(CREATED_MS + 3)) == [b"b", b"c"]


def test_the_lag_and_the_last_records_count_the_log(bucket):
    catalog = Catalog(bucket.open(), with_log=True)
    found = measure(catalog, {(TOPIC, 0): 1})[TOPIC, 0]
    assert (found.end_offset, found.offsets_behind) == (5, 4)
    assert [tail_offsets(catalog, TOPIC, count)[0] for count in (1, 2, 3, 4, 5, 6)] == [4, 3, 2, 1, 0, 0]


def test_a_log_that_is_damaged_fails_a_query_unless_loss_is_accepted(bucket):
    bucket.log([batch(5, b"f")], number=5, durable=4)
    with pytest.raises(DataLoss, match="it had been acknowledged"):
        values(bucket)
    assert values(bucket, failOnDataLoss="false") == [b"a", b"b"]


@pytest.mark.parametrize("max_bytes", [100, 300, 1_000, 2_000, GIVEN_MAX_BYTES])
def test_a_task_carries_log_contents_from_planning_and_gets_the_rest(tmp_path, max_bytes):
    made = LoggedBucket(tmp_path)
    made.create_topic(partition_count=2)
    made.flush(0, b"a")
    large = made.log([batch(1, b"b" * 700), batch(0, b"x", partition=1)])
    for n in range(9):
        made.log([batch(2 + 2 * n, b"c%d" % n, b"d%d" % n), batch(1 + n, b"y%d" % n, partition=1)])
    given, planned = planner(made)
    splits = planned.batch(BatchOptions.of(given), QueryBounds())
    values = [b"a", b"b" * 700, *(each % n for n in range(9) for each in (b"c%d", b"d%d"))]
    of_both = [*values, b"x", *(b"y%d" % n for n in range(9))]
    without_large = {key: data for key, data in planned.catalog.log_contents.items() if key != large}
    for contents in ({}, without_large, planned.catalog.log_contents):
        tasks = pickle.loads(pickle.dumps(give(splits, contents, max_bytes=max_bytes)))
        counted = CountingBucket(planned.catalog.bucket)
        reader = attrs.evolve(planned.reader(["value"]), bucket=counted)
        read = [row["value"] for task in tasks for rows in reader.read_all(task) for row in rows.to_pylist()]
        assert read == of_both
        got = [request.removeprefix("get ") for request in counted.requests if ".wal" in request]
        assert len(got) == sum(map(get_count, tasks)) - 1
        assert large.key in got or large in contents
        ranges = [[each for split in task for each in split.ranges] for task in tasks]
        sizes = [sum(each.size_bytes for each in of if isinstance(each, GivenRange)) for of in ranges]
        if contents:
            assert set(got) <= {large.key}
        assert max(sizes) <= max(max_bytes, 800)  # of the large batch by itself


def test_queries_of_a_process_read_each_log_object_once(bucket):
    """As Spark plans one query after the other in the same process."""
    first, second, third = (planner(bucket)[1] for _ in range(3))
    assert [log.end_offset for log in first.logs().values()] == [5]
    assert first.catalog._reader.log.read_count == 3
    logged = bucket.log([batch(5, b"f")])
    assert [log.end_offset for log in second.logs().values()] == [6]
    assert (second.catalog._reader.log.read_count, logged in second.catalog.log_contents) == (1, True)
    path = bucket.directory / logged.key
    path.write_bytes(path.read_bytes())  # the same, but for its time
    assert values(bucket) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert [log.end_offset for log in third.logs().values()] == [6]
    assert third.catalog._reader.log.read_count == 0


def test_an_object_of_the_same_name_in_a_new_bucket_is_another(bucket):
    assert values(bucket) == [b"a", b"b", b"c", b"d", b"e"]
    shutil.rmtree(bucket.directory)
    again = LoggedBucket(bucket.directory)
    again.create_topic()
    again.log([batch(0, b"another")])
    assert values(again) == [b"another"]


def test_a_stream_does_not_get_objects_again_that_planning_has_read(bucket):
    stream = Stream(bucket)
    stream.batch()
    logged = bucket.log([batch(5, b"f")])
    end = stream.progress.latest()
    (task,) = stream.progress.tasks(stream.position, end)
    (bucket.directory / logged.key).unlink()  # so nobody could
    reader = stream.planner.reader(["value"])
    assert [row["value"] for rows in reader.read_all(task) for row in rows.to_pylist()] == [b"f"]
    assert stream.progress.task_get_count == 0


def test_totals_get_no_object_of_the_log_that_planning_has_read(bucket):
    bucket.log([batch(5, b"f")])
    given, planned = planner(bucket)
    splits = planned.batch(BatchOptions.of(given), QueryBounds())
    got = told_by_footers(planned.catalog, splits).left
    left = told_by_footers(planned.catalog, planned.given(splits)).left
    assert [(each.start_offset, each.end_offset) for each in got] == [(2, 6)], "by one reading, some objects at once"
    assert [(each.start_offset, each.end_offset) for each in left] == [(2, 6)]
    for path in bucket.directory.rglob("*.wal"):
        path.unlink()
    (totals,) = (totals_of(left[0], rows) for rows in planned.reader(["offset"]).read_all(left))
    assert totals is not None
    assert (totals.count, totals.first_offset, totals.last_offset) == (4, 2, 5)
