"""Meanings of column names at a place of a statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from kafscale.spark.duckdb.kinds import NotAlike, TypedColumn, ValueKind


@attrs.frozen(kw_only=True)
class Expression:
    """SQL for DuckDB. `name` is Spark's name for a column of this expression; None if it is unknown.

    bare_name: the name of a column of the whole expression, if it is another: a CAST of a column keeps the column's
    name. literal: the value of a constant; microseconds of a timestamp and an interval.
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
        """Tell whether a name is the relation's; case does not matter."""
        return self.alias is not None and self.alias.lower() == name.lower()

    def expression(self, column: TypedColumn) -> Expression:
        """Return one of its columns. Raises NotAlike for an unknown kind."""
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
        """Iterate over the columns, and fields of structs, that a name may mean."""
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
