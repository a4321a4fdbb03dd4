"""`kafscale pipeline reset --topic`: let mappings go on with what there is of a topic now. This module imports pyspark.

Where a topic was deleted and created again, that is its beginning; else where its table is, or, if records were deleted
before they were read, the first one that is left. So no record comes twice, but with `from_beginning`. All else that a
mapping reads goes on where its table is, which is what a lost checkpoint does: a batch that was planned and is not in
the table is planned anew. Until a run has written a batch, a reset goes on from the one before. Rows and dead letters
that are in the tables stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import closing
from typing import Any

import attrs
from pyspark.sql import SparkSession

from kafscale.errors import ConfigError
from kafscale.spark.bucket.position import Logs, Position, ids_of, recreations
from kafscale.spark.pipeline.checkpoint import HadoopDirectory, take_lock
from kafscale.spark.pipeline.config import Pipeline, TableMapping
from kafscale.spark.pipeline.runner import checkpoint_of, planner_of
from kafscale.spark.pipeline.snapshots import newest
from kafscale.spark.pipeline.tables import format_of
from kafscale.spark.source.planning import Planner


@attrs.frozen(kw_only=True)
class Reset:
    """One topic's reset in one mapping, from where it is to where it will be.

    Both positions are those of all that the mapping reads. again: the topics that it reads again then, whatever tables
    have of them.
    """

    mapping: TableMapping
    topic: str
    before: Position
    after: Position
    again: Set[str]

    @property
    def changes(self) -> bool:
        """Tell whether the mapping does not go on as it would have anyhow."""
        return self.before != self.after


def plan(spark: SparkSession, pipeline: Pipeline, topics: Sequence[str], *, from_beginning: bool) -> Sequence[Reset]:
    """Return what `carry_out` would do.

    Raises ConfigError for a topic that no mapping has begun to read, StoreError.
    """
    found: list[Reset] = []
    for mapping in pipeline.mappings:
        position, again = _position(spark, pipeline, mapping)
        if position is not None:
            with closing(planner_of(pipeline, mapping)) as planner:
                found += _resets(planner, mapping, position, again, topics, from_beginning=from_beginning)
    unread = [topic for topic in topics if topic not in {each.topic for each in found}]
    if unread:
        raise ConfigError(f"no mapping has begun to read topic '{unread[0]}', so it begins as its mapping says")
    return found


def carry_out(spark: SparkSession, pipeline: Pipeline, resets: Sequence[Reset]) -> None:
    """Change the checkpoints. Raises StartupError if a run of the pipeline is at work."""
    for mapping_id in dict.fromkeys(each.mapping.id for each in resets if each.changes):
        last = [each for each in resets if each.mapping.id == mapping_id][-1]
        checkpoint_of(spark, pipeline, last.mapping).begin_anew(last.after, last.again)


def locked(spark: SparkSession, pipeline: Pipeline) -> closing[Any]:
    """Keeps runs of the pipeline out for as long as the block lasts. Raises StartupError if one is at work."""
    return closing(take_lock(HadoopDirectory(spark, pipeline.checkpoints)))


def _position(spark: SparkSession, pipeline: Pipeline, mapping: TableMapping) -> tuple[Position | None, Set[str]]:
    """Return where a mapping is, None if it has not begun, and the topics that it reads again.

    That is what its table says, or, before the first batch of its query, where that begins: a reset may have said so.
    """
    tables, checkpoint = format_of(spark, pipeline), checkpoint_of(spark, pipeline, mapping)
    committed = newest(tables.commits(mapping.table), mapping.id) if tables.exists(mapping.table) else None
    begun = checkpoint.begun()
    if committed is not None:
        is_first = committed.query_id != checkpoint.query_id and checkpoint.progress().committed_batch is None
        if begun is None or not is_first:
            return committed.end, frozenset()
    return begun, checkpoint.read_again()


def _resets(
    planner: Planner,
    mapping: TableMapping,
    position: Position,
    again: Set[str],
    topics: Sequence[str],
    *,
    from_beginning: bool,
) -> Iterator[Reset]:
    """One behind the other: each begins with what the one before has changed."""
    logs = planner.logs(must_exist=False)
    for topic in dict.fromkeys(topics):
        if topic in {name for name, _ in [*logs, *position.offsets]}:
            after = _anew(planner, position, topic, logs, from_beginning=from_beginning)
            again = again | {topic} if from_beginning else again
            yield Reset(mapping=mapping, topic=topic, before=position, after=after, again=again)
            position = after


def _anew(planner: Planner, position: Position, topic: str, logs: Logs, *, from_beginning: bool) -> Position:
    of_topic = {partition: log for partition, log in logs.items() if partition[0] == topic}
    begins = from_beginning or _is_another(planner, position, topic, of_topic)
    kept = {name: offset for name, offset in position.offsets.items() if name[0] != topic or not begins}
    known = {name: log for name, log in of_topic.items() if begins or name in kept}  # a new one begins as it would have
    there = {name: max(kept.get(name, 0), log.earliest_offset) for name, log in known.items()}
    names = {name for name, _ in {**kept, **there}}
    topic_ids = {**position.topic_ids, **ids_of(of_topic.values())}
    return Position(offsets={**kept, **there}, topic_ids={name: topic_ids[name] for name in names & topic_ids.keys()})


def _is_another(planner: Planner, position: Position, topic: str, of_topic: Logs) -> bool:
    """Tell whether the topic is not that of the position; it may be gone."""
    if not of_topic:
        return True
    if topic in position.topic_ids:
        return topic in recreations(position.topic_ids, of_topic)
    is_deleted = planner.catalog.metadata.deletion_of(topic) is not None  # the position is of an earlier version
    return is_deleted and any(position.offsets.get(name, 0) > log.written_end_offset for name, log in of_topic.items())
