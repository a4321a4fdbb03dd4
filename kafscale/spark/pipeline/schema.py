"""Changes a table's schema for new rows, fits rows to it, and finds JSON numbers that do not fit into decimals.

Allowed are new columns, int to long, float to double, and decimals with more digits before the point, as Iceberg
allows, in structs, arrays and maps too. Anything else is a SchemaConflict. Spark's JSON parser rounds numbers with more
digits behind the point than a decimal has; they are parsed once more with as many digits as possible. Imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any

import attrs
from pyspark.sql import Column, functions, types

from kafscale.errors import KafScaleError
from kafscale.spark.catalogs import quoted

WIDER: dict[type[types.DataType], type[types.DataType]] = {
    types.IntegerType: types.LongType,
    types.FloatType: types.DoubleType,
}


class SchemaConflict(KafScaleError):
    """The schemas of a value and its table do not fit. The message names the column."""


@attrs.frozen
class ColumnChange:
    """A column to add, or to widen."""

    path: tuple[str, ...]
    type: str
    adds: bool

    def sql(self, table: str) -> str:
        column = ".".join(quoted(name) for name in self.path)
        if self.adds:
            return f"ALTER TABLE {table} ADD COLUMN {column} {self.type}"
        return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {self.type}"


def relaxed(type_: types.DataType) -> types.DataType:
    """Return the type with everything nullable, so that later schemas may leave it out."""
    if isinstance(type_, types.StructType):
        return types.StructType([types.StructField(field.name, relaxed(field.dataType)) for field in type_.fields])
    if isinstance(type_, types.ArrayType):
        return types.ArrayType(relaxed(type_.elementType))
    if isinstance(type_, types.MapType):
        return types.MapType(relaxed(type_.keyType), relaxed(type_.valueType))
    return type_


def changes(table: types.StructType, rows: types.StructType, path: tuple[str, ...] = ()) -> Iterator[ColumnChange]:
    """Iterate over the changes that the table needs to take the rows. Raises SchemaConflict."""
    known = {field.name: field for field in table.fields}
    for field in rows.fields:
        inner = (*path, field.name)
        if field.name in known:
            yield from _changes(known[field.name].dataType, field.dataType, inner)
        else:
            yield ColumnChange(inner, sql_of(relaxed(field.dataType)), adds=True)
    there = {field.name for field in rows.fields}
    for field in table.fields:
        if field.name not in there and not field.nullable:
            raise SchemaConflict(
                f"the column {'.'.join((*path, field.name))} of the table is required, and rows lack it"
            )


def sql_of(type_: types.DataType) -> str:
    if isinstance(type_, types.StructType):
        inner = ", ".join(f"{quoted(field.name)}: {sql_of(field.dataType)}" for field in type_.fields)
        return f"STRUCT<{inner}>"
    if isinstance(type_, types.ArrayType):
        return f"ARRAY<{sql_of(type_.elementType)}>"
    if isinstance(type_, types.MapType):
        return f"MAP<{sql_of(type_.keyType)}, {sql_of(type_.valueType)}>"
    name: str = type_.simpleString()
    return name.upper()


def _changes(table: types.DataType, rows: types.DataType, path: tuple[str, ...]) -> Iterator[ColumnChange]:
    if isinstance(table, types.StructType) and isinstance(rows, types.StructType):
        yield from changes(table, rows, path)
    elif isinstance(table, types.ArrayType) and isinstance(rows, types.ArrayType):
        yield from _changes(table.elementType, rows.elementType, (*path, "element"))
    elif isinstance(table, types.MapType) and isinstance(rows, types.MapType):
        yield from _changes(table.keyType, rows.keyType, (*path, "key"))
        yield from _changes(table.valueType, rows.valueType, (*path, "value"))
    elif _is_wider(rows, table):
        yield ColumnChange(path, sql_of(rows), adds=False)
    elif table != rows and not _is_wider(table, rows):
        raise SchemaConflict(
            f"the column {'.'.join(path)} is {table.simpleString()} in the table and {rows.simpleString()} in the "
            "values: only new columns, int to long, float to double and decimals with more digits before the point are "
            "taken over"
        )


def _is_wider(type_: types.DataType, other: types.DataType) -> bool:
    """Tell whether Iceberg may widen another type to this one."""
    if isinstance(type_, types.DecimalType) and isinstance(other, types.DecimalType):
        return bool(type_.scale == other.scale and type_.precision > other.precision)
    return type(type_) is WIDER.get(type(other))


def fitted(rows: types.StructType, table: types.StructType) -> Sequence[Column]:
    """Return the table's columns, in its order, of rows; null where the rows lack one."""
    there = {field.name: field.dataType for field in rows.fields}
    return [
        _fit(functions.col(quoted(field.name)), there.get(field.name), field.dataType).alias(field.name)
        for field in table.fields
    ]


