"""Checks that what a pipeline names is there: topics, the registry's subjects, the catalog, tables that fit.

With Spark, or without for catalogs and values that need none. This module imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Protocol

import attrs
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kafscale.errors import KafScaleError
from kafscale.spark.pipeline.config import Pipeline, TableMapping
from kafscale.spark.pipeline.directory_tables import DirectoryTables, NeedsSpark, simple_columns
from kafscale.spark.pipeline.document import Check
from kafscale.spark.pipeline.records import empty_rows
from kafscale.spark.pipeline.runner import planner_of
from kafscale.spark.pipeline.schema import changes
from kafscale.spark.pipeline.tables import format_of


class Looks(Protocol):
    """Looks at what a mapping makes of records, and at its table."""

    def columns(self, mapping: TableMapping) -> StructType:
        """Return the columns of the mapping's rows. Raises KafScaleError."""
        ...

    def exists(self, table: str) -> bool:
        """Tell whether there is such a table."""
        ...

    def schema(self, table: str) -> StructType:
        """Return the columns of a table."""
        ...


@attrs.frozen
class SparkLooks:
    """Looks by a session."""

    spark: SparkSession
    pipeline: Pipeline

    def columns(self, mapping: TableMapping) -> StructType:
        """See `Looks`."""
        return empty_rows(self.spark, mapping, self.pipeline).columns

    def exists(self, table: str) -> bool:
        """See `Looks`."""
        return format_of(self.spark, self.pipeline).exists(table)

    def schema(self, table: str) -> StructType:
        """See `Looks`."""
        return self.spark.table(self.pipeline.full_name(table)).schema


@attrs.frozen
class DirectoryLooks:
    """Looks without Spark. All raise NeedsSpark."""

    tables: DirectoryTables

    def columns(self, mapping: TableMapping) -> StructType:
        """See `Looks`."""
        return simple_columns(mapping)

    def exists(self, table: str) -> bool:
        """See `Looks`."""
        return self.tables.exists(table)

    def schema(self, table: str) -> StructType:
        """See `Looks`."""
        return self.tables.schema(table)


def check(looks: Looks, pipeline: Pipeline) -> Iterator[Check]:
    """All that can be told without writing anything. Raises NeedsSpark if the looks do."""
    for mapping in pipeline.mappings:
        for what, look in (("topics", _topics), ("columns", _columns), ("table", _table)):
            try:
                yield Check(mapping=mapping.id, what=what, found=look(looks, pipeline, mapping))
            except NeedsSpark:
                raise
            except KafScaleError as exc:
                yield Check(mapping=mapping.id, what=what, found=str(exc), ok=False)
            except Exception as exc:  # py4j's and pyspark's
                text = str(exc).strip() or type(exc).__name__
                yield Check(mapping=mapping.id, what=what, found=text.splitlines()[0], ok=False)


def _topics(_: Looks, pipeline: Pipeline, mapping: TableMapping) -> str:
    with closing(planner_of(pipeline, mapping)) as planner:
        logs = planner.logs()
    topics = sorted({topic for topic, _ in logs})
    return f"{_counted(len(topics), 'topic')}, {_counted(len(logs), 'partition')}: {', '.join(topics)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _columns(looks: Looks, _: Pipeline, mapping: TableMapping) -> str:
    columns = looks.columns(mapping)
    return ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in columns.fields)


def _table(looks: Looks, _: Pipeline, mapping: TableMapping) -> str:
    declared = mapping.fan_out.tables.values() if mapping.fan_out else ()
    tables = list(dict.fromkeys([mapping.table, *declared]))
    found = [_table_of(looks, mapping.into(each)) for each in tables]
    return (
        found[0] if len(found) == 1 else "; ".join(f"{name} {each}" for name, each in zip(tables, found, strict=True))
    )


def _table_of(looks: Looks, mapping: TableMapping) -> str:
    if not looks.exists(mapping.table):
        if not mapping.create:
            raise KafScaleError(f"there is no table {mapping.table}, and create is off")
        return "will be created"
    found = list(changes(looks.schema(mapping.table), looks.columns(mapping)))
    return f"is there, and will get {len(found)} changes" if found else "is there"
