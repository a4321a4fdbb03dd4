"""The columns of a mapping whose values need neither a registry nor Spark's parser of types to know them.

They are those that `records.rows_of` makes, in its order, by the same checks; a test compares both. This module imports
pyspark, and starts no JVM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafscale.spark.pipeline.config import MARK, Encoding, TableMapping
from kafscale.spark.pipeline.directory_tables import NeedsSpark, simple_type
from kafscale.spark.pipeline.records import check_names, required, upsert_by
from kafscale.spark.source.source import HEADERS

_OF_METADATA: Final[Mapping[str, DataType]] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ms": LongType(),
    "timestamp_type": IntegerType(),
    "record_id": StringType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": HEADERS.dataType,
    "headers_json": StringType(),
}


def simple_columns(mapping: TableMapping) -> StructType:
    """Return the columns of the mapping's rows. Raises ConfigError, and NeedsSpark for values that are not simple."""
    sides = {side: encoding for side, encoding in (("key", mapping.key), ("value", mapping.value)) if encoding}
    if mapping.fan_out is not None:
        raise NeedsSpark("a fan-out names tables by values")
    columns = [
        (name, _OF_METADATA[source]) for name, source in mapping.metadata_columns.items() if source in _OF_METADATA
    ]
    if len(columns) != len(mapping.metadata_columns):
        raise NeedsSpark("metadata of changes is in values")
    if mapping.deletes == MARK:
        columns.append((mapping.deleted_column, BooleanType()))
    of_side = {side: list(_columns(side, encoding)) for side, encoding in sides.items()}
    columns += [each for found in of_side.values() for each in found]
    names = [name for name, _ in columns]
    check_names(mapping, names)
    upsert_by(mapping, names, [name for name, _ in of_side.get("key", ())])
    needed = required(sides)
    return StructType([StructField(name, type_, name not in needed) for name, type_ in columns])


def _columns(side: str, encoding: Encoding) -> Iterator[tuple[str, DataType]]:
    if encoding.envelope is not None or encoding.by_registry:
        raise NeedsSpark("a schema, or an envelope, says what the columns are")
    if encoding.format != "json":
        yield encoding.column or side, BinaryType() if encoding.format == "bytes" else StringType()
        return
    for each in encoding.columns:
        name = each.type.lower()
        yield each.name, TimestampType() if name == "timestamp" else simple_type(name)
