"""Clauses of KAFSQL that Spark's grammar lacks: they bound the read of the topics beside them.

    SELECT * FROM orders LAST 15 minutes          LAST 15m, 1h, 7d: by timestamp, from now back
    SELECT * FROM orders TAIL 20                  the last 20 records
    SELECT * FROM orders SCAN FULL LIMIT 10       a read of any size

A clause holds for all topics of its SELECT, and of SELECTs in parentheses within it that have no clause of their own,
at any place in its SELECT. It can't mean anything else: there, Spark takes a number behind a word, and FULL without
JOIN, for errors of syntax.

`last(…)` and `tail(…)` in place of a table bound the read of one topic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

import attrs

from kafscale.config import parse_duration
from kafscale.errors import QueryError
from kafscale.spark.sql.tokens import SqlToken, tokenize

SET_OPERATORS = ("UNION", "INTERSECT", "EXCEPT", "MINUS")
UNITS = {"MILLISECOND": "ms", "SECOND": "s", "MINUTE": "m", "HOUR": "h", "DAY": "d"}


@attrs.frozen(kw_only=True)
class Bound:
    """The bounds of a read of a topic: since `last_ms` ago, of that the last `tail_count` records; None is unbounded.

    is_full: the read may have any size.
    """

    last_ms: int | None = None
    tail_count: int | None = None
    is_full: bool = False

    def joined(self, other: Bound) -> Bound:
        """Join the bounds of two clauses of one SELECT."""
        return Bound(
            last_ms=other.last_ms if other.last_ms is not None else self.last_ms,
            tail_count=other.tail_count if other.tail_count is not None else self.tail_count,
            is_full=self.is_full or other.is_full,
        )


@attrs.define
class ClauseScope:
    """A SELECT, or the inside of parentheses, from `start` to `end`."""

    start: int
    end: int
    bound: Bound | None = None


@attrs.frozen
class Clauses:
    """A statement with spaces in place of its clauses, so that positions stay the same."""

    text: str
    scopes: Sequence[ClauseScope]

    @classmethod
    def of(cls, text: str) -> Clauses:
        """Find the clauses of a statement. Raises QueryError."""
        tokens = tokenize(text)
        blank = list(text)
        open_scopes, scopes = [ClauseScope(0, len(text))], []
        index = 0
        while index < len(tokens):
            token = tokens[index]
            found = _clause(tokens, index)
            if found is not None:
                bound, index = found
                open_scopes[-1].bound = (open_scopes[-1].bound or Bound()).joined(bound)
                blank[token.start : tokens[index - 1].end] = " " * (tokens[index - 1].end - token.start)
                continue
            if token.text == "(":
                open_scopes.append(ClauseScope(token.end, len(text)))
            elif token.word in SET_OPERATORS or (token.text == ")" and len(open_scopes) > 1):
                scopes.append(attrs.evolve(open_scopes.pop(), end=token.start))
                if token.text != ")":
                    open_scopes.append(ClauseScope(token.end, len(text)))
            index += 1
        return cls("".join(blank), [*scopes, *open_scopes])

    def bound_at(self, position: int) -> Bound:
        """Return the bound of the innermost scope around a position."""
        around = [scope for scope in self.scopes if scope.start <= position < scope.end and scope.bound is not None]
        innermost = max(around, key=lambda each: each.start, default=None)
        return Bound() if innermost is None or innermost.bound is None else innermost.bound


def duration_ms(tokens: Sequence[SqlToken]) -> tuple[int, int]:
    """Read the time that tokens begin with (`15m`, `1.5 h`, `15 minutes`), and count its tokens. Raises ValueError."""
    number = tokens[0].text if tokens else ""
    unit = tokens[1].word.removesuffix("S") if len(tokens) > 1 else ""
    if number.replace(".", "", 1).isdigit() and (unit in UNITS or tokens[1:2]):
        return parse_duration(number + UNITS.get(unit, tokens[1].text)) // 1000, 2
    return parse_duration(number) // 1000, 1


def _clause(tokens: Sequence[SqlToken], index: int) -> tuple[Bound, int] | None:
    """Return the clause that begins with this token, and the index behind it."""
    word, following = tokens[index].word, tokens[index + 1 : index + 4]
    if not following or (index and tokens[index - 1].text == "."):
        return None
    if word == "TAIL" and following[0].text.isdigit():
        return Bound(tail_count=int(following[0].text)), index + 2
    if word == "SCAN" and following[0].word == "FULL":
        if len(following) > 1 and following[1].word in ("JOIN", "OUTER"):
            return None
        return Bound(is_full=True), index + 2
    if word == "LAST" and following[0].text[0].isdigit():
        try:
            last_ms, count = duration_ms(following)
        except ValueError as exc:
            raise QueryError(f"LAST {following[0].text}: give a time, such as LAST 15m or LAST 15 minutes") from exc
        return Bound(last_ms=last_ms), index + 1 + count
    return None


FUNCTIONS = ("last", "tail")
FUNCTION_FORMS = "last('orders', INTERVAL 15 MINUTES), tail('orders', 20) and tail('orders', 20, PARTITION)"


@attrs.frozen
class Argument:
    """A literal. `is_time`: an interval, in milliseconds."""

    value: Any
    is_time: bool = False


@attrs.frozen(kw_only=True)
class TopicCall:
    """A call of `last(…)` or `tail(…)`, from `start` to `end`. Times are milliseconds."""

    start: int
    end: int
    function: str
    topic: str
    arguments: Sequence[Argument]


def bound_of(call: TopicCall) -> tuple[Bound, int | None]:
    """Return the bound of a call, and the partition if it names one. Raises QueryError."""
    match call.function, call.arguments:
        case "last", [Argument(int(last_ms), True)]:
            return Bound(last_ms=last_ms), None
        case "last", [Argument(str(text))]:
            return Bound(last_ms=_duration_of(text)), None
        case "tail", [Argument(int(tail_count), False)] if tail_count >= 0:
            return Bound(tail_count=tail_count), None
        case "tail", [Argument(int(tail_count), False), Argument(int(partition), False)] if tail_count >= 0:
            return Bound(tail_count=tail_count), partition
    raise QueryError(f"{call.function}() is called in another way; there are {FUNCTION_FORMS}")


def _duration_of(text: str) -> int:
    tokens = tokenize(text)
    with suppress(ValueError):
        last_ms, used = duration_ms(tokens)
        if used == len(tokens):
            return last_ms
    raise QueryError(f"last(): '{text}' is not a time; allowed: '15m', '1h' or INTERVAL 15 MINUTES")


BEGINNING = ("SELECT", "WITH", "(")
# TABLE and FROM without SELECT give all columns, NATURAL joins by those of both sides, PIVOT groups by all others;
# the rest runs at once, or has names that only Spark puts together.
ALL = frozenset(
    (
        "TABLE",
        "NATURAL",
        "PIVOT",
        "UNPIVOT",
        "IDENTIFIER",
        "EXECUTE",
        "INSERT",
        "MERGE",
        "UPDATE",
        "CREATE",
        "TRANSFORM",
    )
)
BEFORE_QUERY = ("(", "ALL", "DISTINCT", "AS", *SET_OPERATORS)


def columns_needed(text: str, columns: Collection[str], others: Mapping[str, str]) -> Set[str] | None:
    """Return which of these columns a statement can need; None if it may need all, as by `*`.

    Spark reads all columns of a source in Python, so the source is loaded with a schema that has fewer. Names count
    anywhere in the text, also in a string or as part of a longer name. `others` are further names of columns.
    """
    tokens = tokenize(text)
    words = [token.word for token in tokens]
    if words[:1] == ["EXPLAIN"]:
        tokens, words = tokens[1:], words[1:]
    if "SELECT" not in words or words[0] not in BEGINNING or not ALL.isdisjoint(words):
        return None
    if any(_is_star(tokens, index) or _is_bare(words, index) for index in range(len(words))):
        return None
    lowered = text.lower()
    named = {name for name in columns if name.lower() in lowered}
    return named | {name for other, name in others.items() if other in lowered and name in columns}


def _is_star(tokens: Sequence[SqlToken], index: int) -> bool:
    """Tell whether a token is a `*` other than that of `count(*)`."""
    around = [token.word for token in tokens[max(0, index - 2) : index + 2]]
    return tokens[index].text == "*" and around != ["COUNT", "(", "*", ")"]


def _is_bare(words: Sequence[str], index: int) -> bool:
    """Tell whether a query begins with this FROM, or goes on by a pipe."""
    if words[index] == "FROM":
        return not index or words[index - 1] in BEFORE_QUERY
    return words[index : index + 2] == ["|", ">"]
