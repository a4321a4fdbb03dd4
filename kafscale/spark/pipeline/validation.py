"""Whether what a pipeline names is there: topics, the registry's subjects, the catalog, tables that fit.

This module imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import attrs
from pyspark.sql import SparkSession

from kafscale.errors import KafScaleError
from kafscale.spark.pipeline.config import Pipeline, TableMapping
from kafscale.spark.pipeline.formats import format_of
from kafscale.spark.pipeline.records import empty_rows
from kafscale.spark.pipeline.runner import planner_of
from kafscale.spark.pipeline.schema import changes


@attrs.frozen(kw_only=True)
class Check:
    """One thing that was looked at."""

    mapping: str
    what: str
    found: str
    ok: bool = True


def check(spark: SparkSession, pipeline: Pipeline) -> Iterator[Check]:
    """All that can be told without writing anything."""
    for mapping in pipeline.mappings:
        for what, look in (("topics", _topics), ("columns", _columns), ("table", _table)):
            try:
                yield Check(mapping=mapping.id, what=what, found=look(spark, pipeline, mapping))
            except KafScaleError as exc:
                yield Check(mapping=mapping.id, what=what, found=str(exc), ok=False)
            except Exception as exc:  # py4j's and pyspark's
                text = str(exc).strip() or type(exc).__name__
                yield Check(mapping=mapping.id, what=what, found=text.splitlines()[0], ok=False)


def _topics(_: SparkSession, pipeline: Pipeline, mapping: TableMapping) -> str:
    with closing(planner_of(pipeline, mapping)) as planner:
        logs = planner.logs()
    topics = sorted({topic for topic, _ in logs})
    return f"{_counted(len(topics), 'topic')}, {_counted(len(logs), 'partition')}: {', '.join(topics)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _columns(spark: SparkSession, pipeline: Pipeline, mapping: TableMapping) -> str:
    columns = empty_rows(spark, mapping, pipeline).columns
    return ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in columns.fields)


def _table(spark: SparkSession, pipeline: Pipeline, mapping: TableMapping) -> str:
    declared = mapping.fan_out.tables.values() if mapping.fan_out else ()
    tables = list(dict.fromkeys([mapping.table, *declared]))
    found = [_table_of(spark, pipeline, mapping.into(each)) for each in tables]
    return (
        found[0] if len(found) == 1 else "; ".join(f"{name} {each}" for name, each in zip(tables, found, strict=True))
    )


def _table_of(spark: SparkSession, pipeline: Pipeline, mapping: TableMapping) -> str:
    if not format_of(spark, pipeline).exists(mapping.table):
        if not mapping.create:
            raise KafScaleError(f"there is no table {mapping.table}, and create is off")
        return "will be created"
    found = list(
        changes(spark.table(pipeline.full_name(mapping.table)).schema, empty_rows(spark, mapping, pipeline).columns)
    )
    return f"is there, and will get {len(found)} changes" if found else "is there"
