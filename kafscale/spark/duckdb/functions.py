"""Literals, conversions, comparisons, and functions that DuckDB answers as Spark does, by Spark's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from kafscale.spark.duckdb.kinds import (
    INTEGERS,
    NUMBERS,
    UNCOMPARED,
    Expression,
    NotAlike,
    ValueKind,
    common,
    single_quoted,
)
from kafscale.spark.duckdb.parser import ParsedNode

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
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise NotAlike(f"'{text}' is a time in a form of Spark's")
    try:
        moment = datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00:00'}").replace(tzinfo=UTC)
    except ValueError as exc:
        raise NotAlike(f"'{text}' is not a time") from exc
    return timestamp((moment - EPOCH) // MICROSECOND)


def interval(node: ParsedNode) -> Expression | None:
    """Translate `INTERVAL 15 MINUTES`, which DuckDB's parser makes a call; None for another call."""
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
    return _strict(value.sql, INTEGER_PATTERN, "BIGINT")


def to_double(value: Expression) -> str:
    is_text = value.kind is ValueKind.STRING
    return _strict(value.sql, NUMBER_PATTERN, "DOUBLE") if is_text else f"CAST({value.sql} AS DOUBLE)"


def _strict(sql: str, pattern: str, type_: str) -> str:
    is_alike = f"regexp_full_match({sql}, '{pattern}')"
    refused = "error('a text is not read as a number by both alike')"
    return f"CASE WHEN {sql} IS NULL THEN NULL WHEN {is_alike} THEN CAST({sql} AS {type_}) ELSE {refused} END"


def to_text(value: Expression) -> str:
    if value.kind is ValueKind.STRING:
        return value.sql
    if value.kind is ValueKind.NULL:
        return "CAST(NULL AS VARCHAR)"
    if value.kind is ValueKind.BINARY:
        return f"decode({value.sql})"
    if value.kind is ValueKind.TIMESTAMP:
        return f"CAST({of_four_digits(value)} AS VARCHAR)"
    if value.kind in (ValueKind.INT, ValueKind.BIGINT, ValueKind.BOOLEAN, ValueKind.DATE):
        return f"CAST({value.sql} AS VARCHAR)"
    raise NotAlike(f"{value.kind} is written by Spark as text in its own way")


def of_four_digits(value: Expression) -> str:
    """Return SQL of a time without its zone. Other years fail, as engines write them differently."""
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
    one, other = aligned(left, right)
    name = named("(NOT ({} = {}))", left, right) if operator == "<>" else named("({} {} {})", left, operator, right)
    return Expression(sql=f"({one} {operator} {other})", kind=ValueKind.BOOLEAN, name=name)


def one_of(value: Expression, others: Sequence[Expression], *, is_not: bool) -> Expression:
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


def composed(form: str, *parts: Expression | str, kind: ValueKind) -> Expression:
    """Fill a form with the SQL of its parts, and with their names."""
    sql = form.format(*(part.sql if isinstance(part, Expression) else part for part in parts))
    return Expression(sql=sql, kind=kind, name=named(form, *parts))


Arguments = Sequence[Expression]

JSON_PATH = re.compile(r"\$(\.[A-Za-z_][A-Za-z0-9_]*)+")
UNITS = ("second", "minute", "hour", "day")
# Numbers with a point are written by Spark as Java does; those that look the same in both are these.
PLAIN_DOUBLE = r"-?[0-9]{1,7}[.]([0-9]{0,12}[1-9]|0)"
SMALL_DOUBLE = r"-?0[.]00[0-9]*"
PLAIN_JSON = r"[^\\]*"  # a document that Spark does not write in another way: without escapes,
POINT = r"[0-9][.eE]|-0"  # and without numbers that have a point
LENIENT = r"(?i),\s*[}\]]|[\[:,]\s*-?(nan|inf)"  # DuckDB takes these for JSON, also where nothing is read of them
AGGREGATES = ("count", "min", "max", "sum", "avg")


def called(name: str, arguments: Arguments, *, is_distinct: bool) -> Expression:
    function = None if is_distinct else SCALARS.get(name)
    try:
        if name in AGGREGATES:
            return _aggregate(name, "DISTINCT " if is_distinct else "", arguments)
        if function is not None:
            return function(arguments)
    except IndexError as exc:
        raise NotAlike(f"{name}() is called in another way") from exc
    raise NotAlike(f"{name}() is Spark's")


