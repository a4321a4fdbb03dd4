"""KAFSQL's window of time on a join, as conditions that Spark has.

    FROM orders o JOIN payments p ON o.key = p.key WITHIN 10m     … ON (o.key = p.key) AND p.timestamp BETWEEN …
    FROM orders o JOIN payments p WITHIN 10m                      … ON o.key = p.key AND p.timestamp BETWEEN …

It is between the table of this JOIN and the first one behind FROM. Where WITHIN stands behind its JOIN does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from kafscale.errors import QueryError
from kafscale.spark.sql.clauses import SET_OPERATORS, duration_ms
from kafscale.spark.sql.edits import Edit
from kafscale.spark.sql.tokens import Token

CLAUSES = ("LAST", "TAIL", "SCAN", "LIMIT", "WHERE", "GROUP", "ORDER", "HAVING", "QUALIFY", "WINDOW")
KINDS = ("INNER", "LEFT", "RIGHT", "FULL", "CROSS", "SEMI", "ANTI", "NATURAL")  # of a JOIN
NO_ALIAS = (*CLAUSES, *KINDS, "ON", "USING", "WITHIN", "JOIN", "TABLESAMPLE", "WITH", ",")


def windows(tokens: Sequence[Token], *, timestamp: str, key: str) -> Iterator[Edit]:
    """Make the edits that replace each WITHIN. `timestamp` and `key` are columns. Raises QueryError."""
    for index, token in enumerate(tokens):
        if token.word == "WITHIN" and tokens[index + 1 : index + 2] and tokens[index + 1].text[0].isdigit():
            window_ms, count = _window(tokens[index + 1 : index + 4])
            join = _Join.before(_level(tokens, index))
            condition = join.condition(timestamp=timestamp, key=key, window_ms=window_ms)
            end = tokens[index + count].end
            if join.end == token.start:
                yield Edit(start=token.start, end=end, text=condition)
            else:
                yield Edit(start=join.end, end=join.end, text=condition)
                yield Edit(start=token.start, end=end, text="")
            if join.on is not None:
                yield Edit(start=join.on.end, end=join.on.end, text=" (")


@attrs.frozen(kw_only=True)
class _Join:
    """A join of two tables, by the names that their columns have; `end` is where its condition ends, or is to be."""

    left: str
    right: str
    on: Token | None
    end: int

    @classmethod
    def before(cls, level: Sequence[Token]) -> _Join:
        """Find the last join before the end of the tokens. Raises QueryError."""
        words = [token.word for token in level]
        joined_at = _last(words, "JOIN")
        from_at = _last(words[:joined_at], "FROM")
        if joined_at < 0 or from_at < 0:
            raise QueryError("WITHIN is for JOIN: FROM orders o JOIN payments p ON o.key = p.key WITHIN 10m")
        behind = level[joined_at + 1 :]
        on_at = next((place for place, token in enumerate(behind) if token.word in ("ON", "USING")), None)
        if on_at is not None and behind[on_at].word == "USING":
            raise QueryError("WITHIN goes with JOIN … ON, not with USING: give the condition by ON")
        ends = (token for place, token in enumerate(behind) if place > (on_at or 0) and _ends(behind, place))
        return cls(
            left=_name(level[from_at + 1 :]),
            right=_name(behind),
            on=None if on_at is None else behind[on_at],
            end=next(ends).start,
        )

    def condition(self, *, timestamp: str, key: str, window_ms: int) -> str:
        """Return the condition that stands at the end of the join."""
        opening = f" ON {self.left}.{key} = {self.right}.{key}" if self.on is None else ")"
        time, window = f"{self.left}.{timestamp}", f"INTERVAL {window_ms} MILLISECONDS"
        return f"{opening} AND {self.right}.{timestamp} BETWEEN {time} - {window} AND {time} + {window} "


def _level(tokens: Sequence[Token], index: int) -> Sequence[Token]:
    """Up to this token, those that are within the same parentheses, and of the same SELECT."""
    found, depth = [tokens[index]], 0
    for token in reversed(tokens[:index]):
        depth += {")": 1, "(": -1}.get(token.text, 0)
        if depth < 0 or (depth == 0 and token.word in SET_OPERATORS):
            break
        if depth == 0 or (depth == 1 and token.text == ")"):
            found.append(token)
    return found[::-1]


def _name(tokens: Sequence[Token]) -> str:
    """Return the name of the table that the tokens begin with: its alias, or the last part of its name."""
    place, name = 0, ""
    while (tokens[place].text != "(" and not name) or tokens[place].text == ".":
        place += tokens[place].text == "."
        name = tokens[place].text
        place += 1
    if tokens[place].text == "(":  # of a subquery, or of a function's arguments
        place += 2
    place += tokens[place].word == "AS"
    if tokens[place].word not in NO_ALIAS:
        return tokens[place].text
    if not name:
        raise QueryError("WITHIN needs a name for each side of its JOIN: FROM (…) o JOIN (…) p ON … WITHIN 10m")
    return name


def _ends(tokens: Sequence[Token], place: int) -> bool:
    word = tokens[place].word
    is_call = place + 1 < len(tokens) and tokens[place + 1].text == "("  # left(name, 1), last(name)
    return word in ("WITHIN", "JOIN") or (word in (*CLAUSES, *KINDS) and not is_call)


def _last(words: Sequence[str], word: str) -> int:
    return len(words) - 1 - words[::-1].index(word) if word in words else -1


def _window(tokens: Sequence[Token]) -> tuple[int, int]:
    try:
        return duration_ms(tokens)
    except ValueError as exc:
        raise QueryError(f"WITHIN {tokens[0].text}: give a time, such as WITHIN 10m or WITHIN 10 minutes") from exc
