"""The formats of tables: the rest of the pipeline asks for `format_of`, and knows what `TableFormat` says alone.

A module for each format has all that is peculiar to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kafscale.errors import ConfigError
from kafscale.spark.catalogs import DELTA, ICEBERG, CatalogOptions, quoted
from kafscale.spark.pipeline.config import Pipeline, TableMapping, partition_transform, sort_order
from kafscale.spark.pipeline.delta import DeltaTables
from kafscale.spark.pipeline.iceberg import IcebergTables
from kafscale.spark.pipeline.schema import SchemaConflict, changes, sql_of
from kafscale.spark.pipeline.table_format import TableFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS: Mapping[str, Callable[[SparkSession, CatalogOptions], TableFormat]] = {
    ICEBERG: IcebergTables,
    DELTA: DeltaTables,
}


def format_of(spark: SparkSession, pipeline: Pipeline) -> TableFormat:
    """Return what the tables of a pipeline are kept in, as a session sees it."""
    return FORMATS[pipeline.catalog.format](spark, pipeline.catalog)


logger = logging.getLogger(__name__)

DEAD_LETTER_COLUMNS = (
    "mapping STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "key BINARY, value BINARY, error STRING"
)


def ensure_table(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline, columns: StructType) -> None:
    """Make the mapping's table if it is missing, or partition it as the mapping says now.

    Raises ConfigError if it is missing and that is not wanted, SchemaConflict.
    """
    tables = format_of(spark, pipeline)
    partition_by = [partition_transform(each) for each in mapping.partition_by]
    if tables.exists(mapping.table):
        list(changes(spark.table(pipeline.full_name(mapping.table)).schema, columns))
        if partition_by and mapping.evolve:
            for change in tables.partition(mapping.table, partition_by):
                logger.warning("the table %s is partitioned otherwise from now on: %s", mapping.table, change)
    elif not mapping.create:
        raise ConfigError(f"there is no table {mapping.table}, and the mapping '{mapping.id}' does not create it")
    else:
        tables.create(
            mapping.table,
            _definition(columns),
            partition_by=partition_by,
            properties=mapping.properties,
            is_upserted=mapping.mode == "upsert",
        )
    if mapping.sort_by:
        tables.sort(mapping.table, [sort_order(each) for each in mapping.sort_by])


def ensure_dead_letters(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline) -> None:
    """Make the mapping's table of dead letters, if it has one, and it is missing."""
    tables = format_of(spark, pipeline)
    if mapping.dead_letters is not None and not tables.exists(mapping.dead_letters):
        tables.create(mapping.dead_letters, DEAD_LETTER_COLUMNS, properties={})


def evolve(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline, columns: StructType) -> StructType:
    """Change the table so that it takes rows of these columns. Returns its schema then. Raises SchemaConflict."""
    name = pipeline.full_name(mapping.table)
    for change in changes(spark.table(name).schema, columns):
        if not mapping.evolve:
            raise SchemaConflict(f"the values have {'.'.join(change.path)} {change.type}, and evolve is off")
        format_of(spark, pipeline).change(mapping.table, change)
    return spark.table(name).schema


def _definition(columns: StructType) -> str:
    return ", ".join(
        f"{quoted(each.name)} {sql_of(each.dataType)}{'' if each.nullable else ' NOT NULL'}" for each in columns.fields
    )
