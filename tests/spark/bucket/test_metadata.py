"""What a checkpoint of the broker's metadata tells readers: empty partitions, deleted records, deleted topics."""

from pathlib import Path

import pytest

from kafscale.cluster.metadata.checkpoint import encode_checkpoint
from kafscale.cluster.topics.topics import MorePartitions, NewTopic, TopicRegistry
from kafscale.config import StoreUrl
from kafscale.errors import AccessDenied, ConfigError, DamagedObject
from kafscale.formats.wal_objects import WalPosition
from kafscale.spark.bucket.bucket import BucketOptions
from kafscale.spark.bucket.metadata import MetadataReader, decode_metadata
from kafscale.spark.bucket.reading import DataLoss
from kafscale.spark.source.bounds import Bounds
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions, StreamOptions
from kafscale.spark.source.planning import Planner
from kafscale.spark.source.progress import Progress
from kafscale.store.paths import SegmentKey
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.testing.segment_objects import CREATED_MS, make_batches, version_2_objects
from kafscale.testing.topic_checkpoints import TopicCheckpoints

OLD, NEW = bytes(16), bytes(15) + b"\1"


def put(directory: Path, base_offset: int, batch_count: int, *, partition: int = 0, topic_id: bytes = OLD) -> None:
    """Three records a batch."""
    key = SegmentKey(topic="t", topic_id=topic_id, partition=partition, base_offset=base_offset)
    version_2_objects(key, make_batches(base_offset, batch_count)).write_to(directory)


@pytest.fixture
def checkpoints(tmp_path):
    """The topic t has three partitions; of the first 0 to 29 are in two segments, and of the others nothing."""
    put(tmp_path, 0, 5)
    put(tmp_path, 15, 5)
    made = TopicCheckpoints(directory=tmp_path)
    made.create("t", OLD, 3)
    made.create("empty", NEW, 2)
    made.write()
    return made


def planner(checkpoints: TopicCheckpoints, **options: str) -> tuple[Given, Planner]:
    topics = {} if "assign" in options or "subscribePattern" in options else {"subscribe": "t"}
    given = Given({"store": f"file:{checkpoints.directory}", **topics, **options})
    return given, Planner.of(ReadOptions.of(given))


def query(checkpoints: TopicCheckpoints, **options: str) -> list[tuple[int, int]]:
    given, made = planner(checkpoints, **options)
    reader = made.reader(["partition", "offset"])
    splits = made.batch(BatchOptions.of(given), Bounds())
    return [tuple(row.values()) for split in splits for part in reader.read(split) for row in part.to_pylist()]


def of(partition: int, *offsets: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in offsets]


def stream(checkpoints: TopicCheckpoints, **options: str) -> Progress:
    given, made = planner(checkpoints, startingOffsets="earliest", **options)
    return Progress(planner=made, options=StreamOptions.of(given))


def read(progress: Progress, start: dict, end: dict) -> list[tuple[int, int]]:
    reader = progress.planner.reader(["partition", "offset"])
    splits = progress.splits(start, end)
    return [tuple(row.values()) for split in splits for part in reader.read(split) for row in part.to_pylist()]


async def test_what_the_broker_writes_is_read():
    store = MemoryMetadataStore()
    registry = TopicRegistry(store=store)
    orders, gone = await registry.create(
        [NewTopic(name="orders", partition_count=2), NewTopic(name="gone", partition_count=1)]
    )
    await registry.create_partitions([MorePartitions(name="orders", partition_count=5)])
    await registry.set_log_start_offset(orders.topic_id, 3, 77)
    await registry.delete(["gone"])
    parts = await encode_checkpoint(WalPosition(1, 0), await store.list(""))
    found = decode_metadata("k", b"".join(parts))
    assert found.topics.keys() == {"orders"}
    assert found.topics["orders"].topic_id == orders.topic_id
    assert found.topics["orders"].partition_count == 5
    assert found.topics["orders"].log_start_offsets == {3: 77}
    assert found.deletions[gone.topic_id].name == "gone"
    assert found.deletion_of("gone").deleted_ms > CREATED_MS


def test_partitions_and_topics_without_a_segment_are_known(checkpoints):
    _, made = planner(checkpoints)
    assert [index for _, index in made.logs()] == [0, 1, 2]
    assert query(checkpoints) == of(0, *range(30))
    assert query(checkpoints, subscribe="empty") == []
    assert query(checkpoints, startingOffsets='{"t":{"0":28,"1":0,"2":-2}}') == of(0, 28, 29)
    with pytest.raises(ConfigError, match="says nothing of partition 1"):
        query(checkpoints, startingOffsets='{"t":{"0":28}}')
    with pytest.raises(ConfigError, match="there is: empty, t"):
        query(checkpoints, subscribe="unknown")
    assert stream(checkpoints).latest() == {("t", 0): 30, ("t", 1): 0, ("t", 2): 0}


def test_records_that_were_deleted_are_not_read(checkpoints):
    for start in (4, 20):
        checkpoints.set_log_start_offset(OLD, 0, start)
        checkpoints.write()
        assert query(checkpoints) == of(0, *range(start, 30))
        late = {"startingTimestamp": str(CREATED_MS), "startingOffsetsByTimestampStrategy": "latest"}
        assert query(checkpoints, **late) == of(0, *range(start, 30))
        with pytest.raises(DataLoss, match=f"the log begins at {start} now"):
            query(checkpoints, startingOffsets='{"t":{"0":3,"1":-2,"2":-2}}')
    checkpoints.set_log_start_offset(OLD, 0, 40)
    checkpoints.write()
    assert query(checkpoints) == []
    assert stream(checkpoints).initial()[("t", 0)] == 40


