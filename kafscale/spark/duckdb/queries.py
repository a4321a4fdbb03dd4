"""SELECT, joins, common table expressions and set operations, as SQL for DuckDB.

Columns of each query are named by their places (`c0`, `c1`, …), as names may repeat, or mean something else to DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

import attrs

from kafscale.spark.duckdb.expressions import Expressions, Subquery
from kafscale.spark.duckdb.functions import check_compared
from kafscale.spark.duckdb.kinds import (
    Expression,
    NotAlike,
    QueryScope,
    Relation,
    TypedColumn,
    ValueKind,
    common,
)
from kafscale.spark.duckdb.parser import FIELDS, ParsedNode
from kafscale.spark.duckdb.scans import TotalExpressions, exact_bounds, grouping_columns
from kafscale.spark.source.planning import QueryBounds

JOINS = {"INNER": "JOIN", "LEFT": "LEFT JOIN", "RIGHT": "RIGHT JOIN", "FULL": "FULL JOIN"}
SELECT = (
    *("modifiers", "cte_map", "select_list", "from_table", "where_clause"),
    *("group_expressions", "group_sets", "having", "aggregate_handling"),
)
UNNAMED = ""  # only Spark knows how it names such a column


@attrs.frozen(kw_only=True)
class Table:
    """The table that a name behind FROM means. `totals` makes SQL of its totals within bounds, if there are any."""

    sql: str
    columns: Sequence[TypedColumn]
    name: str
    totals: Callable[[QueryBounds], str] | None = None


Tables = Mapping[str, Table]


@attrs.frozen(kw_only=True)
class Queries:
    """Queries of one statement. `topic` and `call` make tables of names that are not common table expressions."""

    topic: Callable[[ParsedNode], Table]
    call: Callable[[ParsedNode], Table]
    now_us: int
    _numbers: Iterator[int] = attrs.field(factory=count, init=False)

    def query(self, node: ParsedNode, tables: Tables | None = None) -> Subquery:
        tables = tables or {}
        opening, tables = self._common_tables(node, tables)
        if node.type == "SELECT_NODE":
            made = self._select(node.only(*SELECT), tables)
        elif node.type == "SET_OPERATION_NODE":
            made = self._set_operation(node.only("modifiers", "cte_map", "setop_type", "setop_all", "children"), tables)
        else:
            raise NotAlike("it is not a plain query")
        return Subquery(sql=opening + made.sql, columns=made.columns)

    def _common_tables(self, node: ParsedNode, tables: Tables) -> tuple[str, Tables]:
        parts: list[str] = []
        for entry in (node.raw("cte_map") or {}).get("map", []):
            value = ParsedNode(entry["value"]).only("materialized", "query_node")
            found = self.query(value.node("query_node"), tables)
            name = f"cte{next(self._numbers)}"
            parts.append(f"{name} AS ({found.sql})")
            tables = {**tables, entry["key"].lower(): Table(sql=name, columns=found.columns, name=entry["key"])}
        return f"WITH {', '.join(parts)} " if parts else "", tables

    # ---- SELECT -----------------------------------------------------------------------------------------------------

    def _select(self, node: ParsedNode, tables: Tables) -> Subquery:
        if node.text("aggregate_handling") != "STANDARD_HANDLING":
            raise NotAlike("GROUP BY ALL is Spark's")
        try:
            found = self._select_totals(node, tables)
        except NotAlike:
            found = None
        return found or self._select_records(node, tables)

    def _select_records(self, node: ParsedNode, tables: Tables) -> Subquery:
        source, relations = self._from(node.node("from_table"), tables)
        scope = QueryScope(relations=relations)
        if node.has("where_clause"):
            source += f" WHERE {self._expressions(scope, tables).condition(node.node('where_clause')).sql}"
        return self._selected(node, source, scope, lambda scope: self._expressions(scope, tables))

    def _select_totals(self, node: ParsedNode, tables: Tables) -> Subquery | None:
        """Return SQL of a topic's totals; None, or NotAlike, if they lack the answer."""
        source = node.node("from_table")
        if source.type not in ("BASE_TABLE", "TABLE_FUNCTION"):
            return None
        table = self._table(source, tables)
        if table.totals is None:
            return None
        alias = f"r{next(self._numbers)}"
        relation = Relation(sql=alias, alias=source.alias or table.name or None, columns=table.columns)
        of_records = self._expressions(QueryScope(relations=[relation]), tables)
        bounds = exact_bounds(node.node("where_clause"), of_records) if node.has("where_clause") else QueryBounds()
        calls: list[str] = []

        def expressions(scope: QueryScope) -> Expressions:
            return TotalExpressions(
                **attrs.asdict(self._expressions(scope, tables), recurse=False),
                of_records=of_records,
                sql=alias,
                calls=calls,
            )

        scope = QueryScope(relations=[attrs.evolve(relation, columns=grouping_columns(table.columns))])
        made = self._selected(node, "FROM {} AS " + alias, scope, expressions)
        if not calls:
            return None
        return attrs.evolve(made, sql=made.sql.replace("FROM {} AS", f"FROM {table.totals(bounds)} AS", 1))

    def _selected(
        self, node: ParsedNode, source: str, scope: QueryScope, expressions: Callable[[QueryScope], Expressions]
    ) -> Subquery:
        """Return SQL of a SELECT behind its FROM and WHERE."""
        items = list(self._items(node.nodes("select_list"), scope, expressions(scope)))
        results = {item.name.lower(): item.expression for item in items}
        inner = expressions(attrs.evolve(scope, results=results))
        clauses = [source]
        if node.has("group_expressions"):
            clauses.append(f"GROUP BY {', '.join(self._groups(node, inner, items))}")
        if node.has("having"):
            clauses.append(f"HAVING {inner.condition(node.node('having')).sql}")
        outer = expressions(attrs.evolve(scope, results=results, results_first=True))
        is_distinct, ending = self._modifiers(node.nodes("modifiers"), outer, items)
        listed = ", ".join(f"{item.expression.sql} AS c{index}" for index, item in enumerate(items))
        sql = f"SELECT {'DISTINCT ' if is_distinct else ''}{listed} {' '.join(clauses)}{ending}"
        columns = [
            TypedColumn(name=item.name, sql=f"c{index}", kind=item.expression.kind, fields=item.expression.fields)
            for index, item in enumerate(items)
        ]
        return Subquery(sql=sql, columns=columns)

    def _expressions(self, scope: QueryScope, tables: Tables) -> Expressions:
        return Expressions(
            scope=scope, subquery=lambda inner: self.query(inner.node("node"), tables), now_us=self.now_us
        )

    def _items(self, nodes: Sequence[ParsedNode], scope: QueryScope, expressions: Expressions) -> Iterator[Item]:
        for node in nodes:
            if node.type == "STAR":
                yield from _star(scope, node.only("relation_name").raw("relation_name"))
                continue
            if node.text("function_name") == FIELDS:
                yield from _fields(expressions.of(node.nodes("arguments")[0].node("expression")))
                continue
            found = expressions.of(node)
            name = node.alias or found.bare_name or found.name or UNNAMED
            if found.kind is ValueKind.INTERVAL:
                raise NotAlike(f"{found.kind} is shown by Spark in its own way")
            yield Item(name=name, expression=found)

    def _groups(self, node: ParsedNode, expressions: Expressions, items: Sequence[Item]) -> Iterator[str]:
        groups = node.nodes("group_expressions")
        if node.raw("group_sets") != [list(range(len(groups)))]:
            raise NotAlike("sets of groups are Spark's")
        for group in groups:
            number = _number(group, items)
            found = expressions.of(group) if number is None else items[number].expression
            check_compared(found)
            yield f"({found.sql})"

    def _modifiers(
        self, nodes: Sequence[ParsedNode], expressions: Expressions, items: Sequence[Item]
    ) -> tuple[bool, str]:
        is_distinct, ending = False, ""
        for node in nodes:
            if node.type == "ORDER_MODIFIER":
                ending += f" ORDER BY {', '.join(self._orders(node.only('orders'), expressions, items))}"
            elif node.type == "LIMIT_MODIFIER":
                ending += _limit(node.only("limit", "offset"))
            elif node.type == "DISTINCT_MODIFIER":
                is_distinct = bool(node.only())
                check_compared(*(item.expression for item in items))
            else:
                raise NotAlike(f"{node.type} is Spark's")
        return is_distinct, ending

    def _orders(self, node: ParsedNode, expressions: Expressions, items: Sequence[Item]) -> Iterator[str]:
        for order in node.nodes("orders"):
            by = order.only("null_order", "expression").node("expression")
            number = _number(by, items)
            if number is None:
                number = _result(by, items)
            found = expressions.of(by) if number is None else items[number].expression
            check_compared(found)
            sql = f"({found.sql})" if number is None else f"c{number}"
            is_descending = order.type == "DESCENDING"
            nulls = order.text("null_order")
            if nulls not in ("NULLS FIRST", "NULLS LAST"):
                nulls = "NULLS LAST" if is_descending else "NULLS FIRST"
            yield f"{sql} {'DESC' if is_descending else 'ASC'} {nulls}"

    # ---- FROM -------------------------------------------------------------------------------------------------------

    def _from(self, node: ParsedNode, tables: Tables) -> tuple[str, Sequence[Relation]]:
        if node.type == "EMPTY":
            return "", []
        sql, relations = self._source(node, tables)
        return f"FROM {sql}", relations

    def _source(self, node: ParsedNode, tables: Tables) -> tuple[str, Sequence[Relation]]:
        if node.type == "JOIN":
            return self._join(node, tables)
        if node.type == "SUBQUERY":
            found = self.query(node.only("subquery").node("subquery").only("node").node("node"), tables)
            table = Table(sql=f"({found.sql})", columns=found.columns, name="")
        else:
            table = self._table(node, tables)
        relation = Relation(
            sql=f"r{next(self._numbers)}", alias=node.alias or table.name or None, columns=table.columns
        )
        return f"{table.sql} AS {relation.sql}", [relation]

    def _table(self, node: ParsedNode, tables: Tables) -> Table:
        if node.type == "TABLE_FUNCTION":
            return self.call(node)
        if node.type != "BASE_TABLE":
            raise NotAlike(f"{node.type.lower().replace('_', ' ')} is Spark's")
        path = (
            node.only("table_name", "schema_name", "catalog_name", "qualified_name").node("qualified_name").raw("path")
        )
        known = tables.get(path[0].lower()) if len(path) == 1 else None
        return known or self.topic(node)

    def _join(self, node: ParsedNode, tables: Tables) -> tuple[str, Sequence[Relation]]:
        node.only("left", "right", "condition", "join_type", "ref_type", "is_implicit")
        left, left_relations = self._source(node.node("left"), tables)
        right, right_relations = self._source(node.node("right"), tables)
        relations = [*left_relations, *right_relations]
        if node.text("ref_type") == "CROSS" and not node.has("condition"):
            return f"({left} CROSS JOIN {right})", relations
        word = JOINS.get(node.text("join_type"))
        if word is None or node.text("ref_type") != "REGULAR" or not node.has("condition"):
            raise NotAlike(f"a join of the kind {node.text('join_type')}, {node.text('ref_type')} is Spark's")
        condition = self._expressions(QueryScope(relations=relations), tables).condition(node.node("condition"))
        return f"({left} {word} {right} ON {condition.sql})", relations

    # ---- UNION and its like ------------------------------------------------------------------------------------------

    def _set_operation(self, node: ParsedNode, tables: Tables) -> Subquery:
        kind, is_all = node.text("setop_type"), node.raw("setop_all") is not False
        if kind not in ("UNION", "EXCEPT", "INTERSECT") or (is_all and kind != "UNION"):
            raise NotAlike(f"{kind} is Spark's in this form")
        parts = [self.query(child, tables) for child in node.nodes("children")]
        if len({len(part.columns) for part in parts}) > 1:
            raise NotAlike(f"{kind} is of queries with several numbers of columns")
        columns = [_one_of(same) for same in zip(*(part.columns for part in parts), strict=True)]
        word = f" {kind}{' ALL' if is_all else ''} "
        inner = word.join(f"(SELECT * FROM ({part.sql}))" for part in parts)
        relation = Relation(sql=f"r{next(self._numbers)}", alias=None, columns=columns)
        items = [Item(name=column.name, expression=relation.expression(column)) for column in columns]
        if not is_all:
            check_compared(*(item.expression for item in items))
        is_distinct, ending = self._modifiers(
            node.nodes("modifiers"), self._expressions(QueryScope(relations=[relation]), tables), items
        )
        if is_distinct:
            raise NotAlike("DISTINCT of a set operation is Spark's")
        return Subquery(sql=f"SELECT * FROM ({inner}) AS {relation.sql}{ending}", columns=columns)


