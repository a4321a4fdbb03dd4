"""What a table's schema needs for rows of another one: columns to add and to widen, and how rows are made to fit.

Allowed are new columns, int to long, float to double, and decimals with more digits before the point, which are what
Iceberg allows, in structs, arrays and maps too. Anything else is a SchemaConflict. This module imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any

import attrs
from pyspark.sql import Column, functions
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from kafscale.errors import KafScaleError
from kafscale.spark.catalogs import quoted

WIDER: dict[type[DataType], type[DataType]] = {IntegerType: LongType, FloatType: DoubleType}


class SchemaConflict(KafScaleError):
    """A value's schema and its table's don't go together. The message names the column."""


@attrs.frozen
class Change:
    """One column to add, or to make wider."""

    path: tuple[str, ...]
    type: str
    adds: bool

    def sql(self, table: str) -> str:
        """Return the statement that makes the change."""
        column = ".".join(quoted(each) for each in self.path)
        if self.adds:
            return f"ALTER TABLE {table} ADD COLUMN {column} {self.type}"
        return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {self.type}"


def relaxed(type_: DataType) -> DataType:
    """The type with nothing required in it, so that later schemas may leave it out."""
    if isinstance(type_, StructType):
        return StructType([StructField(each.name, relaxed(each.dataType)) for each in type_.fields])
    if isinstance(type_, ArrayType):
        return ArrayType(relaxed(type_.elementType))
    if isinstance(type_, MapType):
        return MapType(relaxed(type_.keyType), relaxed(type_.valueType))
    return type_


def changes(table: StructType, rows: StructType, path: tuple[str, ...] = ()) -> Iterator[Change]:
    """Iterate over the changes that the table needs to take the rows. Raises SchemaConflict."""
    known = {each.name: each for each in table.fields}
    for field in rows.fields:
        inner = (*path, field.name)
        if field.name in known:
            yield from _changes(known[field.name].dataType, field.dataType, inner)
        else:
            yield Change(inner, sql_of(relaxed(field.dataType)), adds=True)
    there = {each.name for each in rows.fields}
    for field in table.fields:
        if field.name not in there and not field.nullable:
            raise SchemaConflict(
                f"the column {'.'.join((*path, field.name))} of the table is required, and rows lack it"
            )


def sql_of(type_: DataType) -> str:
    """Return a type in Spark's SQL."""
    if isinstance(type_, StructType):
        inner = ", ".join(f"{quoted(each.name)}: {sql_of(each.dataType)}" for each in type_.fields)
        return f"STRUCT<{inner}>"
    if isinstance(type_, ArrayType):
        return f"ARRAY<{sql_of(type_.elementType)}>"
    if isinstance(type_, MapType):
        return f"MAP<{sql_of(type_.keyType)}, {sql_of(type_.valueType)}>"
    name: str = type_.simpleString()
    return name.upper()


def _changes(table: DataType, rows: DataType, path: tuple[str, ...]) -> Iterator[Change]:
    if isinstance(table, StructType) and isinstance(rows, StructType):
        yield from changes(table, rows, path)
    elif isinstance(table, ArrayType) and isinstance(rows, ArrayType):
        yield from _changes(table.elementType, rows.elementType, (*path, "element"))
    elif isinstance(table, MapType) and isinstance(rows, MapType):
        yield from _changes(table.keyType, rows.keyType, (*path, "key"))
        yield from _changes(table.valueType, rows.valueType, (*path, "value"))
    elif _is_wider(rows, table):
        yield Change(path, sql_of(rows), adds=False)
    elif table != rows and not _is_wider(table, rows):
        raise SchemaConflict(
            f"the column {'.'.join(path)} is {table.simpleString()} in the table and {rows.simpleString()} in the "
            "values: only new columns, int to long, float to double and decimals with more digits before the point are "
            "taken over"
        )


def _is_wider(type_: DataType, other: DataType) -> bool:
    """Tell whether a type has all values of another one that Iceberg may make it of."""
    if isinstance(type_, DecimalType) and isinstance(other, DecimalType):
        return bool(type_.scale == other.scale and type_.precision > other.precision)
    return type(type_) is WIDER.get(type(other))


