"""Comparisons: of two values of one type, or of two that Spark brings to one."""

from __future__ import annotations

from collections.abc import Sequence

from kafscale.spark.quick.constants import timestamp_of, to_bigint, to_double
from kafscale.spark.quick.errors import NotAlike
from kafscale.spark.quick.kinds import INTEGERS, NUMBERS, UNCOMPARED, Kind
from kafscale.spark.quick.scopes import Expression

OPERATORS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}


def compared(operator: str, left: Expression, right: Expression) -> Expression:
    """`left operator right`, by DuckDB's sign. Raises NotAlike."""
    one, other = aligned(left, right)
    is_unequal = operator == "<>"
    name = named("({} {} {})", left, "=" if is_unequal else operator, right)
    if is_unequal and name is not None:
        name = f"(NOT {name})"
    return Expression(sql=f"({one} {operator} {other})", kind=Kind.BOOLEAN, name=name)


def one_of(value: Expression, others: Sequence[Expression], *, is_not: bool) -> Expression:
    """`value IN (others)`. Raises NotAlike unless the others are of one type."""
    if len({each.kind for each in others if each.kind not in INTEGERS | {Kind.NULL}}) > 1 or (
        any(each.kind in INTEGERS for each in others) and any(each.kind not in INTEGERS for each in others)
    ):
        raise NotAlike("the values of IN are of several types")
    pairs = [aligned(value, each) for each in others]
    listed = ", ".join(other for _, other in pairs)
    word = "NOT IN" if is_not else "IN"
    name = named("({} IN ({}))", value, ", ".join(each.name or "" for each in others))
    if is_not and name is not None:
        name = f"(NOT {name})"
    return Expression(sql=f"({pairs[0][0]} {word} ({listed}))", kind=Kind.BOOLEAN, name=name)


def aligned(left: Expression, right: Expression) -> tuple[str, str]:
    """SQL of both as values of one type. Raises NotAlike."""
    check_compared(left, right)
    one, other = _sql(left, right), _sql(right, left)
    if one is None or other is None:
        raise NotAlike(f"{left.kind} meets {right.kind}")
    return one, other


def check_compared(*values: Expression) -> None:
    """Raises NotAlike for a value that Spark compares, or orders, in its own way."""
    for each in values:
        if each.kind in UNCOMPARED:
            raise NotAlike(f"{each.kind} is compared by Spark in its own way")


def _sql(value: Expression, other: Expression) -> str | None:
    """SQL of a value that is compared with another one; None if no rule tells how."""
    kinds = {value.kind, other.kind}
    if len(kinds) == 1 or Kind.NULL in kinds or kinds <= NUMBERS:
        return value.sql
    if kinds == {Kind.STRING, Kind.BINARY}:
        return f"encode({value.sql})" if value.kind is Kind.STRING else value.sql
    if kinds == {Kind.STRING, Kind.TIMESTAMP}:
        if value.kind is Kind.TIMESTAMP:
            return value.sql
        return timestamp_of(value.literal).sql if isinstance(value.literal, str) else None
    if Kind.STRING in kinds and kinds - {Kind.STRING} <= NUMBERS:
        if kinds - {Kind.STRING} <= INTEGERS:
            return to_bigint(value) if value.kind is Kind.STRING else value.sql
        return to_double(value)
    return None


def named(form: str, *parts: Expression | str) -> str | None:
    """A name made of others; None if one of them is not known."""
    names = [each.name if isinstance(each, Expression) else each for each in parts]
    return None if None in names else form.format(*names)