def _aggregate(name: str, distinct: str, arguments: Arguments) -> Expression:
    [value] = _exactly(arguments, 1)
    title = named("{}({}{})", name, distinct, value)
    if name == "count":
        if distinct:
            check_compared(value)
        return Expression(sql=f"count({distinct}{value.sql})", kind=ValueKind.BIGINT, name=title)
    if name in ("min", "max"):
        check_compared(value)
        return Expression(sql=f"{name}({value.sql})", kind=value.kind, name=title)
    if name == "sum" and value.kind in INTEGERS:
        return Expression(sql=f"CAST(sum({distinct}{value.sql}) AS BIGINT)", kind=ValueKind.BIGINT, name=title)
    if value.kind not in INTEGERS | {ValueKind.DOUBLE, ValueKind.STRING}:
        raise NotAlike(f"{value.kind} is added up by Spark in its own way")
    return Expression(sql=f"{name}({distinct}{to_double(value)})", kind=ValueKind.DOUBLE, name=title)


def _json_value(name: str) -> Callable[[Arguments], Expression]:
    def make(arguments: Arguments) -> Expression:
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
        return Expression(sql=sql, kind=ValueKind.STRING, name=named("{}({}, {})", name, document, path))

    return make


def _coalesce(arguments: Arguments) -> Expression:
    if not arguments:
        raise IndexError
    return composed(_call_form("coalesce", arguments), *arguments, kind=common([value.kind for value in arguments]))


def _call_form(name: str, arguments: Arguments) -> str:
    return f"{name}({', '.join('{}' for _ in arguments)})"


def _length(arguments: Arguments) -> Expression:
    [value] = _exactly(arguments, 1)
    if value.kind not in (ValueKind.STRING, ValueKind.BINARY):
        raise NotAlike(f"length() of {value.kind} is Spark's")
    function = "octet_length" if value.kind is ValueKind.BINARY else "length"
    sql = f"CAST({function}({value.sql}) AS INTEGER)"
    return Expression(sql=sql, kind=ValueKind.INT, name=named("length({})", value))


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
        raise NotAlike("the joined values are not all text")
    sql = f"({' || '.join(argument.sql for argument in arguments)})"
    return Expression(sql=sql, kind=ValueKind.STRING, name=named(_call_form("concat", arguments), *arguments))


def _like(arguments: Arguments) -> Expression:
    value, pattern = _exactly(arguments, 2)
    is_plain = isinstance(pattern.literal, str) and "\\" not in pattern.literal
    if value.kind not in (ValueKind.STRING, ValueKind.BINARY) or not is_plain:
        raise NotAlike("LIKE is Spark's but for text and a constant without escapes")
    sql = f"({to_text(value)} LIKE {pattern.sql})"
    return Expression(sql=sql, kind=ValueKind.BOOLEAN, name=named("{} LIKE {}", value, pattern))


def _minus(arguments: Arguments) -> Expression:
    if len(arguments) > 1:
        return _arithmetic("-")(arguments)
    [value] = arguments
    if value.kind in INTEGERS and isinstance(value.literal, int):
        return integer(-value.literal)
    if value.kind not in INTEGERS and value.kind is not ValueKind.DOUBLE:
        raise NotAlike(f"- of {value.kind} is Spark's")
    return composed("(- {})", value, kind=value.kind)


def _arithmetic(operator: str) -> Callable[[Arguments], Expression]:
    def make(arguments: Arguments) -> Expression:
        one, other = _exactly(arguments, 2)
        kinds = {one.kind, other.kind}
        if operator in "+-" and one.kind is ValueKind.TIMESTAMP and other.kind is ValueKind.INTERVAL:
            assert isinstance(other.literal, int)
            if isinstance(one.literal, int):
                return timestamp(one.literal + (other.literal if operator == "+" else -other.literal))
            return Expression(sql=f"({one.sql} {operator} {other.sql})", kind=ValueKind.TIMESTAMP)
        if not kinds <= INTEGERS | {ValueKind.DOUBLE}:
            raise NotAlike(f"{one.kind} {operator} {other.kind} is Spark's")
        kind = ValueKind.DOUBLE if ValueKind.DOUBLE in kinds else common(list(kinds))
        sql = f"({_typed(one)} {operator} {_typed(other)})"
        return Expression(sql=sql, kind=kind, name=named("({} {} {})", one, operator, other))

    return make


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


SCALARS: Mapping[str, Callable[[Arguments], Expression]] = {
    "json_value": _json_value("json_value"),
    "get_json_object": _json_value("get_json_object"),
    "length": _length,
    "date_trunc": _date_trunc,
    "timestamp_millis": _timestamp_millis,
    "coalesce": _coalesce,
    "concat": _concat,
    "||": _concat,
    "~~": _like,
    "!~~": lambda arguments: composed("(NOT {})", _like(arguments), kind=ValueKind.BOOLEAN),
    "+": _arithmetic("+"),
    "-": _minus,
    "*": _arithmetic("*"),
    "/": _divided("/"),
    "%": _divided("%"),
}
