"""Types of values, as far as rules tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import attrs
import pyarrow as pa

from kafscale.spark.quick.errors import NotAlike


class Kind(StrEnum):
    """OTHER are lists and maps, which are only passed on."""

    BOOLEAN = "boolean"
    INT = "int"
    BIGINT = "bigint"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    TIMESTAMP = "timestamp"
    DATE = "date"
    INTERVAL = "interval"
    NULL = "void"
    STRUCT = "struct"
    OTHER = "other"


INTEGERS = frozenset((Kind.INT, Kind.BIGINT))
NUMBERS = INTEGERS | {Kind.DOUBLE, Kind.DECIMAL}
UNCOMPARED = frozenset((Kind.STRUCT, Kind.OTHER, Kind.INTERVAL))
UNSHOWN = frozenset((Kind.INTERVAL,))

_KINDS = {
    pa.bool_(): Kind.BOOLEAN,
    pa.int32(): Kind.INT,
    pa.int64(): Kind.BIGINT,
    pa.float64(): Kind.DOUBLE,
    pa.string(): Kind.STRING,
    pa.binary(): Kind.BINARY,
    pa.timestamp("us", tz="UTC"): Kind.TIMESTAMP,
    pa.date32(): Kind.DATE,
}


@attrs.frozen(kw_only=True)
class Column:
    """A column of a table or a field of a struct, of which `fields` are the fields; None if it is one of no known kind.

    `sql` is its name in the SQL for DuckDB.
    """

    name: str
    sql: str
    kind: Kind | None
    fields: Sequence[Column] = ()

    @classmethod
    def of(cls, name: str, type_: pa.DataType) -> Column:
        """Make the column of a name and an Arrow type."""
        fields = [cls.of(each.name, each.type) for each in type_] if pa.types.is_struct(type_) else []
        return cls(name=name, sql=quoted(name), kind=_kind(type_, fields), fields=fields)


def _kind(type_: pa.DataType, fields: Sequence[Column]) -> Kind | None:
    if pa.types.is_struct(type_):
        return None if any(each.kind is None for each in fields) else Kind.STRUCT
    if pa.types.is_map(type_):
        parts = [type_.key_type, type_.item_type]
    elif pa.types.is_list(type_):
        parts = [type_.value_type]
    else:
        return Kind.DECIMAL if pa.types.is_decimal128(type_) else _KINDS.get(type_)
    return None if any(Column.of("", part).kind is None for part in parts) else Kind.OTHER


def common(kinds: Sequence[Kind]) -> Kind:
    """Return the kind of what may be one of these values. Raises NotAlike unless Spark and DuckDB agree on it."""
    found = {each for each in kinds if each is not Kind.NULL}
    if len(found) <= 1:
        return next(iter(found), Kind.NULL)
    if found == INTEGERS:
        return Kind.BIGINT
    raise NotAlike(f"values of several types meet ({', '.join(sorted(found))})")


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'
