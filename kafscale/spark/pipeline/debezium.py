"""Rows that Debezium has unwrapped (`ExtractNewRecordState`): a value is a row, with members that tell of its change.

    __deleted             "true" for a deleted row, by `delete.tombstone.handling.mode=rewrite`
    __op, __ts_ms, …      members of `add.fields`, of which those in `FLAGS` are metadata here

None of these is a column of the table. A deletion may also be a tombstone, or both. This module imports pyspark.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.types import LongType, StringType, StructField

from kafscale.errors import ConfigError
from kafscale.spark.pipeline.config import DELETED, FLAGS, TableMapping
from kafscale.spark.pipeline.schema import member

_NUMBERS = ("change_ms", "transaction_order", "transaction_collection_order")
DELETE = "d"


def flag_fields() -> list[StructField]:
    """Return the members that a row in JSON may have besides its columns."""
    flags = [StructField(flag, LongType() if name in _NUMBERS else StringType()) for name, flag in FLAGS.items()]
    return [StructField(DELETED, StringType()), *flags]


def is_deleted(value: Column, type_: Any) -> Column:
    """Tell whether a row is marked as deleted; never null."""
    told = functions.lower(member(value, type_, DELETED, "string")) == "true"
    by_op = member(value, type_, FLAGS["op"], "string") == DELETE
    return functions.coalesce(told, functions.lit(False)) | functions.coalesce(by_op, functions.lit(False))


def without_flags(decoded: DataFrame, mapping: TableMapping, side: str) -> DataFrame:
    """Reduce the rows of a side to columns, with `op` besides, and add metadata of changes.

    Raises ConfigError for rows without any mark of a deletion.
    """
    struct: Any = decoded.schema[side].dataType
    type_: Any = struct["value"].dataType
    names = getattr(type_, "names", ())
    if DELETED not in names and FLAGS["op"] not in names:
        raise ConfigError(
            f"the mapping '{mapping.id}' has values with neither {DELETED} nor {FLAGS['op']}, so nothing tells that a "
            "row was deleted: have Debezium rewrite deletes, or leave out the envelope if tombstones tell"
        )
    value = functions.col(f"{side}.value")
    row = functions.struct(*(value.getField(name).alias(name) for name in names if not _is_flag(name)))
    op = functions.when(is_deleted(value, type_), functions.lit(DELETE)).otherwise(
        member(value, type_, FLAGS["op"], "string")
    )
    metadata = [
        member(value, type_, FLAGS[source], "bigint" if source in _NUMBERS else "string").alias(column)
        for column, source in mapping.metadata_columns.items()
        if source in FLAGS
    ]
    made = functions.struct(
        functions.when(value.isNotNull(), row).alias("value"),
        functions.col(f"{side}.error").alias("error"),
        op.alias("op"),
    )
    return decoded.select("*", *metadata).withColumn(side, made)


def _is_flag(name: str) -> bool:
    return name in (DELETED, *FLAGS.values())