def fitted(rows: StructType, table: StructType) -> Sequence[Column]:
    """The table's columns, in its order, of rows that it takes; null where the rows lack one."""
    there = {each.name: each.dataType for each in rows.fields}
    return [
        _fit(functions.col(quoted(each.name)), there.get(each.name), each.dataType).alias(each.name)
        for each in table.fields
    ]


def _fit(column: Column, rows: DataType | None, table: DataType) -> Column:
    if rows is None:
        return functions.lit(None).cast(table)
    if isinstance(table, StructType) and isinstance(rows, StructType):
        there = {each.name: each.dataType for each in rows.fields}
        parts = [
            _fit(column.getField(each.name), there.get(each.name), each.dataType).alias(each.name)
            for each in table.fields
        ]
        return functions.when(column.isNotNull(), functions.struct(*parts))
    if isinstance(table, ArrayType) and isinstance(rows, ArrayType):
        element_rows, element_table = rows.elementType, table.elementType
        return functions.transform(column, lambda each: _fit(each, element_rows, element_table))
    if isinstance(table, MapType) and isinstance(rows, MapType):
        value_rows, value_table = rows.valueType, table.valueType
        return functions.transform_values(column, lambda _, each: _fit(each, value_rows, value_table))
    return column if rows == table else column.cast(table)


def member(struct: Column, type_: Any, path: str, sql: str) -> Column:
    """Return a member of a struct by its path; null if it has none."""
    for each in path.split("."):
        if each not in getattr(type_, "names", ()):
            return functions.lit(None).cast(sql)
        struct, type_ = struct.getField(each), type_[each].dataType
    return struct.cast(sql)


DIGITS_MAX = 38


def has_decimal(type_: Any) -> bool:
    """Tell whether a type is a decimal, or has one within it."""
    if isinstance(type_, StructType):
        return any(has_decimal(each.dataType) for each in type_.fields)
    if isinstance(type_, ArrayType):
        return has_decimal(type_.elementType)
    return has_decimal(type_.valueType) if isinstance(type_, MapType) else isinstance(type_, DecimalType)


def exact_type(type_: Any) -> DataType:
    """Return the type with decimals that round as little as can be.

    Where there is no digit to spare, it is the text of a double.
    """
    if isinstance(type_, StructType):
        return StructType([StructField(each.name, exact_type(each.dataType)) for each in type_.fields])
    if isinstance(type_, ArrayType):
        return ArrayType(exact_type(type_.elementType))
    if isinstance(type_, MapType):
        return MapType(type_.keyType, exact_type(type_.valueType))
    if isinstance(type_, DecimalType):
        return DecimalType(DIGITS_MAX, _scale(type_)) if _scale(type_) > type_.scale else StringType()
    found: DataType = type_
    return found


def is_inexact(exact: Column, type_: Any) -> Column:
    """Tell whether a value of `exact_type` becomes another one of this type, which has a decimal; null where it has
    none.
    """
    if isinstance(type_, StructType):
        found = [
            functions.coalesce(is_inexact(exact.getField(each.name), each.dataType), functions.lit(False))
            for each in type_.fields
            if has_decimal(each.dataType)
        ]
        return reduce(or_, found)
    if isinstance(type_, ArrayType):
        element = type_.elementType
        return functions.exists(exact, lambda each: functions.coalesce(is_inexact(each, element), functions.lit(False)))
    if isinstance(type_, MapType):
        return is_inexact(functions.map_values(exact), ArrayType(type_.valueType))
    narrow = exact.try_cast(type_)
    if _scale(type_) > type_.scale:
        return exact != narrow
    return exact.try_cast("double") != narrow.cast("double")


def _scale(type_: DecimalType) -> int:
    """The most digits behind the point beside as many before it as the type has."""
    digits: int = DIGITS_MAX - (type_.precision - type_.scale)
    return digits
