"""Literals, conversions of text, and comparisons of two values of one type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from kafscale.spark.duckdb.kinds import INTEGERS, NUMBERS, UNCOMPARED, NotAlike, ValueKind, single_quoted
from kafscale.spark.duckdb.parser import ParsedNode
from kafscale.spark.duckdb.scopes import Expression

INT_MAX, BIGINT_MAX = (1 << 31) - 1, (1 << 63) - 1
EPOCH = datetime.fromtimestamp(0, UTC)
MICROSECOND = timedelta(microseconds=1)
MICROSECONDS = {
    "to_weeks": 604_800_000_000,
    "to_days": 86_400_000_000,
    "to_hours": 3_600_000_000,
    "to_minutes": 60_000_000,
    "to_seconds": 1_000_000,
    "to_milliseconds": 1_000,
    "to_microseconds": 1,
}
# Strictly what Spark and DuckDB read alike; of anything else DuckDB raises an error, and Spark is asked.
INTEGER_PATTERN = r"[+-]?[0-9]{1,18}"
NUMBER_PATTERN = r"[+-]?[0-9]{1,15}([.][0-9]{1,15})?([eE][+-]?[0-9]{1,2})?"

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d(?:\.\d{1,6})?))?(Z)?")
_DECIMAL = re.compile(r"-?\d+\.\d+")


def constant(node: ParsedNode) -> Expression:
    """Translate a literal of the statement. Raises NotAlike."""
    literal = node.only("literal").raw("literal")
    kind, text = literal.get("kind"), str(literal.get("text", ""))
    if kind == "INTEGER":
        return integer(int(text))
    if kind == "NUMERIC" and _DECIMAL.fullmatch(text):
        return Expression(sql=text, kind=ValueKind.DECIMAL, name=text)
    if kind == "STRING":
        return Expression(sql=single_quoted(text), kind=ValueKind.STRING, name=text, literal=text)
    if kind == "BOOLEAN":
        return Expression(sql=text.lower(), kind=ValueKind.BOOLEAN, name=text.lower())
    if kind == "NULL_LITERAL":
        return Expression(sql="NULL", kind=ValueKind.NULL, name="NULL")
    raise NotAlike(f"the number {text} is Spark's")


def integer(value: int) -> Expression:
    """Make a whole number. Raises NotAlike for one that is too large."""
    if not -BIGINT_MAX <= value <= BIGINT_MAX:
        raise NotAlike(f"the number {value} is too large")
    kind = ValueKind.INT if -INT_MAX <= value <= INT_MAX else ValueKind.BIGINT
    return Expression(sql=str(value), kind=kind, name=str(value), literal=value)


def timestamp(microseconds: int, name: str | None = None) -> Expression:
    """Make a time of microseconds since 1970. Raises NotAlike unless its year has four digits."""
    try:
        moment = EPOCH + microseconds * MICROSECOND
    except OverflowError as exc:
        raise NotAlike("a time is out of range") from exc
    if moment.year < 1000:
        raise NotAlike("a time is out of range")
    sql = f"TIMESTAMPTZ '{moment.replace(tzinfo=None).isoformat(sep=' ', timespec='microseconds')}+00'"
    return Expression(sql=sql, kind=ValueKind.TIMESTAMP, name=name, literal=microseconds)


def timestamp_of(text: str) -> Expression:
    """Return the time that a text means, in UTC. Raises NotAlike."""
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise NotAlike(f"'{text}' is a time in a form of Spark's")
    try:
        moment = datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00:00'}").replace(tzinfo=UTC)
    except ValueError as exc:
        raise NotAlike(f"'{text}' is not a time") from exc
    return timestamp((moment - EPOCH) // MICROSECOND)


def interval(node: ParsedNode) -> Expression | None:
    """Translate `INTERVAL 15 MINUTES`, which DuckDB's parser makes a call; None for another call. Raises NotAlike."""
    unit = MICROSECONDS.get(node.text("function_name"))
    if unit is None:
        return None
    inner = node.only("function_name", "qualified_name", "arguments")
    while inner.type != "VALUE_CONSTANT":
        if inner.type == "OPERATOR_CAST":
            inner = inner.node("child")
        elif inner.has("arguments"):
            inner = inner.nodes("arguments")[0].node("expression")
        else:
            raise NotAlike("an interval is not a constant")
    text = str(inner.raw("literal").get("text", ""))
    if re.fullmatch(r"-?\d{1,9}", text) is None:
        raise NotAlike("an interval is not a whole number")
    microseconds = int(text) * unit
    return Expression(sql=f"to_microseconds({microseconds})", kind=ValueKind.INTERVAL, literal=microseconds)


def to_bigint(value: Expression) -> str:
    """Return SQL of a text as a whole number."""
    return _strict(value.sql, INTEGER_PATTERN, "BIGINT")


