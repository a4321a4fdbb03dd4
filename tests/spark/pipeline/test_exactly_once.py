"""The moments at which a run can die, each made by hand; `test_kills` finds them by chance."""

import shutil

import pytest

from kafscale.spark.pipeline.config import quoted
from tests.devtools.external.clients import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]


def forget_last_batch(lake, mapping: str) -> None:
    """As if the driver had died between the commit of the table and that of the checkpoint."""
    commits = lake.checkpoints / mapping / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_batch_that_is_in_the_table_is_not_written_again(lake, topic, produce, mode):
    mapping = f"- {{topic: {topic}, table: db.{topic}, mode: {mode}, key: {{}}, metadata: [offset]}}"
    produce(topic, [(0, b"%d" % number, b"v") for number in range(5)])
    lake.run(mapping)
    before, snapshots = lake.rows(f"db.{topic}"), len(lake.summaries(f"db.{topic}"))
    forget_last_batch(lake, f"db.{topic}")
    seen = lake.run(mapping)
    assert [outcome.commit_seconds for _, outcome, _, _ in seen.outcomes] == [None]
    assert lake.rows(f"db.{topic}") == before
    assert len(lake.summaries(f"db.{topic}")) == snapshots


def test_a_batch_is_found_behind_a_compaction(lake, topic, produce):
    mapping = f"- {{topic: {topic}, table: db.{topic}, metadata: [offset], max_records: 2}}"
    produce(topic, [(0, None, b"v")] * 6)
    lake.run(mapping)
    lake.spark.sql(
        f"CALL lake.system.rewrite_data_files(table => 'db.{topic}', options => map('min-input-files', '2'))"
    )
    assert "kafscale.batch-id" not in lake.summaries(f"db.{topic}")[-1]
    forget_last_batch(lake, f"db.{topic}")
    lake.run(mapping)
    assert [offset for offset, _ in lake.rows(f"db.{topic}")] == list(range(6))


