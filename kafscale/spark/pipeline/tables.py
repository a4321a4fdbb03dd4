"""The tables of a mapping: made if they are missing, and changed where rows ask for it. Imports pyspark."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kafscale.errors import ConfigError
from kafscale.spark.pipeline.config import Pipeline, TableMapping, partition_transform, quoted, sort_order
from kafscale.spark.pipeline.schema import SchemaConflict, changes, sql_of
from kafscale.spark.pipeline.snapshots import load_table

DEFAULT_PROPERTIES = {"format-version": "2", "write.parquet.compression-codec": "zstd"}
UPSERT_PROPERTIES = {"write.merge.mode": "merge-on-read", "write.update.mode": "merge-on-read"}
DEAD_LETTER_COLUMNS = (
    "mapping STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "key BINARY, value BINARY, error STRING"
)


def ensure_table(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline, columns: StructType) -> None:
    """Make the mapping's table if it is missing. Raises ConfigError if that is not wanted, SchemaConflict."""
    name = pipeline.full_name(mapping.table)
    if spark.catalog.tableExists(name):
        list(changes(spark.table(name).schema, columns))
    elif not mapping.create:
        raise ConfigError(f"there is no table {mapping.table}, and the mapping '{mapping.id}' does not create it")
    else:
        defaults = {**DEFAULT_PROPERTIES, **(UPSERT_PROPERTIES if mapping.mode == "upsert" else {})}
        _create(spark, name, _definition(columns), mapping, {**defaults, **mapping.properties})
    if mapping.sort_by and load_table(spark, name).sortOrder().isUnsorted():
        spark.sql(f"ALTER TABLE {name} WRITE ORDERED BY {', '.join(map(sort_order, mapping.sort_by))}")


def ensure_dead_letters(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline) -> None:
    """Make the mapping's table of dead letters, if it has one, and it is missing."""
    if mapping.dead_letters is not None:
        name = pipeline.full_name(mapping.dead_letters)
        if not spark.catalog.tableExists(name):
            _create(spark, name, DEAD_LETTER_COLUMNS, None, DEFAULT_PROPERTIES)


def evolve(spark: SparkSession, mapping: TableMapping, name: str, columns: StructType) -> StructType:
    """Change the table so that it takes rows of these columns. Returns its schema then. Raises SchemaConflict."""
    for change in changes(spark.table(name).schema, columns):
        if not mapping.evolve:
            raise SchemaConflict(f"the values have {'.'.join(change.path)} {change.type}, and evolve is off")
        spark.sql(change.sql(name))
    return spark.table(name).schema


def _create(
    spark: SparkSession, name: str, definition: str, mapping: TableMapping | None, properties: dict[str, str]
) -> None:
    namespace = name.rpartition(".")[0]
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    partitions: Sequence[str] = [partition_transform(each) for each in mapping.partition_by] if mapping else []
    parts = [f"CREATE TABLE IF NOT EXISTS {name} ({definition}) USING iceberg"]
    if partitions:
        parts.append(f"PARTITIONED BY ({', '.join(partitions)})")
    parts.append(f"TBLPROPERTIES ({', '.join(f'{_text(key)} = {_text(value)}' for key, value in properties.items())})")
    spark.sql(" ".join(parts))


def _definition(columns: StructType) -> str:
    return ", ".join(
        f"{quoted(each.name)} {sql_of(each.dataType)}{'' if each.nullable else ' NOT NULL'}" for each in columns.fields
    )


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
