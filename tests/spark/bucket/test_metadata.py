"""What a checkpoint of the broker's metadata tells readers: empty partitions, deleted records, deleted topics."""

import json
from pathlib import Path

import pytest

from kafscale.cluster.registries.topics import MorePartitions, NewTopic, TopicRegistry
from kafscale.config import StoreUrl
from kafscale.errors import AccessDenied, ConfigError, DamagedObject
from kafscale.formats.metadata_changes import Transaction
from kafscale.formats.metadata_checkpoint import Checkpoint, decode_checkpoint
from kafscale.formats.wal_objects import WalPosition
from kafscale.spark.bucket.bucket import BucketOptions
from kafscale.spark.bucket.metadata import SHARED_KEY, MetadataReader, decode_metadata
from kafscale.spark.bucket.position import Position
from kafscale.spark.bucket.reading import DataLoss, TopicCreatedAgain
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions, StreamOptions
from kafscale.spark.source.planning import Planner, QueryBounds
from kafscale.spark.source.progress import StreamProgress
from kafscale.store.paths import SegmentKey, topic_id_text
from kafscale.testing.metadata import MemoryMetadataStore
from tests.devtools.fakes.segment_objects import CREATED_MS, make_batches, version_2_objects
from tests.formats.metadata_checkpoints import encode_checkpoint
from tests.spark.topic_checkpoints import TopicCheckpoints

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
    splits = made.batch(BatchOptions.of(given), QueryBounds())
    return [tuple(row.values()) for split in splits for part in reader.read(split) for row in part.to_pylist()]


def of(partition: int, *offsets: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in offsets]


def stream(checkpoints: TopicCheckpoints, **options: str) -> StreamProgress:
    given, made = planner(checkpoints, startingOffsets="earliest", **options)
    return StreamProgress(planner=made, options=StreamOptions.of(given))


def read(progress: StreamProgress, start: dict, end: dict) -> list[tuple[int, int]]:
    reader = progress.planner.reader(["partition", "offset"])
    splits = progress.splits(start, end)
    return [tuple(row.values()) for split in splits for part in reader.read(split) for row in part.to_pylist()]


async def test_checkpoints_of_the_broker_are_read():
    store = MemoryMetadataStore()
    registry = TopicRegistry(store=store)
    orders, gone = await registry.create(
        [NewTopic(name="orders", partition_count=2), NewTopic(name="gone", partition_count=1)]
    )
    await registry.create_partitions([MorePartitions(name="orders", partition_count=5)])
    await registry.set_log_start_offset(orders.topic_id, 3, 77)
    await registry.delete(["gone"])
    puts = {entry.key: entry.value for entry in await store.list("")}
    found = decode_metadata("k", Checkpoint(WalPosition(1, 0), Transaction(puts=puts)))
    assert found.topics.keys() == {"orders"}
    assert found.topics["orders"].topic_id == orders.topic_id
    assert found.topics["orders"].partition_count == 5
    assert found.topics["orders"].log_start_offsets == {3: 77}
    assert found.deletions[gone.topic_id].name == "gone"
    assert found.deletion_of("gone").deleted_ms > CREATED_MS


def test_partitions_and_topics_without_segments_are_found(checkpoints):
    _, made = planner(checkpoints)
    assert [index for _, index in made.logs()] == [0, 1, 2]
    assert query(checkpoints) == of(0, *range(30))
    assert query(checkpoints, subscribe="empty") == []
    assert query(checkpoints, startingOffsets='{"t":{"0":28,"1":0,"2":-2}}') == of(0, 28, 29)
    with pytest.raises(ConfigError, match="says nothing of partition 1"):
        query(checkpoints, startingOffsets='{"t":{"0":28}}')
    with pytest.raises(ConfigError, match="there is: empty, t"):
        query(checkpoints, subscribe="unknown")
    assert stream(checkpoints).latest().offsets == {("t", 0): 30, ("t", 1): 0, ("t", 2): 0}


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
    assert stream(checkpoints).initial().offsets[("t", 0)] == 40