def test_dead_letters_that_are_in_are_not_written_again_nor_their_records_as_rows(lake, topic, produce, monkeypatch):
    from kafscale.spark.pipeline import batch

    mapping = f"""
- topic: {topic}
  table: db.{topic}
  dead_letters: db.{topic}_dead
  metadata: [offset]
  value: {{format: FORMAT}}
"""
    produce(topic, [(0, None, b"good"), (0, None, b"\xff"), (0, None, b"good")])
    with monkeypatch.context() as patched:
        patched.setattr(batch._Attempt, "_commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lake.run(mapping.replace("FORMAT", "string"))
    assert [offset for (offset,) in lake.rows(f"db.{topic}_dead", "offset")] == [1]
    assert lake.rows(f"db.{topic}") == []
    lake.run(mapping.replace("FORMAT", "string"))
    assert [offset for (offset,) in lake.rows(f"db.{topic}_dead", "offset")] == [1]
    assert lake.rows(f"db.{topic}") == [(0, "good"), (2, "good")]


def test_a_recreated_table_fails_until_the_checkpoint_is_deleted(lake, topic, produce):
    mapping = f"- {{topic: {topic}, table: db.{topic}, metadata: [offset]}}"
    produce(topic, [(0, None, b"v")] * 3)
    lake.run(mapping)
    lake.spark.sql(f"DROP TABLE lake.db.{quoted(topic)} PURGE")
    produce(topic, [(0, None, b"v")])
    seen = lake.run(mapping, may_fail=True)
    assert "made anew, or rolled back? Delete this checkpoint" in str(seen.failures[f"db.{topic}"])
    shutil.rmtree(lake.checkpoints)
    lake.run(mapping)
    assert [offset for offset, _ in lake.rows(f"db.{topic}")] == [0, 1, 2, 3]


@pytest.mark.parametrize("max_records", [1, 10])
def test_a_checkpoint_restored_from_a_backup_fails_the_mapping(lake, topic, produce, tmp_path, max_records):
    """As of a backup: Spark plans batches anew whose numbers are in the table, and they end elsewhere."""
    from kafscale.spark.pipeline.batch import CheckpointWentBack

    mapping = f"- {{topic: {topic}, table: db.{topic}, metadata: [offset], max_records: MAX}}"
    produce(topic, [(0, None, b"v")] * 2)
    lake.run(mapping.replace("MAX", "2"))
    backup = shutil.copytree(lake.checkpoints, tmp_path / "backup")
    produce(topic, [(0, None, b"v")] * 2)
    lake.run(mapping.replace("MAX", "2"))
    produce(topic, [(0, None, b"v")])
    shutil.rmtree(lake.checkpoints)
    shutil.copytree(backup, lake.checkpoints)
    seen = lake.run(mapping.replace("MAX", str(max_records)), may_fail=True)
    assert [offset for offset, _ in lake.rows(f"db.{topic}")] == [0, 1, 2, 3]
    assert isinstance(seen.failures[f"db.{topic}"], CheckpointWentBack)
    shutil.rmtree(lake.checkpoints)
    lake.run(mapping.replace("MAX", "10"))
    assert [offset for offset, _ in lake.rows(f"db.{topic}")] == [0, 1, 2, 3, 4]


def test_two_runs_do_not_share_checkpoints(lake, topic, monkeypatch):
    import subprocess
    import sys

    from kafscale.errors import StartupError
    from kafscale.spark.pipeline import checkpoint

    monkeypatch.setattr(checkpoint, "LOCK_WAIT_SECONDS", 0.0)
    lake.checkpoints.mkdir()
    lock = lake.checkpoints / checkpoint.LOCK
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        with pytest.raises(StartupError, match="another run of the pipeline"):
            lake.run(f"- {{topic: {topic}, table: db.{topic}}}")
        other.kill()


def recreate(broker, topic: str) -> None:
    """Delete it, and create it with one partition, as administrators do."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in admin.list_topics().topics, "the deletion")
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()


def test_records_of_a_topic_that_was_created_again_were_skipped(lake, broker, topic, produce):
    """The new topic has more records than the old one had: those below the old offset were never read."""
    from kafscale.spark.pipeline.reset import carry_out, plan

    mapping = f"- {{topics: [{topic}, {topic}-beside], table: db.{topic}, metadata: [topic, offset]}}"
    produce(topic, [(0, None, b"old")] * 3)
    produce(f"{topic}-beside", [(0, None, b"beside")] * 2)
    lake.run(mapping)
    recreate(broker, topic)
    produce(topic, [(0, None, b"new")] * 5)
    produce(f"{topic}-beside", [(0, None, b"beside")] * 2)
    for _ in range(2):
        seen = lake.run(mapping, may_fail=True)
        told = str(seen.failures[f"db.{topic}"])
        assert f"topic '{topic}' was deleted and created again" in told
        assert "kafscale pipeline reset --topic" in told
    shutil.rmtree(lake.checkpoints)  # and the table's summaries tell it too
    assert "was deleted and created again" in str(lake.run(mapping, may_fail=True).failures[f"db.{topic}"])

    pipeline = lake.pipeline(mapping)
    (reset,) = plan(lake.spark, pipeline, [topic], from_beginning=False)
    assert (reset.before.offsets[topic, 0], reset.after.offsets[topic, 0]) == (3, 0)
    assert (topic, 1) not in reset.after.offsets
    assert reset.before.topic_ids[topic] != reset.after.topic_ids[topic]
    carry_out(lake.spark, pipeline, [reset])
    lake.run(mapping)
    old, new = [(topic, offset, b"old") for offset in range(3)], [(topic, offset, b"new") for offset in range(5)]
    beside = [(f"{topic}-beside", offset, b"beside") for offset in range(4)]
    assert lake.rows(f"db.{topic}") == sorted([*old, *new, *beside], key=repr)
    (again,) = plan(lake.spark, pipeline, [topic], from_beginning=False)
    assert not again.changes
    forget_last_batch(lake, f"db.{topic}")
    lake.run(mapping)
    assert len(lake.rows(f"db.{topic}")) == 12


def test_a_reset_without_from_beginning_does_not_reread_the_same_topic(lake, topic, produce):
    from kafscale.errors import ConfigError
    from kafscale.spark.pipeline.reset import carry_out, plan

    mapping = f"- {{topic: {topic}, table: db.{topic}, metadata: [offset]}}"
    produce(topic, [*[(0, None, b"v")] * 3, (1, None, b"v")])  # an empty one is known by a checkpoint only, later
    pipeline = lake.pipeline(mapping)
    with pytest.raises(ConfigError, match="no mapping has begun to read topic"):
        plan(lake.spark, pipeline, [topic], from_beginning=False)
    lake.run(mapping)
    (reset,) = plan(lake.spark, pipeline, [topic], from_beginning=False)
    assert not reset.changes
    carry_out(lake.spark, pipeline, [reset])
    assert lake.run(mapping).outcomes == []
    carry_out(lake.spark, pipeline, plan(lake.spark, pipeline, [topic], from_beginning=True))
    lake.run(mapping)
    assert [offset for offset, _ in lake.rows(f"db.{topic}")] == [0, 0, 0, 0, 1, 1, 2, 2]


def test_a_reset_leaves_a_partition_added_since_the_last_batch_unchanged(lake, topic, produce, broker):
    from confluent_kafka.admin import AdminClient, NewPartitions

    from kafscale.spark.pipeline.reset import plan

    mapping = f"- {{topic: {topic}, table: db.{topic}, metadata: [offset]}}"
    produce(topic, [(0, None, b"v")] * 3)
    lake.run(mapping)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
    produce(topic, [(2, None, b"v")] * 2)
    (reset,) = plan(lake.spark, lake.pipeline(mapping), [topic], from_beginning=False)
    assert not reset.changes
    lake.run(mapping)
    assert [offset for offset, _ in lake.rows(f"db.{topic}")] == [0, 0, 1, 1, 2]
