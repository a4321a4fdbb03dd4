"""Statements that Spark's parser is sure to refuse, found before an engine starts: Spark takes 15 s for that.

It finds what needs no grammar: a first word that begins no statement, a string or a comment without an end, and
parentheses that do not match. Everything else is for the engine's parser.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

from kafscale.errors import QueryError
from kafscale.spark.sql.tokens import Token, tokenize

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
    """Raise QueryError for a statement that no parser of Spark takes; of an empty one nothing is said."""
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


def _refuse_parentheses(statement: str, tokens: Sequence[Token]) -> None:
    opened: list[Token] = []
    for token in tokens:
        if token.text == "(":
            opened.append(token)
        elif token.text == ")":
            if not opened:
                raise QueryError(f"{_at(statement, token)}: no parenthesis is open that this could close")
            opened.pop()
    if opened:
        raise QueryError(f"{_at(statement, opened[-1])}: this parenthesis is not closed")


def _at(statement: str, token: Token) -> str:
    """Say where a mistake is."""
    line = statement.count("\n", 0, token.start) + 1
    rest = " ".join(statement[token.start :].split())
    shown = rest if len(rest) <= _SHOWN_CHARACTERS else f"{rest[:_SHOWN_CHARACTERS]}…"
    return f"'{shown}'" if line == 1 else f"line {line}, '{shown}'"
