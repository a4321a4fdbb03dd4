"""Functions that DuckDB answers as Spark does, by Spark's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from kafscale.spark.duckdb.kinds import INTEGERS, NotAlike, ValueKind, common
from kafscale.spark.duckdb.literals import check_compared, integer, named, timestamp, to_double, to_text
from kafscale.spark.duckdb.scopes import Expression

Arguments = Sequence[Expression]

JSON_PATH = re.compile(r"\$(\.[A-Za-z_][A-Za-z0-9_]*)+")
UNITS = ("second", "minute", "hour", "day")
# Numbers with a point are written by Spark as Java does; those that look the same in both are these.
PLAIN_DOUBLE = r"-?[0-9]{1,7}[.]([0-9]{0,12}[1-9]|0)"
SMALL_DOUBLE = r"-?0[.]00[0-9]*"
PLAIN_JSON = r"[^\\]*"  # a document that Spark does not write in another way: without escapes,
LENIENT = r"(?i),\s*[}\]]|[\[:,]\s*-?(nan|inf)"  # DuckDB takes these for JSON, also where nothing is read of them
POINT = r"[0-9][.eE]|-0"  # and without numbers that have a point


def called(name: str, arguments: Arguments, *, is_distinct: bool) -> Expression:
    """Translate a call. Raises NotAlike."""
    function = AGGREGATES.get(name) or (None if is_distinct else SCALARS.get(name))
    if function is None:
        raise NotAlike(f"{name}() is Spark's")
    try:
        made = function(["DISTINCT "] if is_distinct else [], arguments) if name in AGGREGATES else function(arguments)
    except IndexError as exc:
        raise NotAlike(f"{name}() is called in another way") from exc
    return made


def _count(distinct: Sequence[str], arguments: Arguments) -> Expression:
    [value] = _exactly(arguments, 1)
    if distinct:
        check_compared(value)
    word = "".join(distinct)
    return Expression(sql=f"count({word}{value.sql})", kind=ValueKind.BIGINT, name=named("count({}{})", word, value))


def _extreme(name: str) -> Callable[..., Expression]:
    def make(distinct: Sequence[str], arguments: Arguments) -> Expression:
        [value] = _exactly(arguments, 1)
        check_compared(value)
        return Expression(sql=f"{name}({value.sql})", kind=value.kind, name=_aggregate_name(name, distinct, value))

    return make


def _sum(distinct: Sequence[str], arguments: Arguments) -> Expression:
    [value] = _exactly(arguments, 1)
    word, name = "".join(distinct), _aggregate_name("sum", distinct, value)
    if value.kind in INTEGERS:
        return Expression(sql=f"CAST(sum({word}{value.sql}) AS BIGINT)", kind=ValueKind.BIGINT, name=name)
    return Expression(sql=f"sum({word}{_double(value)})", kind=ValueKind.DOUBLE, name=name)


def _average(distinct: Sequence[str], arguments: Arguments) -> Expression:
    [value] = _exactly(arguments, 1)
    name = _aggregate_name("avg", distinct, value)
    return Expression(sql=f"avg({''.join(distinct)}{_double(value)})", kind=ValueKind.DOUBLE, name=name)


def _double(value: Expression) -> str:
    if value.kind not in (ValueKind.INT, ValueKind.BIGINT, ValueKind.DOUBLE, ValueKind.STRING):
        raise NotAlike(f"{value.kind} is added up by Spark in its own way")
    return to_double(value)


def _aggregate_name(name: str, distinct: Sequence[str], value: Expression) -> str | None:
    return named("{}({}{})", name, "".join(distinct), value)


def _json_value(arguments: Arguments) -> Expression:
    document, path = _exactly(arguments, 2)
    if not isinstance(path.literal, str) or JSON_PATH.fullmatch(path.literal) is None:
        raise NotAlike("a path of JSON is not of names alone")
    if document.kind not in (ValueKind.STRING, ValueKind.BINARY):
        raise NotAlike(f"JSON is in {document.kind}")
    text = to_text(document)
    found = f"json_extract_string({text}, {path.sql})"
    refused = "error('JSON is not read by both alike')"
    plain_double = (
        f"regexp_full_match({found}, '{PLAIN_DOUBLE}') AND (NOT regexp_full_match({found}, '{SMALL_DOUBLE}') "
        f"OR {found} IN ('0.0', '-0.0'))"
    )
    plain = f"regexp_full_match({found}, '{PLAIN_JSON}', 's') AND NOT regexp_matches({found}, '{POINT}')"
    is_other = f"NOT json_valid({text}) OR regexp_matches({text}, '{LENIENT}')"
    sql = (
        f"CASE WHEN {text} IS NULL OR {text} = '' THEN NULL WHEN {is_other} THEN {refused} "
        f"ELSE CASE json_type({text}, {path.sql}) "
        f"WHEN 'DOUBLE' THEN CASE WHEN {plain_double} THEN {found} ELSE {refused} END "
        f"WHEN 'OBJECT' THEN CASE WHEN {plain} THEN {found} ELSE {refused} END "
        f"WHEN 'ARRAY' THEN CASE WHEN {plain} THEN {found} ELSE {refused} END "
        f"ELSE {found} END END"
    )
    return Expression(sql=sql, kind=ValueKind.STRING, name=named("json_value({}, {})", document, path))


def _get_json_object(arguments: Arguments) -> Expression:
    made = _json_value(arguments)
    name = named("get_json_object({}, {})", *arguments)
    return Expression(sql=made.sql, kind=made.kind, name=name)


def _coalesce(arguments: Arguments) -> Expression:
    _exactly(arguments[:1], 1)
    sql = f"coalesce({', '.join(argument.sql for argument in arguments)})"
    name = (
        None
        if any(argument.name is None for argument in arguments)
        else f"coalesce({', '.join(map(_name, arguments))})"
    )
    return Expression(sql=sql, kind=common([argument.kind for argument in arguments]), name=name)


def _length(arguments: Arguments) -> Expression:
    [value] = _exactly(arguments, 1)
    if value.kind not in (ValueKind.STRING, ValueKind.BINARY):
        raise NotAlike(f"length() of {value.kind} is Spark's")
    function = "octet_length" if value.kind is ValueKind.BINARY else "length"
    return Expression(
        sql=f"CAST({function}({value.sql}) AS INTEGER)", kind=ValueKind.INT, name=named("length({})", value)
    )


def _date_trunc(arguments: Arguments) -> Expression:
    unit, value = _exactly(arguments, 2)
    if value.kind is not ValueKind.TIMESTAMP or str(unit.literal).lower() not in UNITS:
        raise NotAlike("date_trunc() is Spark's but for times to the second, minute, hour and day")
    sql = f"(date_trunc({unit.sql}, {value.sql} AT TIME ZONE 'UTC') AT TIME ZONE 'UTC')"
    return Expression(sql=sql, kind=ValueKind.TIMESTAMP, name=named("date_trunc({}, {})", unit, value))


def _timestamp_millis(arguments: Arguments) -> Expression:
    [value] = _exactly(arguments, 1)
    if not isinstance(value.literal, int) or value.kind not in INTEGERS:
        raise NotAlike("timestamp_millis() of an expression is Spark's")
    return timestamp(value.literal * 1000, named("timestamp_millis({})", value))


def _concat(arguments: Arguments) -> Expression:
    if not arguments or any(argument.kind is not ValueKind.STRING for argument in arguments):
        raise NotAlike("what is joined is not all text")
    name = (
        None if any(argument.name is None for argument in arguments) else f"concat({', '.join(map(_name, arguments))})"
    )
    return Expression(sql=f"({' || '.join(argument.sql for argument in arguments)})", kind=ValueKind.STRING, name=name)


def _like(arguments: Arguments) -> Expression:
    value, pattern = _exactly(arguments, 2)
    if (
        value.kind not in (ValueKind.STRING, ValueKind.BINARY)
        or not isinstance(pattern.literal, str)
        or "\\" in pattern.literal
    ):
        raise NotAlike("LIKE is Spark's but for text and a constant without escapes")
    return Expression(
        sql=f"({to_text(value)} LIKE {pattern.sql})", kind=ValueKind.BOOLEAN, name=named("{} LIKE {}", value, pattern)
    )


def _not_like(arguments: Arguments) -> Expression:
    made = _like(arguments)
    return Expression(sql=f"(NOT {made.sql})", kind=made.kind, name=named("(NOT {})", made))


def _plus(arguments: Arguments) -> Expression:
    return _moved(arguments, 1, "+") or _arithmetic("+", arguments)


def _minus(arguments: Arguments) -> Expression:
    if len(arguments) > 1:
        return _moved(arguments, -1, "-") or _arithmetic("-", arguments)
    [value] = arguments
    if value.kind in INTEGERS and isinstance(value.literal, int):
        return integer(-value.literal)
    if value.kind not in INTEGERS and value.kind is not ValueKind.DOUBLE:
        raise NotAlike(f"- of {value.kind} is Spark's")
    return Expression(sql=f"(- {value.sql})", kind=value.kind, name=named("(- {})", value))


def _moved(arguments: Arguments, sign: int, operator: str) -> Expression | None:
    """Add an interval to a time; None for other arguments."""
    value, by = _exactly(arguments, 2)
    if value.kind is not ValueKind.TIMESTAMP or by.kind is not ValueKind.INTERVAL:
        return None
    assert isinstance(by.literal, int)
    if isinstance(value.literal, int):
        return timestamp(value.literal + sign * by.literal)
    return Expression(sql=f"({value.sql} {operator} {by.sql})", kind=ValueKind.TIMESTAMP)


def _arithmetic(operator: str, arguments: Arguments) -> Expression:
    one, other = _exactly(arguments, 2)
    kinds = {one.kind, other.kind}
    if not kinds <= INTEGERS | {ValueKind.DOUBLE}:
        raise NotAlike(f"{one.kind} {operator} {other.kind} is Spark's")
    kind = ValueKind.DOUBLE if ValueKind.DOUBLE in kinds else common(list(kinds))
    left, right = _typed(one), _typed(other)
    return Expression(sql=f"({left} {operator} {right})", kind=kind, name=named("({} {} {})", one, operator, other))


def _typed(value: Expression) -> str:
    """Cast a number of the statement, which has the smallest type to DuckDB, and INT to Spark."""
    if not isinstance(value.literal, int):
        return value.sql
    return f"CAST({value.sql} AS {'INTEGER' if value.kind is ValueKind.INT else 'BIGINT'})"


def _divided(operator: str) -> Callable[[Arguments], Expression]:
    """Make a division that fails for 0 as Spark's does; DuckDB returns NULL or infinity."""

    def make(arguments: Arguments) -> Expression:
        one, other = _exactly(arguments, 2)
        if not {one.kind, other.kind} <= INTEGERS | ({ValueKind.DOUBLE} if operator == "/" else set()):
            raise NotAlike(f"{one.kind} {operator} {other.kind} is Spark's")
        left, right = (to_double(one), to_double(other)) if operator == "/" else (_typed(one), _typed(other))
        sql = f"({left} {operator} CASE WHEN {other.sql} = 0 THEN error('division by 0') ELSE {right} END)"
        kind = ValueKind.DOUBLE if operator == "/" else common([one.kind, other.kind])
        return Expression(sql=sql, kind=kind, name=named("({} {} {})", one, operator, other))

    return make


def _exactly(arguments: Arguments, count: int) -> Arguments:
    if len(arguments) != count:
        raise IndexError
    return arguments


def _name(value: Expression) -> str:
    return value.name or ""


AGGREGATES: Mapping[str, Callable[..., Expression]] = {
    "count": _count,
    "min": _extreme("min"),
    "max": _extreme("max"),
    "sum": _sum,
    "avg": _average,
}
SCALARS: Mapping[str, Callable[..., Expression]] = {
    "json_value": _json_value,
    "get_json_object": _get_json_object,
    "length": _length,
    "date_trunc": _date_trunc,
    "timestamp_millis": _timestamp_millis,
    "coalesce": _coalesce,
    "concat": _concat,
    "||": _concat,
    "~~": _like,
    "!~~": _not_like,
    "+": _plus,
    "-": _minus,
    "*": lambda arguments: _arithmetic("*", arguments),
    "/": _divided("/"),
    "%": _divided("%"),
}