def _fit(column: Column, rows: types.DataType | None, table: types.DataType) -> Column:
    if rows is None:
        return functions.lit(None).cast(table)
    if isinstance(table, types.StructType) and isinstance(rows, types.StructType):
        there = {field.name: field.dataType for field in rows.fields}
        parts = [
            _fit(column.getField(field.name), there.get(field.name), field.dataType).alias(field.name)
            for field in table.fields
        ]
        return functions.when(column.isNotNull(), functions.struct(*parts))
    if isinstance(table, types.ArrayType) and isinstance(rows, types.ArrayType):
        element_rows, element_table = rows.elementType, table.elementType
        return functions.transform(column, lambda each: _fit(each, element_rows, element_table))
    if isinstance(table, types.MapType) and isinstance(rows, types.MapType):
        value_rows, value_table = rows.valueType, table.valueType
        return functions.transform_values(column, lambda _, each: _fit(each, value_rows, value_table))
    return column if rows == table else column.cast(table)


def member(struct: Column, type_: Any, path: str, sql: str) -> Column:
    """Return a member of a struct by its path; null if it is missing."""
    for name in path.split("."):
        if name not in getattr(type_, "names", ()):
            return functions.lit(None).cast(sql)
        struct, type_ = struct.getField(name), type_[name].dataType
    return struct.cast(sql)


DIGITS_MAX = 38


def has_decimal(type_: Any) -> bool:
    """Tell whether a type is a decimal, or has one within it."""
    if isinstance(type_, types.StructType):
        return any(has_decimal(field.dataType) for field in type_.fields)
    if isinstance(type_, types.ArrayType):
        return has_decimal(type_.elementType)
    return has_decimal(type_.valueType) if isinstance(type_, types.MapType) else isinstance(type_, types.DecimalType)


def exact_type(type_: Any) -> types.DataType:
    """Return the type with decimals of the most digits behind the point; without a spare digit, a double's text."""
    if isinstance(type_, types.StructType):
        return types.StructType([types.StructField(field.name, exact_type(field.dataType)) for field in type_.fields])
    if isinstance(type_, types.ArrayType):
        return types.ArrayType(exact_type(type_.elementType))
    if isinstance(type_, types.MapType):
        return types.MapType(type_.keyType, exact_type(type_.valueType))
    if isinstance(type_, types.DecimalType):
        return types.DecimalType(DIGITS_MAX, _scale(type_)) if _scale(type_) > type_.scale else types.StringType()
    found: types.DataType = type_
    return found


def is_inexact(exact: Column, type_: Any) -> Column:
    """Tell whether a value of `exact_type` changes in this type, which has a decimal; null without one."""
    if isinstance(type_, types.StructType):
        found = [
            functions.coalesce(is_inexact(exact.getField(field.name), field.dataType), functions.lit(False))
            for field in type_.fields
            if has_decimal(field.dataType)
        ]
        return reduce(or_, found)
    if isinstance(type_, types.ArrayType):
        element = type_.elementType
        return functions.exists(exact, lambda each: functions.coalesce(is_inexact(each, element), functions.lit(False)))
    if isinstance(type_, types.MapType):
        return is_inexact(functions.map_values(exact), types.ArrayType(type_.valueType))
    narrow = exact.try_cast(type_)
    if _scale(type_) > type_.scale:
        return exact != narrow
    return exact.try_cast("double") != narrow.cast("double")


def _scale(type_: types.DecimalType) -> int:
    """Return the most digits behind the point, besides as many before it as the type has."""
    digits: int = DIGITS_MAX - (type_.precision - type_.scale)
    return digits