def to_double(value: Expression) -> str:
    """Return SQL of a value as a floating-point number."""
    return (
        _strict(value.sql, NUMBER_PATTERN, "DOUBLE")
        if value.kind is ValueKind.STRING
        else f"CAST({value.sql} AS DOUBLE)"
    )


def _strict(sql: str, pattern: str, type_: str) -> str:
    is_alike = f"regexp_full_match({sql}, '{pattern}')"
    refused = "error('a text is not read as a number by both alike')"
    return f"CASE WHEN {sql} IS NULL THEN NULL WHEN {is_alike} THEN CAST({sql} AS {type_}) ELSE {refused} END"


def to_text(value: Expression) -> str:
    """Return SQL of a value as a string, as Spark casts it. Raises NotAlike."""
    if value.kind in (ValueKind.STRING, ValueKind.NULL):
        return value.sql if value.kind is ValueKind.STRING else "CAST(NULL AS VARCHAR)"
    if value.kind is ValueKind.BINARY:
        return f"decode({value.sql})"
    if value.kind is ValueKind.TIMESTAMP:
        return f"CAST({of_four_digits(value)} AS VARCHAR)"
    if value.kind in (ValueKind.INT, ValueKind.BIGINT, ValueKind.BOOLEAN, ValueKind.DATE):
        return f"CAST({value.sql} AS VARCHAR)"
    raise NotAlike(f"{value.kind} is written by Spark as text in its own way")


def of_four_digits(value: Expression) -> str:
    """Return SQL of a time without its zone. Years without four digits fail, as engines write them differently."""
    local = f"({value.sql} AT TIME ZONE 'UTC')"
    return f"CASE WHEN year({local}) NOT BETWEEN 1000 AND 9999 THEN error('a year is out of range') ELSE {local} END"


OPERATORS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}


def compared(operator: str, left: Expression, right: Expression) -> Expression:
    """Translate `left operator right`, by DuckDB's sign. Raises NotAlike."""
    one, other = aligned(left, right)
    is_unequal = operator == "<>"
    name = named("({} {} {})", left, "=" if is_unequal else operator, right)
    if is_unequal and name is not None:
        name = f"(NOT {name})"
    return Expression(sql=f"({one} {operator} {other})", kind=ValueKind.BOOLEAN, name=name)


def one_of(value: Expression, others: Sequence[Expression], *, is_not: bool) -> Expression:
    """Translate `value IN (others)`. Raises NotAlike unless the others have one type."""
    if len({other.kind for other in others if other.kind not in INTEGERS | {ValueKind.NULL}}) > 1 or (
        any(other.kind in INTEGERS for other in others) and any(other.kind not in INTEGERS for other in others)
    ):
        raise NotAlike("the values of IN are of several types")
    pairs = [aligned(value, other) for other in others]
    listed = ", ".join(other for _, other in pairs)
    word = "NOT IN" if is_not else "IN"
    name = named("({} IN ({}))", value, ", ".join(other.name or "" for other in others))
    if is_not and name is not None:
        name = f"(NOT {name})"
    return Expression(sql=f"({pairs[0][0]} {word} ({listed}))", kind=ValueKind.BOOLEAN, name=name)


def aligned(left: Expression, right: Expression) -> tuple[str, str]:
    """Return SQL of both as values of one type. Raises NotAlike."""
    check_compared(left, right)
    one, other = _sql(left, right), _sql(right, left)
    if one is None or other is None:
        raise NotAlike(f"{left.kind} meets {right.kind}")
    return one, other


def check_compared(*values: Expression) -> None:
    """Raise NotAlike for a value that Spark compares, or orders, in its own way."""
    for value in values:
        if value.kind in UNCOMPARED:
            raise NotAlike(f"{value.kind} is compared by Spark in its own way")


def _sql(value: Expression, other: Expression) -> str | None:
    """Return SQL of a value that is compared with another one; None without a rule."""
    kinds = {value.kind, other.kind}
    if len(kinds) == 1 or ValueKind.NULL in kinds or kinds <= NUMBERS:
        return value.sql
    if kinds == {ValueKind.STRING, ValueKind.BINARY}:
        return f"encode({value.sql})" if value.kind is ValueKind.STRING else value.sql
    if kinds == {ValueKind.STRING, ValueKind.TIMESTAMP}:
        if value.kind is ValueKind.TIMESTAMP:
            return value.sql
        return timestamp_of(value.literal).sql if isinstance(value.literal, str) else None
    if ValueKind.STRING in kinds and kinds - {ValueKind.STRING} <= NUMBERS:
        if kinds - {ValueKind.STRING} <= INTEGERS:
            return to_bigint(value) if value.kind is ValueKind.STRING else value.sql
        return to_double(value)
    return None


def named(form: str, *parts: Expression | str) -> str | None:
    """Join names to one; None if one of them is unknown."""
    names = [part.name if isinstance(part, Expression) else part for part in parts]
    return None if None in names else form.format(*names)
