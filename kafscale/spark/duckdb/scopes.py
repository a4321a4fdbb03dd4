"""What names of columns mean at a place of a statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from kafscale.spark.duckdb.kinds import Column, Kind, NotAlike


@attrs.frozen(kw_only=True)
class Expression:
    """SQL for DuckDB. `name` is that of a column that is nothing but this, as Spark gives it; None if it is not known.

    bare_name: that of a column which is the expression and nothing else, if it is another one: a CAST of a column keeps
    the column's. literal: the value of a constant; microseconds of a timestamp and an interval.
    """

    sql: str
    kind: Kind
    name: str | None = None
    fields: Sequence[Column] = ()
    literal: str | int | None = None
    bare_name: str | None = None


@attrs.frozen(kw_only=True)
class Relation:
    """What stands behind FROM. `sql` is its name there; `alias` the one that the statement knows it by."""

    sql: str
    alias: str | None
    columns: Sequence[Column]

    def is_called(self, name: str) -> bool:
        """Tell whether a name is that of the relation; case does not matter."""
        return self.alias is not None and self.alias.lower() == name.lower()

    def expression(self, column: Column) -> Expression:
        """Return a column of it. Raises NotAlike for one of no known kind."""
        return _expression(f"{self.sql}.{column.sql}", column, column.name)


@attrs.frozen(kw_only=True)
class Scope:
    """Relations, and names of results that stand in for columns where there is none of the name."""

    relations: Sequence[Relation] = ()
    results: Mapping[str, Expression] = attrs.field(factory=dict)
    results_first: bool = False

    def find(self, parts: Sequence[str]) -> Expression:
        """Return what a name with points means. Raises NotAlike."""
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
        """Iterate over the columns, and fields of such, that a name may mean."""
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


def _field(sql: str, column: Column, parts: Sequence[str], depth: int) -> Iterator[Expression]:
    if depth == len(parts):
        yield _expression(sql, column, parts[-1])
        return
    for each in column.fields:
        if each.name.lower() == parts[depth].lower():
            yield from _field(f"{sql}.{each.sql}", each, parts, depth + 1)


def _expression(sql: str, column: Column, name: str) -> Expression:
    if column.kind is None:
        raise NotAlike(f"of the type of column '{column.name}' no rule tells")
    return Expression(sql=sql, kind=column.kind, name=name, fields=column.fields)
