"""Makes and changes the tables of mappings, in the format of the pipeline's catalog. Imports pyspark."""

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
    """Return the table format of a pipeline, for a session."""
    return FORMATS[pipeline.catalog.format](spark, pipeline.catalog)


logger = logging.getLogger(__name__)

DEAD_LETTER_COLUMNS = (
    "mapping STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "key BINARY, value BINARY, error STRING"
)


def ensure_table(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline, columns: StructType) -> None:
    """Make the mapping's table if it is missing, or change its partitions to those of the mapping.

    Raises ConfigError for a missing table with `create` off, SchemaConflict.
    """
    tables = format_of(spark, pipeline)
    partition_by = [partition_transform(transform) for transform in mapping.partition_by]
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
        tables.sort(mapping.table, [sort_order(order) for order in mapping.sort_by])


def ensure_dead_letters(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline) -> None:
    """Make the mapping's table of dead letters, if it has one that is missing."""
    tables = format_of(spark, pipeline)
    if mapping.dead_letters is not None and not tables.exists(mapping.dead_letters):
        tables.create(mapping.dead_letters, DEAD_LETTER_COLUMNS, properties={})


def evolve(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline, columns: StructType) -> StructType:
    """Change the table for rows of these columns, and return its schema. Raises SchemaConflict."""
    name = pipeline.full_name(mapping.table)
    for change in changes(spark.table(name).schema, columns):
        if not mapping.evolve:
            raise SchemaConflict(f"the values have {'.'.join(change.path)} {change.type}, and evolve is off")
        format_of(spark, pipeline).change(mapping.table, change)
    return spark.table(name).schema


def _definition(columns: StructType) -> str:
    return ", ".join(
        f"{quoted(field.name)} {sql_of(field.dataType)}{'' if field.nullable else ' NOT NULL'}"
        for field in columns.fields
    )
