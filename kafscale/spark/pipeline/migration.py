"""`kafscale pipeline migrate`: moves checkpoints between Spark's Kafka source and this one, and compares both sources.

A checkpoint has a line for each source of a query in each of its files `offsets/N`. Both sources write offsets there in
one form, `{"topic":{"0":23}}`; this one adds the ids of topics, which the Kafka source refuses. So a checkpoint is
copied, ids are added or removed in the copy, and the query goes on from it with the other source. The query's id,
commits and state stay as they are. This module imports pyspark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import attrs
from pyspark.sql import DataFrame, SparkSession

from kafscale.errors import ConfigError, KafScaleError
from kafscale.spark.bucket.position import Logs, Position, TopicPartition, ids_of, range_options
from kafscale.spark.pipeline.checkpoint import HadoopDirectory
from kafscale.spark.source.planning import Planner

KAFSCALE = "kafscale"
OFFSETS, COMMITS = "offsets", "commits"
HEADING_LINES = 2  # of a file of offsets: its version, and metadata of the batch


class NotMigrated(KafScaleError):
    """A checkpoint can't be migrated as it is; the message says what to do."""


@attrs.frozen(kw_only=True)
class Migration:
    """A checkpoint whose last batch has ended. `sources` are those that read topics, by the places of their lines."""

    directory: HadoopDirectory
    sources: Mapping[int, Position]

    @property
    def offsets(self) -> Mapping[TopicPartition, int]:
        return {name: offset for position in self.sources.values() for name, offset in position.offsets.items()}


def read_checkpoint(spark: SparkSession, path: str) -> Migration:
    directory = HadoopDirectory(spark, path)
    planned, committed = (_batches(directory, folder) for folder in (OFFSETS, COMMITS))
    if directory.read("metadata") is None or not planned:
        raise ConfigError(f"{path} is not a checkpoint of a stream that has run: it has no metadata, or no {OFFSETS}")
    if planned[-1] not in committed:
        raise NotMigrated(
            f"batch {planned[-1]} of {path} has begun and not ended: start the query as it was until it has, and end "
            "it between two batches (as after Trigger.AvailableNow)"
        )
    lines = (directory.read(f"{OFFSETS}/{planned[-1]}") or "").splitlines()[HEADING_LINES:]
    sources = {place: found for place, line in enumerate(lines) if (found := _position(line)) is not None}
    if not sources:
        raise NotMigrated(f"no source of the query of {path} reads topics: there are no offsets of partitions in it")
    return Migration(directory=directory, sources=sources)


def _batches(directory: HadoopDirectory, folder: str) -> Sequence[int]:
    return sorted(int(name) for name in directory.names(folder) if name.isdecimal())


def _position(line: str) -> Position | None:
    """Return None for a source that reads no topics, such as files or rates."""
    try:
        position = Position.parse(line)
    except (ValueError, AttributeError, TypeError):
        return None
    has_offsets = position.offsets and all(isinstance(offset, int) for offset in position.offsets.values())
    return position if has_offsets else None


def check_bucket(migration: Migration, planner: Planner) -> Logs:
    """Return the partitions of the checkpoint. Raises NotMigrated if the bucket lacks the next offsets."""
    logs = planner.logs(migration.offsets.keys(), must_exist=False)
    for partition, offset in sorted(migration.offsets.items()):
        topic, index = partition
        log = logs.get(partition)
        if log is None:
            raise NotMigrated(f"the bucket has no partition {index} of topic '{topic}'")
        if not log.start_offset <= offset <= log.written_end_offset:
            raise NotMigrated(
                f"the query goes on at offset {offset} of partition {index} of topic '{topic}', and the bucket has "
                f"{log.start_offset} to {log.written_end_offset} of it: is that topic there with the same offsets? "
                "What was just produced comes into the bucket by `kafscale flush`"
            )
    there = ids_of(logs.values())
    for position in migration.sources.values():
        other = [name for name, known in position.topic_ids.items() if there.get(name, known) != known]
        if other:
            raise NotMigrated(f"topic '{other[0]}' has another id in the bucket than the checkpoint is of")
    return {name: log for name, log in logs.items() if name in migration.offsets}


def migrate(migration: Migration, target: str, to: str, logs: Logs) -> HadoopDirectory:
    """Write the copy. Raises ConfigError if `target` exists."""
    copy = HadoopDirectory(migration.directory.spark, target)
    if copy.names(""):
        raise ConfigError(f"there is something at {target} already: name a directory that is to be made")
    migration.directory.copy_to(copy)
    topic_ids = ids_of(logs.values()) if to == KAFSCALE else {}
    for batch_id in _batches(copy, OFFSETS):
        text = copy.read(f"{OFFSETS}/{batch_id}")
        assert text is not None
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if number - HEADING_LINES in migration.sources:
                lines[number] = _rewritten(line, topic_ids)
        copy.delete(f"{OFFSETS}/{batch_id}")
        copy.write(f"{OFFSETS}/{batch_id}", "\n".join(lines))
    return copy


def _rewritten(line: str, topic_ids: Mapping[str, str]) -> str:
    position = Position.parse(line)
    topics = {topic for topic, _ in position.offsets}
    known = {topic: topic_id for topic, topic_id in topic_ids.items() if topic in topics}
    return json.dumps(attrs.evolve(position, topic_ids=known).to_json(), separators=(",", ":"))


SHOWN_COUNT = 3  # of rows that one of both lacks


@attrs.frozen(kw_only=True)
class Comparison:
    """The number of rows read by this source, and of those that the other lacks; `shown` has some."""

    rows: int
    only_kafscale: int
    only_kafka: int
    shown: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        return not self.only_kafscale and not self.only_kafka


def compare(
    spark: SparkSession,
    ends: Mapping[TopicPartition, int],
    logs: Logs,
    options: Mapping[str, str],
    kafka_options: Mapping[str, str],
    *,
    last_count: int | None,
) -> Comparison:
    """Compare all records before these offsets, or the last `last_count` of each partition, row by row.

    Both sources read committed records alone. Raises their errors.
    """
    starts = {
        name: max(log.start_offset, 0 if last_count is None else ends[name] - last_count) for name, log in logs.items()
    }
    common = {**range_options(starts, {name: ends[name] for name in starts}), "includeHeaders": "true"}
    ours = spark.read.format("kafscale").options(**{**options, **common}).load()
    theirs = spark.read.format("kafka").options(**{**READ_COMMITTED, **kafka_options, **common}).load()
    return compared(ours, theirs)


READ_COMMITTED = {"kafka.isolation.level": "read_committed"}


def compared(ours: DataFrame, theirs: DataFrame) -> Comparison:
    columns = ours.columns
    only_ours, only_theirs = ours.exceptAll(theirs.select(*columns)), theirs.select(*columns).exceptAll(ours)
    shown = [
        f"only {name}: {row.topic} {row.partition} at offset {row.offset}"
        for name, frame in (("kafscale", only_ours), ("kafka", only_theirs))
        for row in frame.orderBy("topic", "partition", "offset").limit(SHOWN_COUNT).collect()
    ]
    return Comparison(
        rows=ours.count(), only_kafscale=only_ours.count(), only_kafka=only_theirs.count(), shown=tuple(shown)
    )
