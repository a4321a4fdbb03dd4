"""Clauses of KafScale's KAFSQL that Spark's grammar does not have: they bound what is read of the topics beside them.

    SELECT * FROM orders LAST 15 minutes          LAST 15m, 1h, 7d: by timestamp, from now back
    SELECT * FROM orders TAIL 20                  the last 20 records
    SELECT * FROM orders SCAN FULL LIMIT 10       however much there is to read

Each holds for all topics of its SELECT, and of those within it in parentheses that have none of their own. Where a
clause stands in its SELECT does not matter. None of them can be read as something else: where they are allowed, a
number behind a word, and FULL without JOIN, are errors of syntax to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kafscale.config import parse_duration
from kafscale.errors import QueryError
from kafscale.spark.sql.tokens import Token, tokenize

SET_OPERATORS = ("UNION", "INTERSECT", "EXCEPT", "MINUS")
UNITS = {"MILLISECOND": "ms", "SECOND": "s", "MINUTE": "m", "HOUR": "h", "DAY": "d"}


@attrs.frozen(kw_only=True)
class Bound:
    """What is to be read of a topic: not before `last_ms` ago, of that the last `tail_count`; None is no bound.

    `is_full`: it may be any amount.
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
class Scope:
    """A SELECT, or what is in parentheses, from `start` to `end`."""

    start: int
    end: int
    bound: Bound | None = None


@attrs.frozen
class Clauses:
    """A statement with spaces in place of its clauses, so that positions stay what they were."""

    text: str
    scopes: Sequence[Scope]

    @classmethod
    def of(cls, text: str) -> Clauses:
        """Raises QueryError."""
        tokens = tokenize(text)
        blank = list(text)
        open_scopes, scopes = [Scope(0, len(text))], []
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
                open_scopes.append(Scope(token.end, len(text)))
            elif token.word in SET_OPERATORS or (token.text == ")" and len(open_scopes) > 1):
                scopes.append(attrs.evolve(open_scopes.pop(), end=token.start))
                if token.text != ")":
                    open_scopes.append(Scope(token.end, len(text)))
            index += 1
        return cls("".join(blank), [*scopes, *open_scopes])

    def bound_at(self, position: int) -> Bound:
        """Return the bound of the innermost scope around a position that has one."""
        around = [each for each in self.scopes if each.start <= position < each.end and each.bound is not None]
        innermost = max(around, key=lambda each: each.start, default=None)
        return Bound() if innermost is None or innermost.bound is None else innermost.bound


def duration_ms(tokens: Sequence[Token]) -> tuple[int, int]:
    """The time that the tokens begin with (`15m`, `1.5 h`, `15 minutes`), and how many they are. Raises ValueError."""
    number = tokens[0].text if tokens else ""
    unit = tokens[1].word.removesuffix("S") if len(tokens) > 1 else ""
    if number.replace(".", "", 1).isdigit() and (unit in UNITS or tokens[1:2]):
        return parse_duration(number + UNITS.get(unit, tokens[1].text)) // 1000, 2
    return parse_duration(number) // 1000, 1


def _clause(tokens: Sequence[Token], index: int) -> tuple[Bound, int] | None:
    """The clause that begins with this token, and the index behind it."""
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
