"""Expressions: from DuckDB's tree to SQL that DuckDB answers as Spark answers the statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from kafscale.spark.duckdb import functions
from kafscale.spark.duckdb.functions import composed, named
from kafscale.spark.duckdb.kinds import INTEGERS, Expression, NotAlike, QueryScope, TypedColumn, ValueKind, common
from kafscale.spark.duckdb.parser import ParsedNode

CALL = ("function_name", "qualified_name", "arguments", "is_operator", "distinct", "order_bys")
_CAST_TO = ("STRING", "BIGINT", "INT", "DOUBLE", "TIMESTAMP", "DATE")
TYPES = {
    **{name.lower(): ValueKind[name] for name in _CAST_TO},
    "varchar": ValueKind.STRING,
    "long": ValueKind.BIGINT,
    "integer": ValueKind.INT,
}


@attrs.frozen(kw_only=True)
class Subquery:
    sql: str
    columns: Sequence[TypedColumn]


@attrs.frozen(kw_only=True)
class Expressions:
    """Expressions of one SELECT. now_us: the time of the statement, in microseconds."""

    scope: QueryScope
    subquery: Callable[[ParsedNode], Subquery]
    now_us: int

    def of(self, node: ParsedNode) -> Expression:
        """Translate an expression. Raises NotAlike."""
        rule = _RULES.get(node.type) or _RULES.get(node.text("class"))
        if rule is None:
            raise NotAlike(f"of {node.type.lower().replace('_', ' ')} no rule tells")
        return rule(self, node)

    def condition(self, node: ParsedNode) -> Expression:
        found = self.of(node)
        if found.kind not in (ValueKind.BOOLEAN, ValueKind.NULL):
            raise NotAlike(f"a condition is of {found.kind}")
        return found

    def _column(self, node: ParsedNode) -> Expression:
        parts = node.only("column_names").raw("column_names")
        try:
            return self.scope.find(parts)
        except NotAlike:
            if len(parts) == 1 and parts[0].lower() == "current_timestamp":
                return functions.timestamp(self.now_us, "current_timestamp()")
            raise

    def _call(self, node: ParsedNode) -> Expression:
        node.only(*CALL)
        name = node.text("function_name").lower()
        found = functions.interval(node)
        if found is not None:
            return found
        if name == "count_star":
            return Expression(sql="count(*)", kind=ValueKind.BIGINT, name="count(1)")
        arguments = [self.of(argument.only("expression").node("expression")) for argument in node.nodes("arguments")]
        if name in ("now", "current_timestamp") and not arguments:
            return functions.timestamp(self.now_us, f"{name}()")
        return functions.called(name, arguments, is_distinct=node.has("distinct"))

    def _comparison(self, node: ParsedNode) -> Expression:
        node.only("left", "right")
        operator = functions.OPERATORS.get(node.type)
        if operator is None:
            raise NotAlike(f"of {node.type.lower().replace('_', ' ')} no rule tells")
        return functions.compared(operator, self.of(node.node("left")), self.of(node.node("right")))

    def _between(self, node: ParsedNode) -> Expression:
        node.only("input", "lower", "upper")
        value, lower, upper = (self.of(node.node(name)) for name in ("input", "lower", "upper"))
        above, below = functions.compared(">=", value, lower), functions.compared("<=", value, upper)
        name = named("between({}, {}, {})", value, lower, upper)
        return Expression(sql=f"({above.sql} AND {below.sql})", kind=ValueKind.BOOLEAN, name=name)

    def _conjunction(self, node: ParsedNode) -> Expression:
        word = node.only("children").type.removeprefix("CONJUNCTION_")
        parts = [self.condition(child) for child in node.nodes("children")]
        sql = f" {word} ".join(part.sql for part in parts)
        # Of more than two, DuckDB's parser does not tell which were in parentheses.
        name = named("({} {} {})", parts[0], word, parts[1]) if len(parts) == 2 else None
        return Expression(sql=f"({sql})", kind=ValueKind.BOOLEAN, name=name)

    def _not(self, node: ParsedNode) -> Expression:
        [child] = node.only("children").nodes("children")
        found = self.condition(child)
        return composed("(NOT {})", found, kind=ValueKind.BOOLEAN)

    def _is_null(self, node: ParsedNode) -> Expression:
        word = "IS NULL" if node.type == "OPERATOR_IS_NULL" else "IS NOT NULL"
        [value] = map(self.of, node.only("children").nodes("children"))
        return composed("({} {})", value, word, kind=ValueKind.BOOLEAN)

    def _in(self, node: ParsedNode) -> Expression:
        value, *others = map(self.of, node.only("children").nodes("children"))
        return functions.one_of(value, others, is_not=node.type == "COMPARE_NOT_IN")

    def _coalesce(self, node: ParsedNode) -> Expression:
        arguments = [self.of(child) for child in node.only("children").nodes("children")]
        return functions.called("coalesce", arguments, is_distinct=False)

    def _case(self, node: ParsedNode) -> Expression:
        parts = []
        for check in node.only("case_checks", "else_expr").nodes("case_checks"):
            when = self.condition(check.only("when_expr", "then_expr").node("when_expr"))
            value = self.of(check.node("then_expr"))
            parts.append(composed("WHEN {} THEN {}", when, value, kind=value.kind))
        if node.has("else_expr") and node.node("else_expr").has("query_location"):  # or the parser made it up
            otherwise = self.of(node.node("else_expr"))
            parts.append(composed("ELSE {}", otherwise, kind=otherwise.kind))
        kind = common([part.kind for part in parts])
        made = composed(f"CASE {' '.join('{}' for _ in parts)} END", *parts, kind=kind)
        return attrs.evolve(made, sql=f"({made.sql})")

    def _cast(self, node: ParsedNode) -> Expression:
        node.only("child", "type_expr")
        type_ = node.node("type_expr").only("type_name", "qualified_name").text("type_name").lower()
        kind, value = TYPES.get(type_), self.of(node.node("child"))
        if kind is None:
            raise NotAlike(f"{type_.upper()} is Spark's")
        if kind is ValueKind.TIMESTAMP and isinstance(value.literal, str):
            return functions.timestamp_of(value.literal)
        sql = _casted(value, kind)
        is_column = node.node("child").type == "COLUMN_REF"
        name = named("CAST({} AS {})", value, kind.upper())
        return Expression(sql=sql, kind=kind, name=name, bare_name=value.name if is_column else None)

    def _subquery(self, node: ParsedNode) -> Expression:
        node.only("subquery_type", "subquery", "child", "comparison_type")
        found = self.subquery(node.node("subquery"))
        kind = node.text("subquery_type")
        if len(found.columns) != 1 or found.columns[0].kind is None:
            raise NotAlike("a query in a condition has several columns")
        result = Expression(sql=f"({found.sql})", kind=found.columns[0].kind)
        if kind == "SCALAR":
            return result
        if kind != "ANY" or node.text("comparison_type") not in ("COMPARE_EQUAL", ""):
            raise NotAlike(f"a query stands behind {kind}")
        value = self.of(node.node("child"))
        if value.kind is not result.kind and {value.kind, result.kind} != INTEGERS:
            raise NotAlike(f"{value.kind} meets {result.kind}")
        functions.aligned(value, result)
        return Expression(sql=f"({value.sql} IN {result.sql})", kind=ValueKind.BOOLEAN)


def _casted(value: Expression, kind: ValueKind) -> str:
    if value.kind is kind:
        return value.sql
    if kind is ValueKind.STRING:
        return functions.to_text(value)
    if value.kind is ValueKind.STRING and kind in INTEGERS:
        return f"CAST({functions.to_bigint(value)} AS {kind.upper()})"
    if value.kind is ValueKind.STRING and kind is ValueKind.DOUBLE:
        return functions.to_double(value)
    if value.kind in INTEGERS and kind in INTEGERS | {ValueKind.DOUBLE}:
        return f"CAST({value.sql} AS {kind.upper()})"
    if value.kind is ValueKind.TIMESTAMP and kind is ValueKind.DATE:
        return f"CAST({functions.of_four_digits(value)} AS DATE)"
    raise NotAlike(f"a CAST of {value.kind} to {kind} is Spark's")


_RULES: dict[str, Callable[[Expressions, ParsedNode], Expression]] = {
    "VALUE_CONSTANT": lambda _, node: functions.constant(node),
    "COLUMN_REF": Expressions._column,
    "FUNCTION": Expressions._call,
    "COMPARE_IN": Expressions._in,
    "COMPARE_NOT_IN": Expressions._in,
    "COMPARE_BETWEEN": Expressions._between,
    "COMPARISON": Expressions._comparison,
    "CONJUNCTION": Expressions._conjunction,
    "OPERATOR_NOT": Expressions._not,
    "OPERATOR_IS_NULL": Expressions._is_null,
    "OPERATOR_IS_NOT_NULL": Expressions._is_null,
    "OPERATOR_COALESCE": Expressions._coalesce,
    "CASE_EXPR": Expressions._case,
    "OPERATOR_CAST": Expressions._cast,
    "SUBQUERY": Expressions._subquery,
}