@attrs.frozen(kw_only=True)
class Item:
    name: str
    expression: Expression


def _star(scope: QueryScope, relation_name: str | None) -> Iterator[Item]:
    relations = [relation for relation in scope.relations if relation_name is None or relation.is_called(relation_name)]
    if relation_name is not None and not relations:
        yield from _fields(scope.find([relation_name]))
        return
    if not relations or (relation_name is not None and len(relations) > 1):
        raise NotAlike("a * is of no table, or of several")
    for relation in relations:
        for column in relation.columns:
            yield Item(name=column.name, expression=relation.expression(column))


def _fields(struct: Expression) -> Iterator[Item]:
    """Yield the fields of a struct as columns. Raises NotAlike if it is not one."""
    if struct.kind is not ValueKind.STRUCT:
        raise NotAlike("a * is of no table, or of several")
    for field in struct.fields:
        assert field.kind is not None  # or the struct would be of no known kind
        found = Expression(sql=f"{struct.sql}.{field.sql}", kind=field.kind, name=field.name, fields=field.fields)
        yield Item(name=field.name, expression=found)


def _number(node: ParsedNode, items: Sequence[Item]) -> int | None:
    if node.type != "VALUE_CONSTANT" or node.raw("literal").get("kind") != "INTEGER":
        return None
    number = int(node.raw("literal").get("text", "0"))
    if not 1 <= number <= len(items):
        raise NotAlike(f"there is no column {number}")
    return number - 1


def _result(node: ParsedNode, items: Sequence[Item]) -> int | None:
    """Return the column of a result that a single name means. Raises NotAlike if there are several."""
    parts = node.raw("column_names") if node.type == "COLUMN_REF" else None
    if parts is None or len(parts) != 1:
        return None
    places = [index for index, item in enumerate(items) if item.name.lower() == parts[0].lower()]
    if len({items[place].expression.sql for place in places}) > 1:
        raise NotAlike(f"several columns '{parts[0]}' can be told")
    return places[0] if places else None


def _limit(node: ParsedNode) -> str:
    texts = []
    for name in ("limit", "offset"):
        if node.has(name):
            literal = node.node(name).raw("literal") or {}
            if literal.get("kind") != "INTEGER" or not str(literal.get("text", "")).isdigit():
                raise NotAlike("LIMIT is of no number")
            texts.append(f" {name.upper()} {literal['text']}")
    return "".join(texts)


def _one_of(columns: Sequence[TypedColumn]) -> TypedColumn:
    kinds = [column.kind for column in columns]
    if None in kinds or any(column.fields for column in columns):
        raise NotAlike("a set operation is of structs")
    kind = common([kind for kind in kinds if kind is not None])
    return attrs.evolve(columns[0], kind=kind)