def test_retention_that_has_taken_all_is_told_to_a_stream(checkpoints):
    running = stream(checkpoints)
    start = running.latest()
    for path in (checkpoints.directory / "default").rglob("segment-*"):
        path.unlink()
    checkpoints.set_log_start_offset(OLD, 0, 36)
    checkpoints.write()
    end = running.latest()
    assert end[("t", 0)] == 36
    with pytest.raises(DataLoss, match="offsets 30 to 35 of partition 0 of t: the log begins at 36 now"):
        running.splits(start, end)


def test_a_topic_that_was_deleted_is_no_topic_though_its_objects_are_there(checkpoints):
    checkpoints.delete("t", OLD)
    checkpoints.write()
    with pytest.raises(ConfigError, match="topic 't' was deleted at 2023-11-14 22:13:20 UTC"):
        query(checkpoints)
    assert query(checkpoints, subscribePattern=".*") == []


def test_a_stream_tells_a_deleted_topic_from_retention(checkpoints, caplog):
    running = stream(checkpoints, failOnDataLoss="false")
    start = running.latest()
    checkpoints.delete("t", OLD)
    checkpoints.write()
    end = running.latest()
    assert end == {}
    assert running.splits(start, end) == []
    assert "partition 0 of topic 't' has gone: topic 't' was deleted at" in caplog.text
    with pytest.raises(DataLoss, match="has gone: topic 't' was deleted at"):
        stream(checkpoints).splits(start, end)


def test_a_job_that_reads_a_topic_after_its_deletion_is_told_so(checkpoints):
    given, made = planner(checkpoints)
    splits = made.batch(BatchOptions.of(given), Bounds())
    checkpoints.delete("t", OLD)
    checkpoints.write()
    for path in (checkpoints.directory / "default").rglob("segment-*"):
        path.unlink()
    with pytest.raises(DataLoss, match="nothing has offsets 0 to 14 of partition 0 of t: topic 't' was deleted at"):
        [list(made.reader(["offset"]).read(split)) for split in splits]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_topic_that_was_created_again_is_read_from_its_start(checkpoints, caplog, restarts):
    running = stream(checkpoints, failOnDataLoss="false")
    start = running.latest()
    checkpoints.delete("t", OLD)
    checkpoints.create("t", NEW, 3)
    checkpoints.write()
    put(checkpoints.directory, 0, 2, topic_id=NEW)
    assert query(checkpoints) == of(0, *range(6))
    if restarts:
        running = stream(checkpoints, failOnDataLoss="false")
        assert read(running, start, start) == []
    end = running.latest()
    assert end == {("t", 0): 6, ("t", 1): 0, ("t", 2): 0}
    assert read(running, start, end) == of(0, *range(6))
    assert "topic 't' was deleted and created again" in caplog.text
    assert running.latest() == end
    repeated = stream(checkpoints, failOnDataLoss="false")
    assert read(repeated, start, end) == of(0, *range(6))
    if not restarts:
        strict = stream(checkpoints)
        strict.splits(start, start)
        with pytest.raises(DataLoss, match="deleted and created again"):
            strict.latest()


def test_a_longer_log_of_a_topic_that_was_created_again_is_no_continuation(checkpoints, caplog):
    running = stream(checkpoints, failOnDataLoss="false")
    start = running.latest()
    checkpoints.delete("t", OLD)
    checkpoints.create("t", NEW, 3)
    checkpoints.write()
    put(checkpoints.directory, 0, 20, topic_id=NEW)
    assert read(running, start, running.latest()) == of(0, *range(60))
    assert "was deleted and created again" in caplog.text


def test_a_damaged_checkpoint_leaves_the_one_before_it(checkpoints, caplog):
    checkpoints.create("t", OLD, 5)
    checkpoints.write().write_bytes(b"damaged")
    assert [index for _, index in planner(checkpoints)[1].logs()] == [0, 1, 2]
    assert "can't be read" in caplog.text


def test_a_value_that_is_none_of_a_topic_is_damage(checkpoints):
    data = checkpoints.write({"topics/x": b"[]"}).read_bytes()
    with pytest.raises(DamagedObject, match="the key: the metadata holds a value"):
        decode_metadata("the key", data)


def test_a_checkpoint_is_read_once(checkpoints):
    bucket = Counting(checkpoints.directory)
    reader = MetadataReader(bucket, "default")
    first = reader.read()
    assert reader.read() is first
    assert bucket.get_count == 1
    checkpoints.create("more", NEW)
    checkpoints.write()
    assert "more" in reader.read().topics
    assert bucket.get_count == 2


def test_who_may_not_list_checkpoints_reads_segments_all_the_same(checkpoints, caplog):
    bucket = Counting(checkpoints.directory)
    bucket.is_denied = True
    assert not MetadataReader(bucket, "default").read().topics
    assert "can't be listed" in caplog.text


class Counting:
    """A bucket."""

    def __init__(self, directory: Path) -> None:
        self.bucket = BucketOptions(url=StoreUrl.parse(f"file:{directory}")).open()
        self.get_count = 0
        self.is_denied = False

    def get(self, key):
        self.get_count += 1
        return self.bucket.get(key)

    def list(self, prefix, start_after=""):
        if self.is_denied:
            raise AccessDenied(prefix)
        return self.bucket.list(prefix, start_after)