def test_a_stream_reports_a_loss_when_retention_has_deleted_all_records(checkpoints):
    running = stream(checkpoints)
    start = running.latest()
    for path in (checkpoints.directory / "default").rglob("segment-*"):
        path.unlink()
    checkpoints.set_log_start_offset(OLD, 0, 36)
    checkpoints.write()
    end = running.latest()
    assert end.offsets[("t", 0)] == 36
    with pytest.raises(DataLoss, match="offsets 30 to 35 of partition 0 of t: the log begins at 36 now"):
        running.splits(start, end)


def test_a_deleted_topic_is_not_read_though_its_objects_remain(checkpoints):
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
    assert end == Position()
    assert running.splits(start, end) == []
    assert "partition 0 of topic 't' has gone: topic 't' was deleted at" in caplog.text
    with pytest.raises(DataLoss, match="has gone: topic 't' was deleted at"):
        stream(checkpoints).splits(start, end)


def test_a_job_reading_a_deleted_topic_gets_an_error_naming_the_deletion(checkpoints):
    given, made = planner(checkpoints)
    splits = made.batch(BatchOptions.of(given), QueryBounds())
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
    assert end.offsets == {("t", 0): 6, ("t", 1): 0, ("t", 2): 0}
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


def recreate(checkpoints: TopicCheckpoints, batch_count: int) -> None:
    """The topic t anew, with so many batches of three records."""
    checkpoints.delete("t", OLD)
    checkpoints.create("t", NEW, 3)
    checkpoints.write()
    put(checkpoints.directory, 0, batch_count, topic_id=NEW)


@pytest.mark.parametrize("fail", [True, False])
def test_a_restarted_stream_detects_a_recreated_topic(checkpoints, fail, caplog):
    start = Position.parse(json.dumps(stream(checkpoints).latest().to_json()))
    recreate(checkpoints, 20)
    running = stream(checkpoints, failOnDataLoss=str(fail).lower())
    running.splits(start, start)
    if fail:
        with pytest.raises(
            TopicCreatedAgain, match=f"had the topic id {topic_id_text(OLD)}, and .* {topic_id_text(NEW)} n"
        ):
            running.latest()
    else:
        assert read(running, start, running.latest()) == of(0, *range(60))
        assert "deleted and created again" in caplog.text


def test_a_batch_of_a_topic_that_was_created_again_was_read_of_the_new_one(checkpoints, caplog):
    """It was planned before a restart, and had offsets that the new topic has too."""
    before = stream(checkpoints)
    start, end = before.initial(), before.latest()
    recreate(checkpoints, 20)
    with pytest.raises(TopicCreatedAgain):
        stream(checkpoints).splits(start, end)
    running = stream(checkpoints, failOnDataLoss="false")
    assert read(running, start, end) == []
    assert "deleted and created again" in caplog.text
    assert read(running, end, running.latest()) == of(0, *range(60))


def test_a_planned_batch_of_a_deleted_topic_reports_data_loss(checkpoints, caplog):
    before = stream(checkpoints)
    start, end = before.initial(), before.latest()
    checkpoints.delete("t", OLD)
    checkpoints.write()
    with pytest.raises(DataLoss, match="partition 0 of topic 't' has gone: topic 't' was deleted at"):
        stream(checkpoints).splits(start, end)
    assert read(stream(checkpoints, failOnDataLoss="false"), start, end) == []
    assert "has gone" in caplog.text


def test_a_partition_that_a_new_topic_gets_later_began_where_the_old_one_was(checkpoints):
    put(checkpoints.directory, 0, 10, partition=1)
    start = stream(checkpoints).latest()
    recreate(checkpoints, 1)
    checkpoints.create("t", NEW, 1)
    checkpoints.write()
    running = stream(checkpoints, failOnDataLoss="false")
    end = running.latest(start)
    assert read(running, start, end) == of(0, 0, 1, 2)
    checkpoints.create("t", NEW, 2)
    checkpoints.write()
    put(checkpoints.directory, 0, 20, topic_id=NEW, partition=1)
    assert read(running, end, running.latest()) == of(1, *range(60))


def test_starting_offsets_with_the_id_of_another_topic_are_not_believed(checkpoints, caplog):
    text = json.dumps(stream(checkpoints).latest().to_json())
    assert query(checkpoints, startingOffsets=text) == []
    recreate(checkpoints, 11)
    with pytest.raises(TopicCreatedAgain, match="startingOffsets: topic 't' was deleted and created again"):
        query(checkpoints, startingOffsets=text)
    assert query(checkpoints, startingOffsets=text, failOnDataLoss="false") == of(0, *range(33))
    with pytest.raises(ConfigError, match="startingOffsets is JSON like"):
        query(checkpoints, startingOffsets='{"@topic-ids":7}')


