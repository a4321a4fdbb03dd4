"""Checkpoints of streams that go from Spark's Kafka source to this one and back, without a gap and without a repeat."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest

from kafscale.errors import ConfigError
from kafscale.spark.bucket.position import TOPIC_IDS
from kafscale.spark.source.options import Given, ReadOptions
from kafscale.spark.source.planning import Planner
from tests.devtools.external.spark import flush, run_stream, skip_without_kafka_stream, store_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

NAMES = (f"moving{number}" for number in count())


@attrs.define(kw_only=True)
class Moving:
    """A query that writes what it reads, and the topic that it reads."""

    spark: Any
    broker: Any
    directory: Path
    topic: str

    def produce(self, numbers: Iterable[int], *, flushed: bool = True) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for number in numbers:
            headers = [("h", b"%d" % number)] if number % 3 else None
            producer.produce(self.topic, b"%d" % number, b"k", partition=number % 2, headers=headers)
        producer.flush()
        if flushed:
            flush(self.broker)

    def run(self, source: str, checkpoint: str) -> None:
        """Until nothing is left."""
        options = {"kafka.bootstrap.servers": self.broker.bootstrap}
        if source == "kafscale":
            options = {"store": store_of(self.broker)}
        frame = (
            self.spark.readStream.format(source)
            .options(**options, subscribe=self.topic)
            .option("startingOffsets", "earliest")
        )
        run_stream(
            frame.load()
            .selectExpr("CAST(value AS STRING) AS number")
            .writeStream.format("parquet")
            .option("path", str(self.directory / "rows"))
            .option("checkpointLocation", self.path(checkpoint))
            .trigger(availableNow=True)
        )

    def rows(self) -> list[int]:
        return sorted(int(row.number) for row in self.spark.read.parquet(str(self.directory / "rows")).collect())

    def path(self, checkpoint: str) -> str:
        return str(self.directory / checkpoint)

    def offsets(self, checkpoint: str) -> dict[str, Any]:
        """Of the last batch."""
        files = [path for path in (self.directory / checkpoint / "offsets").iterdir() if path.name.isdecimal()]
        return json.loads(max(files, key=lambda path: int(path.name)).read_text().splitlines()[-1])

    def rewrite(self, checkpoint: str, offsets: dict[str, int]) -> None:
        """Let the first batch have ended here."""
        file = self.directory / checkpoint / "offsets" / "0"
        *lines, _ = file.read_text().splitlines()
        file.write_text("\n".join([*lines, json.dumps({self.topic: offsets})]))
        file.with_name(".0.crc").unlink(missing_ok=True)

    def migrate(self, source: str, target: str, to: str) -> None:
        from kafscale.spark.pipeline.migration import check_bucket, migrate, read_checkpoint

        migration = read_checkpoint(self.spark, self.path(source))
        options = ReadOptions.of(Given({"store": store_of(self.broker), "subscribe": self.topic}))
        with closing(Planner.of(options)) as planner:
            migrate(migration, self.path(target), to, check_bucket(migration, planner))

    def compare(self, *, last_count: int | None = None) -> Any:
        """All that the checkpoint "first" has behind it."""
        from kafscale.spark.pipeline.migration import check_bucket, compare, read_checkpoint

        migration = read_checkpoint(self.spark, self.path("first"))
        given = {"store": store_of(self.broker)}
        with closing(Planner.of(ReadOptions.of(Given({**given, "subscribe": self.topic})))) as planner:
            logs = check_bucket(migration, planner)
        kafka = {"kafka.bootstrap.servers": self.broker.bootstrap}
        return compare(self.spark, migration.offsets, logs, given, kafka, last_count=last_count)


@pytest.fixture
def moving(spark, broker, tmp_path) -> Moving:
    from confluent_kafka.admin import AdminClient, NewTopic

    skip_without_kafka_stream()
    topic = next(NAMES)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    return Moving(spark=spark, broker=broker, directory=tmp_path, topic=topic)


def test_a_query_moves_to_the_other_source_and_back(moving):
    moving.produce(range(20))
    moving.run("kafka", "first")
    moving.produce(range(20, 50))
    moving.migrate("first", "second", "kafscale")
    assert TOPIC_IDS in moving.offsets("second")
    assert TOPIC_IDS not in moving.offsets("first")
    moving.run("kafscale", "second")
    assert moving.rows() == list(range(50))
    moving.produce(range(50, 65))
    moving.run("kafscale", "second")
    moving.migrate("second", "third", "kafka")
    assert moving.offsets("third") == {moving.topic: {"0": 33, "1": 32}}
    moving.produce(range(65, 70), flushed=False)
    moving.run("kafka", "third")
    assert moving.rows() == list(range(70))


def test_both_sources_read_the_same_rows(moving):
    moving.produce(range(20))
    moving.run("kafka", "first")
    found = moving.compare()
    assert (found.rows, found.is_same) == (20, True)
    assert moving.compare(last_count=3).rows == 6


def test_rows_missing_from_one_source_are_reported(spark):
    from kafscale.spark.pipeline.migration import compared

    def frame(*rows: tuple[int, str]) -> Any:
        named = [("t", 0, offset, value) for offset, value in rows]
        return spark.createDataFrame(named, "topic STRING, partition INT, offset BIGINT, value STRING")

    found = compared(frame((0, "a"), (1, "b"), (2, "c")), frame((0, "a"), (1, "other"), (3, "d")))
    assert (found.rows, found.only_kafscale, found.only_kafka, found.is_same) == (3, 2, 2, False)
    assert found.shown == (
        "only kafscale: t 0 at offset 1",
        "only kafscale: t 0 at offset 2",
        "only kafka: t 0 at offset 1",
        "only kafka: t 0 at offset 3",
    )


def test_a_checkpoint_that_cannot_be_migrated_is_refused_and_nothing_is_written(moving):
    from kafscale.spark.pipeline.migration import NotMigrated

    with pytest.raises(ConfigError, match="is not a checkpoint of a stream that has run"):
        moving.migrate("nowhere", "second", "kafscale")
    moving.produce(range(10))
    moving.run("kafka", "first")
    moving.rewrite("first", {"0": 5, "1": 1005})
    with pytest.raises(NotMigrated, match=r"offset 1005 .* has 0 to 5 of it.*`kafscale flush`"):
        moving.migrate("first", "second", "kafscale")
    moving.rewrite("first", {"0": 5, "1": 5})
    moving.produce(range(10, 20))
    moving.run("kafka", "first")
    commit = moving.directory / "first" / "commits" / "1"
    commit.rename(commit.with_name("kept"))
    with pytest.raises(NotMigrated, match=r"batch 1 of .* has begun and not ended"):
        moving.migrate("first", "second", "kafscale")
    assert not (moving.directory / "second").exists()
    commit.with_name("kept").rename(commit)
    moving.migrate("first", "second", "kafscale")
    with pytest.raises(ConfigError, match="there is something at"):
        moving.migrate("first", "second", "kafscale")
    moving.run("kafscale", "second")
    assert moving.rows() == list(range(20))
