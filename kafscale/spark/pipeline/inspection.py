"""Status and validation of a pipeline's mappings. This module imports pyspark.

Both look at tables by Spark, or without it (`directory_tables`), as Spark takes some 20 s to start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Protocol

import attrs
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from pyspark.sql.types import StructType

from kafscale.errors import KafScaleError
from kafscale.spark.bucket.position import Json, Position
from kafscale.spark.pipeline.config import Pipeline, TableMapping
from kafscale.spark.pipeline.directory_tables import NeedsSpark
from kafscale.spark.pipeline.document import MappingCheck
from kafscale.spark.pipeline.records import empty_rows
from kafscale.spark.pipeline.runner import Lag, behind_of, planner_of
from kafscale.spark.pipeline.schema import changes
from kafscale.spark.pipeline.snapshots import Commit, newest
from kafscale.spark.pipeline.tables import format_of


class Tables(Protocol):
    """A pipeline's tables, as `status` and `check` look at them."""

    def columns(self, mapping: TableMapping) -> StructType:
        """Return the columns of the mapping's rows. Raises KafScaleError."""
        ...

    def exists(self, table: str) -> bool:
        """Tell whether there is such a table."""
        ...

    def schema(self, table: str) -> StructType:
        """Return the columns of a table."""
        ...

    def commits(self, table: str) -> Iterator[Commit]:
        """Iterate over the commits of a table, newest first."""
        ...

    def count(self, table: str, column: str, value: str) -> int:
        """Count the rows of a table that have a value in a column."""
        ...


@attrs.frozen
class SparkTables:
    """The tables as a session sees them. See `Tables`."""

    spark: SparkSession
    pipeline: Pipeline

    def columns(self, mapping: TableMapping) -> StructType:
        """See `Tables`."""
        return empty_rows(self.spark, mapping, self.pipeline).columns

    def exists(self, table: str) -> bool:
        """See `Tables`."""
        return format_of(self.spark, self.pipeline).exists(table)

    def schema(self, table: str) -> StructType:
        """See `Tables`."""
        return self.spark.table(self.pipeline.full_name(table)).schema

    def commits(self, table: str) -> Iterator[Commit]:
        """See `Tables`."""
        return format_of(self.spark, self.pipeline).commits(table)

    def count(self, table: str, column: str, value: str) -> int:
        """See `Tables`."""
        return int(self.spark.table(self.pipeline.full_name(table)).where(col(column) == value).count())


@attrs.frozen(kw_only=True)
class MappingStatus:
    """The status of a mapping. Fields of the newest batch are None, or empty, without one.

    lag: the number of offsets of the bucket behind it; lag_bytes: their stored size; lag_seconds: the age of the first
    one, by its own time. dead_letters: records in the dead-letter table.
    """

    mapping: str
    table: str
    batch_id: int | None
    offsets: Json
    lag: int
    lag_bytes: int
    lag_seconds: float
    committed_ms: int | None
    snapshot_id: int | None
    dead_letters: int


def status(tables: Tables, pipeline: Pipeline) -> Sequence[MappingStatus]:
    """Return the status of all mappings. Raises ConfigError, StoreError, and errors of the tables."""
    return [_status(tables, pipeline, mapping) for mapping in pipeline.mappings]


def _status(tables: Tables, pipeline: Pipeline, mapping: TableMapping) -> MappingStatus:
    committed = newest(tables.commits(mapping.table), mapping.id) if tables.exists(mapping.table) else None
    end = Position() if committed is None else committed.end
    with closing(planner_of(pipeline, mapping)) as planner:
        lag = Lag.of(behind_of(planner, committed), committed)
    return MappingStatus(
        mapping=mapping.id,
        table=mapping.table,
        batch_id=None if committed is None else committed.batch_id,
        offsets=Position(offsets=end.offsets).to_json(),
        lag=lag.records,
        lag_bytes=lag.bytes,
        lag_seconds=lag.seconds,
        committed_ms=lag.committed_ms,
        snapshot_id=None if committed is None else committed.snapshot_id,
        dead_letters=_dead_letters(tables, mapping),
    )


def _dead_letters(tables: Tables, mapping: TableMapping) -> int:
    if mapping.dead_letters is None or not tables.exists(mapping.dead_letters):
        return 0
    return tables.count(mapping.dead_letters, "mapping", mapping.id)


def check(tables: Tables, pipeline: Pipeline) -> Iterator[MappingCheck]:
    """Check topics, columns and tables without writing anything. Raises NeedsSpark if the tables do."""
    for mapping in pipeline.mappings:
        for what, look in (("topics", _topics), ("columns", _columns), ("table", _table)):
            try:
                yield MappingCheck(mapping=mapping.id, what=what, found=look(tables, pipeline, mapping))
            except NeedsSpark:
                raise
            except KafScaleError as exc:
                yield MappingCheck(mapping=mapping.id, what=what, found=str(exc), ok=False)
            except Exception as exc:  # py4j's and pyspark's
                text = str(exc).strip() or type(exc).__name__
                yield MappingCheck(mapping=mapping.id, what=what, found=text.splitlines()[0], ok=False)


def _topics(_: Tables, pipeline: Pipeline, mapping: TableMapping) -> str:
    with closing(planner_of(pipeline, mapping)) as planner:
        logs = planner.logs()
    topics = sorted({topic for topic, _ in logs})
    return f"{_counted(len(topics), 'topic')}, {_counted(len(logs), 'partition')}: {', '.join(topics)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _columns(tables: Tables, _: Pipeline, mapping: TableMapping) -> str:
    columns = tables.columns(mapping)
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in columns.fields)


def _table(tables: Tables, _: Pipeline, mapping: TableMapping) -> str:
    declared = mapping.fan_out.tables.values() if mapping.fan_out else ()
    names = list(dict.fromkeys([mapping.table, *declared]))
    found = [_table_of(tables, mapping.into(table)) for table in names]
    return (
        found[0] if len(found) == 1 else "; ".join(f"{name} {state}" for name, state in zip(names, found, strict=True))
    )


def _table_of(tables: Tables, mapping: TableMapping) -> str:
    if not tables.exists(mapping.table):
        if not mapping.create:
            raise KafScaleError(f"there is no table {mapping.table}, and create is off")
        return "will be created"
    found = list(changes(tables.schema(mapping.table), tables.columns(mapping)))
    return f"is there, and will get {len(found)} changes" if found else "is there"