def test_a_longer_log_of_a_recreated_topic_is_read_from_its_start(checkpoints, caplog):
    running = stream(checkpoints, failOnDataLoss="false")
    start = running.latest()
    checkpoints.delete("t", OLD)
    checkpoints.create("t", NEW, 3)
    checkpoints.write()
    put(checkpoints.directory, 0, 20, topic_id=NEW)
    assert read(running, start, running.latest()) == of(0, *range(60))
    assert "was deleted and created again" in caplog.text


def test_a_damaged_checkpoint_falls_back_to_the_previous_one(checkpoints, caplog):
    checkpoints.create("t", OLD, 5)
    checkpoints.write().write_bytes(b"damaged")
    assert [index for _, index in planner(checkpoints)[1].logs()] == [0, 1, 2]
    assert "can't be read" in caplog.text


def test_changes_are_seen_as_the_broker_would(checkpoints):
    checkpoints.create("t", OLD, 5)
    checkpoints.create("gone", NEW)
    checkpoints.write()
    topic = checkpoints.write().read_bytes()
    full = decode_checkpoint("k", topic).transaction.puts
    changes = Transaction(puts={"topics/more": full["topics/t"]}, deletes=["topics/gone"])
    checkpoints.write().write_bytes(b"".join(encode_checkpoint(WalPosition(1, 0), [changes], base=0)))
    topics = MetadataReader(Counting(checkpoints.directory), "default").read().topics
    assert topics.keys() == {"t", "empty", "more"}


def test_a_value_that_is_none_of_a_topic_is_damage(checkpoints):
    with pytest.raises(DamagedObject, match="the key: the metadata has a damaged value of a topic"):
        decode_metadata("the key", Checkpoint(WalPosition(1, 0), Transaction(puts={"topics/x": b"[]"})))


def test_a_checkpoint_is_read_once(checkpoints):
    bucket = Counting(checkpoints.directory)
    reader = MetadataReader(bucket, "default")
    first = reader.read()
    assert reader.read() is first
    assert bucket.get_count == 2, "the head is asked for with each, and there is none"
    checkpoints.create("more", NEW)
    checkpoints.write()
    assert "more" in reader.read().topics
    assert bucket.get_count == 4


@pytest.mark.parametrize("denied", ["list", "get"])
def test_denied_checkpoints_leave_metadata_empty_with_a_warning(checkpoints, caplog, denied):
    """S3 can tell who may list from who may read, and a policy for readers allows the listing of a whole bucket."""
    bucket = Counting(checkpoints.directory)
    bucket.denied = denied
    assert not MetadataReader(bucket, "default").read().topics
    assert "partitions without a segment and deleted records are unknown" in caplog.text


def test_a_policy_that_does_not_know_the_head_reads_checkpoints_all_the_same(checkpoints, caplog):
    """S3 says 403 of an object that is not there to who may not get it; with one broker the head is not there."""
    bucket = Counting(checkpoints.directory)
    bucket.denied = "head"
    reader = MetadataReader(bucket, "default")
    assert set(reader.read().topics) == {"t", "empty"}
    assert reader.position is not None, "the log can be read"
    assert not caplog.records
    checkpoints.write({SHARED_KEY: b"9"})
    assert reader.read().topics
    assert reader.position is not None
    assert "read _kafscale/default/head: changes are known later" in caplog.text


class Counting:
    """A bucket."""

    def __init__(self, directory: Path) -> None:
        self.bucket = BucketOptions(url=StoreUrl.parse(f"file:{directory}")).open()
        self.get_count = 0
        self.denied = ""

    def get(self, key):
        if self.denied == "get" or (self.denied == "head" and key.endswith("/head")):
            raise AccessDenied(key)
        self.get_count += 1
        return self.bucket.get(key)

    def list(self, prefix, start_after=""):
        if self.denied == "list":
            raise AccessDenied(prefix)
        return self.bucket.list(prefix, start_after)
