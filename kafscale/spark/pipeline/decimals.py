"""Whether numbers of JSON fit into decimals: Spark's parser rounds what has more digits behind the point.

They are parsed once more, with as many digits as Spark's decimals can have. This module imports pyspark.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, functions
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

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
