"""Arrow's types by Spark's names."""

from __future__ import annotations

import pyarrow as pa

NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
}


def spark_name(type_: pa.DataType) -> str:
    """Return the name that Spark's DESCRIBE gives a type."""
    if pa.types.is_struct(type_):
        return f"struct<{','.join(f'{each.name}:{spark_name(each.type)}' for each in type_)}>"
    if pa.types.is_map(type_):
        return f"map<{spark_name(type_.key_type)},{spark_name(type_.item_type)}>"
    if pa.types.is_list(type_):
        return f"array<{spark_name(type_.value_type)}>"
    if pa.types.is_timestamp(type_):
        return "timestamp_ntz" if type_.tz is None else "timestamp"
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    return NAMES.get(type_, str(type_))
