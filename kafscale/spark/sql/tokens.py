"""Cuts SQL into tokens by the rules of Spark's lexer, and finds statements that its parser surely refuses.

Tokens tell words and parentheses from strings, quoted names and comments. Positions count characters, as Spark's parser
does. Mistakes are found before an engine starts, as Spark takes 15 s.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs

from kafscale.errors import QueryError

_TOKEN = re.compile(
    r"""
      (?P<space> \s+ | --[^\r\n]* )
    | (?P<comment> /\* )
    | [rR]'[^']*' | [rR]"[^"]*"
    | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*"
    | `(?:[^`]|``)*`
    | (?P<open> ['"`].* )
    | \d+\.\d+ | \w+ | .
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


@attrs.frozen
class SqlToken:
    """A token; `is_open`: a string, name or comment that does not end."""

    text: str
    start: int
    end: int
    is_open: bool = False

    @property
    def word(self) -> str:
        """Return the word to compare with keywords. A quoted name keeps its quotes, and equals none."""
        return self.text.upper()

    @property
    def name(self) -> str:
        return self.text[1:-1].replace("``", "`") if self.text.startswith("`") else self.text


def tokenize(text: str) -> Sequence[SqlToken]:
    """Return all tokens except spaces and comments."""
    return list(_tokens(text))


def split_statements(text: str) -> tuple[Sequence[str], str]:
    """Return the statements that a semicolon ends, without it, and the text behind the last one."""
    statements: list[str] = []
    start = 0
    for token in _tokens(text):
        if token.text == ";":
            statements.append(text[start : token.start].strip())
            start = token.end
    return [statement for statement in statements if tokenize(statement)], text[start:]


def closing(tokens: Sequence[SqlToken], opening: int) -> int:
    """Return the index of the parenthesis that closes the one at `opening`; of the last token if none does."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[index].text, 0)
        if depth == 0:
            return index
    return len(tokens) - 1


def _tokens(text: str) -> Iterator[SqlToken]:
    position = 0
    while match := _TOKEN.match(text, position):
        position = match.end()
        if match["comment"]:
            position = _comment_end(text, position)
            if position < 0:
                yield SqlToken(text[match.start() :], match.start(), len(text), is_open=True)
                return
        elif not match["space"]:
            yield SqlToken(match[0], match.start(), match.end(), is_open=match["open"] is not None)


def _comment_end(text: str, position: int) -> int:
    """Return the end of a comment, which may nest; -1 if the text ends within."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, position):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return -1


@attrs.frozen(kw_only=True)
class Edit:
    """A replacement of the text from `start` to `end`; an insertion if both are the same."""

    start: int
    end: int
    text: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Apply edits that do not overlap. An insertion goes before a replacement that starts at the same place."""
    for change in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        text = text[: change.start] + change.text + text[change.end :]
    return text


FIRST_WORDS: Final = frozenset(
    (
        *("ADD", "ALTER", "ANALYZE", "BEGIN", "CACHE", "CALL", "CLEAR", "COMMENT", "COMMIT", "CREATE", "DECLARE"),
        *("DELETE", "DESC", "DESCRIBE", "DFS", "DROP", "EXECUTE", "EXPLAIN", "EXPORT", "FROM", "GRANT", "IMPORT"),
        *("INSERT", "LIST", "LOAD", "LOCK", "MAP", "MERGE", "MSCK", "REDUCE", "REFRESH", "REPAIR", "REPLACE", "RESET"),
        *("REVOKE", "ROLLBACK", "SELECT", "SET", "SHOW", "START", "TABLE", "TRUNCATE", "UNCACHE", "UNLOCK", "UPDATE"),
        *("USE", "VALUES", "WITH"),
    )
)
"""Words that begin a statement of Spark 4.1; a test compares them with Spark's own grammar."""

_QUERY_WORDS: Final = frozenset({"SELECT", "WITH", "FROM", "VALUES", "EXPLAIN", "("})  # have no text outside of strings
_SHOWN_CHARACTERS: Final = 40


def refuse_mistakes(statement: str) -> None:
    """Raise QueryError for a wrong first word, an unfinished string or comment, or unmatched parentheses."""
    tokens = tokenize(statement)
    if not tokens:
        return
    first = tokens[0]
    for token in tokens:
        if token.is_open:
            raise QueryError(f"{_at(statement, token)}: a string, quoted name or comment begins here and does not end")
    if first.word not in FIRST_WORDS and not first.text.startswith(("(", "$")):  # ${…} stands for a setting
        nearest = difflib.get_close_matches(first.word, FIRST_WORDS, n=1, cutoff=0.7)
        told = f"did you mean {nearest[0]}?" if nearest else "allowed: SELECT, WITH, SHOW TOPICS, DESCRIBE and the like"
        raise QueryError(f"{_at(statement, first)}: this begins no statement of SQL; {told}")
    if first.word in _QUERY_WORDS:
        _refuse_parentheses(statement, tokens)


def _refuse_parentheses(statement: str, tokens: Sequence[SqlToken]) -> None:
    opened: list[SqlToken] = []
    for token in tokens:
        if token.text == "(":
            opened.append(token)
        elif token.text == ")":
            if not opened:
                raise QueryError(f"{_at(statement, token)}: no parenthesis is open that this could close")
            opened.pop()
    if opened:
        raise QueryError(f"{_at(statement, opened[-1])}: this parenthesis is not closed")


def _at(statement: str, token: SqlToken) -> str:
    line = statement.count("\n", 0, token.start) + 1
    rest = " ".join(statement[token.start :].split())
    shown = rest if len(rest) <= _SHOWN_CHARACTERS else f"{rest[:_SHOWN_CHARACTERS]}…"
    return f"'{shown}'" if line == 1 else f"line {line}, '{shown}'"
