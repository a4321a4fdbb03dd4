"""`kafscale pipeline reset --topic`: lets mappings go on with a topic as it is now. This module imports pyspark.

A topic that was created again begins at its start; any other at the table's position, or, if records were deleted
unread, at the first remaining one. So no record comes twice, except with `from_beginning`. All other topics go on at
the table's position, as after a lost checkpoint: a planned batch that is not in the table is planned anew. Until a run
has written a batch, another reset goes on from the one before. Rows and dead letters stay in the tables.
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
    """The reset of one topic, by the positions of all topics of its mapping. `again`: topics to read once more."""

    mapping: TableMapping
    topic: str
    before: Position
    after: Position
    again: Set[str]

    @property
    def changes(self) -> bool:
        return self.before != self.after


def plan(spark: SparkSession, pipeline: Pipeline, topics: Sequence[str], *, from_beginning: bool) -> Sequence[Reset]:
    """Return the resets for `carry_out`. Raises StoreError, and ConfigError for a topic that no mapping reads yet."""
    found: list[Reset] = []
    for mapping in pipeline.mappings:
        position, again = _position(spark, pipeline, mapping)
        if position is not None:
            with closing(planner_of(pipeline, mapping)) as planner:
                found += _resets(planner, mapping, position, again, topics, from_beginning=from_beginning)
    unread = [topic for topic in topics if topic not in {reset.topic for reset in found}]
    if unread:
        raise ConfigError(f"no mapping has begun to read topic '{unread[0]}', so it begins as its mapping says")
    return found


def carry_out(spark: SparkSession, pipeline: Pipeline, resets: Sequence[Reset]) -> None:
    """Change the checkpoints. The pipeline must be `locked`."""
    for mapping_id in dict.fromkeys(reset.mapping.id for reset in resets if reset.changes):
        last = [reset for reset in resets if reset.mapping.id == mapping_id][-1]
        checkpoint_of(spark, pipeline, last.mapping).begin_anew(last.after, last.again)


def locked(spark: SparkSession, pipeline: Pipeline) -> closing[Any]:
    """Keep runs of the pipeline out during the block. Raises StartupError if one is at work."""
    return closing(take_lock(HadoopDirectory(spark, pipeline.checkpoints)))


def _position(spark: SparkSession, pipeline: Pipeline, mapping: TableMapping) -> tuple[Position | None, Set[str]]:
    """Return the position of a mapping, None before its beginning, and the topics that it reads again.

    It is that of the table, or, before the first batch of its query, the query's beginning, which a reset may have set.
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
    """Yield the resets in order; each begins with the position of the one before."""
    logs = planner.logs(must_exist=False)
    for topic in dict.fromkeys(topics):
        if topic in {name for name, _ in [*logs, *position.offsets]}:
            after = _anew(position, topic, logs, from_beginning=from_beginning)
            again = again | {topic} if from_beginning else again
            yield Reset(mapping=mapping, topic=topic, before=position, after=after, again=again)
            position = after


def _anew(position: Position, topic: str, logs: Logs, *, from_beginning: bool) -> Position:
    of_topic = {partition: log for partition, log in logs.items() if partition[0] == topic}
    is_another = not of_topic or topic in recreations(position.topic_ids, of_topic)
    begins = from_beginning or is_another
    kept = {name: offset for name, offset in position.offsets.items() if name[0] != topic or not begins}
    known = {name: log for name, log in of_topic.items() if begins or name in kept}  # a new one begins as it would have
    there = {name: max(kept.get(name, 0), log.earliest_offset) for name, log in known.items()}
    names = {name for name, _ in {**kept, **there}}
    topic_ids = {**position.topic_ids, **ids_of(of_topic.values())}
    return Position(offsets={**kept, **there}, topic_ids={name: topic_ids[name] for name in names & topic_ids.keys()})
