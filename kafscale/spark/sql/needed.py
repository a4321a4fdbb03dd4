"""Which columns of its topics a statement can need: those whose names are anywhere in its text.

Spark reads all columns of a source in Python, and leaves out later what a query does not need. So the source is loaded
with a schema that has fewer. What is said here is more than is needed rather than less: a name in a string or a comment
counts, and so does a part of a longer one. Where columns may be meant that are not named, as by `*`, none are told.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from kafscale.spark.sql.clauses import SET_OPERATORS
from kafscale.spark.sql.tokens import Token, tokenize

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
    """Return which of these columns a statement can need; None if it may need all. `others` are names of some, too."""
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


def _is_star(tokens: Sequence[Token], index: int) -> bool:
    """Tell whether a token is a `*`, but that of `count(*)`."""
    around = [token.word for token in tokens[max(0, index - 2) : index + 2]]
    return tokens[index].text == "*" and around != ["COUNT", "(", "*", ")"]


def _is_bare(words: Sequence[str], index: int) -> bool:
    """Tell whether a query begins with this FROM, or goes on by a pipe."""
    if words[index] == "FROM":
        return not index or words[index - 1] in BEFORE_QUERY
    return words[index : index + 2] == ["|", ">"]
