"""Kinds of values, meanings of column names, and errors for statements that only Spark answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import attrs
import pyarrow as pa


class NotAlike(Exception):
    """A statement that only Spark answers; the message is the reason, as a sentence's part behind "because"."""


class NoTable(NotAlike):
    def __init__(self, name: str) -> None:
        super().__init__(f"'{name}' is not a topic")
        self.name = name


class TooMuch(NotAlike):
    """A statement would read more than this engine may."""


class ValueKind(StrEnum):
    """The kind of a value, by Spark's name. OTHER are lists and maps, which are only passed on."""

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


INTEGERS = frozenset((ValueKind.INT, ValueKind.BIGINT))
NUMBERS = INTEGERS | {ValueKind.DOUBLE, ValueKind.DECIMAL}
UNCOMPARED = frozenset((ValueKind.STRUCT, ValueKind.OTHER, ValueKind.INTERVAL))

_KINDS = {
    pa.bool_(): ValueKind.BOOLEAN,
    pa.int32(): ValueKind.INT,
    pa.int64(): ValueKind.BIGINT,
    pa.float64(): ValueKind.DOUBLE,
    pa.string(): ValueKind.STRING,
    pa.binary(): ValueKind.BINARY,
    pa.timestamp("us", tz="UTC"): ValueKind.TIMESTAMP,
    pa.date32(): ValueKind.DATE,
}


@attrs.frozen(kw_only=True)
class TypedColumn:
    """A column, or a field of a struct, by its `sql` for DuckDB; `kind` is None if it is unknown."""

    name: str
    sql: str
    kind: ValueKind | None
    fields: Sequence[TypedColumn] = ()

    @classmethod
    def of(cls, name: str, type_: pa.DataType) -> TypedColumn:
        fields = [cls.of(field.name, field.type) for field in type_] if pa.types.is_struct(type_) else []
        return cls(name=name, sql=quoted(name), kind=_kind(type_, fields), fields=fields)


def _kind(type_: pa.DataType, fields: Sequence[TypedColumn]) -> ValueKind | None:
    if pa.types.is_struct(type_):
        return None if any(field.kind is None for field in fields) else ValueKind.STRUCT
    if pa.types.is_map(type_):
        parts = [type_.key_type, type_.item_type]
    elif pa.types.is_list(type_):
        parts = [type_.value_type]
    else:
        return ValueKind.DECIMAL if pa.types.is_decimal128(type_) else _KINDS.get(type_)
    return None if any(TypedColumn.of("", part).kind is None for part in parts) else ValueKind.OTHER


def common(kinds: Sequence[ValueKind]) -> ValueKind:
    """Return the common kind of several values. Raises NotAlike unless Spark and DuckDB agree on it."""
    found = {kind for kind in kinds if kind is not ValueKind.NULL}
    if len(found) <= 1:
        return next(iter(found), ValueKind.NULL)
    if found == INTEGERS:
        return ValueKind.BIGINT
    raise NotAlike(f"values of several types meet ({', '.join(sorted(found))})")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def single_quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


NAMES = {**_KINDS, pa.int8(): "tinyint", pa.int16(): "smallint", pa.float32(): "float"}


def spark_name(type_: pa.DataType) -> str:
    """Return the name that Spark's DESCRIBE gives a type."""
    if pa.types.is_struct(type_):
        return f"struct<{','.join(f'{field.name}:{spark_name(field.type)}' for field in type_)}>"
    if pa.types.is_map(type_):
        return f"map<{spark_name(type_.key_type)},{spark_name(type_.item_type)}>"
    if pa.types.is_list(type_):
        return f"array<{spark_name(type_.value_type)}>"
    if pa.types.is_timestamp(type_):
        return "timestamp_ntz" if type_.tz is None else "timestamp"
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    return str(NAMES.get(type_, type_))


@attrs.frozen(kw_only=True)
class Expression:
    """SQL for DuckDB. `name` is Spark's name for a column of this expression; None if it is unknown.

    bare_name: the name if it is the whole expression: a CAST of a column keeps the column's name. literal: the value of
    a constant; microseconds of a timestamp and an interval.
    """

    sql: str
    kind: ValueKind
    name: str | None = None
    fields: Sequence[TypedColumn] = ()
    literal: str | int | None = None
    bare_name: str | None = None


@attrs.frozen(kw_only=True)
class Relation:
    """A relation behind FROM. `sql` is its name there; `alias` its name in the statement."""

    sql: str
    alias: str | None
    columns: Sequence[TypedColumn]

    def is_called(self, name: str) -> bool:
        return self.alias is not None and self.alias.lower() == name.lower()

    def expression(self, column: TypedColumn) -> Expression:
        """Raises NotAlike for an unknown kind."""
        return _expression(f"{self.sql}.{column.sql}", column, column.name)


@attrs.frozen(kw_only=True)
class QueryScope:
    """Relations, and names of results, which stand in for missing columns."""

    relations: Sequence[Relation] = ()
    results: Mapping[str, Expression] = attrs.field(factory=dict)
    results_first: bool = False

    def find(self, parts: Sequence[str]) -> Expression:
        """Return the expression that a name with points means. Raises NotAlike."""
        result = self.results.get(parts[0].lower()) if len(parts) == 1 else None
        if result is not None and self.results_first:
            return result
        found = list(self.columns(parts))
        if not found and result is not None:
            return result
        if len(found) != 1:
            told = "no column" if not found else "several columns"
            raise NotAlike(f"{told} '{'.'.join(parts)}' can be told")
        return found[0]

    def columns(self, parts: Sequence[str]) -> Iterator[Expression]:
        qualified = [
            field
            for relation in self.relations
            if len(parts) > 1 and relation.is_called(parts[0])
            for field in _of(relation, parts[1:])
        ]
        yield from qualified or (field for relation in self.relations for field in _of(relation, parts))


def _of(relation: Relation, parts: Sequence[str]) -> Iterator[Expression]:
    for column in relation.columns:
        if column.name.lower() == parts[0].lower():
            yield from _field(f"{relation.sql}.{column.sql}", column, parts, 1)


def _field(sql: str, column: TypedColumn, parts: Sequence[str], depth: int) -> Iterator[Expression]:
    if depth == len(parts):
        yield _expression(sql, column, parts[-1])
        return
    for field in column.fields:
        if field.name.lower() == parts[depth].lower():
            yield from _field(f"{sql}.{field.sql}", field, parts, depth + 1)


def _expression(sql: str, column: TypedColumn, name: str) -> Expression:
    if column.kind is None:
        raise NotAlike(f"of the type of column '{column.name}' no rule tells")
    return Expression(sql=sql, kind=column.kind, name=name, fields=column.fields)
