"""The tree of DuckDB's parser, and statements of Spark in that parser's spelling.

The tree is read strictly: a node with more fields than a rule knows goes to Spark. Quoted names, strings, and words
that only one of both reserves are spelled anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.spark.duckdb.kinds import NotAlike, quoted, single_quoted
from kafscale.spark.sql.tokens import Edit, SqlToken, edited, tokenize

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# What every node may have. A function has no order of its arguments if the modifier in it is empty.
_ALWAYS = frozenset(("class", "type", "query_location", "query_location_length", "alias"))
_EMPTY: Sequence[Any] = (None, False, [], {}, {"type": "ORDER_MODIFIER"})


@attrs.frozen
class ParsedNode:
    """A node of the tree, by its fields."""

    fields: Mapping[str, Any]

    @property
    def type(self) -> str:
        return str(self.fields.get("type", ""))

    @property
    def alias(self) -> str | None:
        return self.fields.get("alias")

    @property
    def position_bytes(self) -> int:
        return int(self.fields.get("query_location", 0))

    def only(self, *names: str) -> ParsedNode:
        """Return the node. Raises NotAlike if it has other fields than these, and those of every node."""
        for name, value in self.fields.items():
            if name not in _ALWAYS and name not in names and value not in _EMPTY:
                raise NotAlike(f"of {name.replace('_', ' ')} no rule tells")
        return self

    def text(self, name: str) -> str:
        return str(self.fields.get(name, ""))

    def has(self, name: str) -> bool:
        return self.fields.get(name) not in _EMPTY

    def node(self, name: str) -> ParsedNode:
        return ParsedNode(self.fields[name])

    def nodes(self, name: str) -> Sequence[ParsedNode]:
        return [ParsedNode(inner) for inner in self.fields.get(name) or []]

    def raw(self, name: str) -> Any:
        return self.fields.get(name)


def parsed(connection: DuckDBPyConnection, text: str) -> ParsedNode:
    told = connection.execute(
        "SELECT json_serialize_sql(?::VARCHAR, skip_null := true, skip_empty := true, skip_default := true)", [text]
    ).fetchall()
    tree = json.loads(told[0][0])
    if tree.get("error") or len(tree["statements"]) != 1:
        why = tree.get("error_message") if tree.get("error_type") == "parser" else None
        raise NotAlike(f"DuckDB does not read it as a query ({why})" if why else "DuckDB does not read it as a query")
    return ParsedNode(tree["statements"][0]).node("node")


FIELDS = "kafscale_fields"
NUMBER = re.compile(r"\d+(\.\d+)?")
SIGNS = frozenset("(),.*+-/%=<>!|;")
REFUSED = ("RECURSIVE", "TABLESAMPLE", "LATERAL", "PIVOT", "UNPIVOT", "QUALIFY", "WINDOW", "POSITIONAL", "ASOF")
# Behind these a value is expected, so that OFFSET is the column and not the clause.
BEFORE_VALUES = frozenset(
    ("SELECT", "WHERE", "AND", "OR", "NOT", "BY", "BETWEEN", "ON", "HAVING", "WHEN", "THEN", "ELSE", "CASE", "DISTINCT")
)


@attrs.frozen
class Spelled:
    text: str
    edits: Sequence[Edit]

    def original(self, position_bytes: int) -> int:
        """Return the place in the original statement of a place in the text, in bytes of UTF-8."""
        position = len(self.text.encode()[:position_bytes].decode(errors="ignore"))
        moved = 0
        for edit in self.edits:
            if edit.start + moved >= position:
                break
            moved += len(edit.text) - (edit.end - edit.start)
        return position - moved


def spelled(text: str) -> Spelled:
    tokens = tokenize(text)
    edits = list(_fields(tokens))
    for before, token, following in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        replaced = _spelling(token, before, following)
        if replaced is not None:
            edits.append(Edit(start=token.start, end=token.end, text=replaced))
    edits.sort(key=lambda edit: (edit.start, edit.end))
    return Spelled(edited(text, edits), edits)


def _fields(tokens: Sequence[SqlToken]) -> Iterator[Edit]:
    """Make calls of `decoded.value.*`, which DuckDB's parser does not know."""
    for index, token in enumerate(tokens):
        if token.text != "*" or index < 4 or tokens[index - 1].text != ".":
            continue
        first = index - 2
        while first >= 2 and tokens[first - 1].text == ".":
            first -= 2
        if first < index - 2:
            yield Edit(start=tokens[first].start, end=tokens[first].start, text=f"{FIELDS}(")
            yield Edit(start=tokens[index - 1].start, end=token.end, text=")")


def _spelling(token: SqlToken, before: SqlToken | None, following: SqlToken | None) -> str | None:
    """Return the replacement of a token; None to leave it."""
    text = token.text
    if token.is_open:
        raise NotAlike("a string or a name does not end")
    if text.startswith("`"):
        return quoted(token.name)
    if _is_string(token):
        if before is not None and _changes_strings(before, token):
            raise NotAlike("a string stands where DuckDB reads another thing")
        return _string(text)
    if text[0].isdigit():
        is_suffixed = following is not None and following.start == token.end and following.text not in SIGNS
        if NUMBER.fullmatch(text) is None or is_suffixed:
            raise NotAlike(f"'{text}' is a number of Spark's own kind")
        return None
    if text[0].isalnum() or text[0] == "_":
        return _word(token, before, following)
    if text not in SIGNS:
        raise NotAlike(f"'{text}' is not read by both alike")
    return None


def _word(token: SqlToken, before: SqlToken | None, following: SqlToken | None) -> str | None:
    word = token.word
    if word in REFUSED:
        raise NotAlike(f"{word} is Spark's")
    is_name = before is not None and before.text == "."
    if word == "OFFSET":
        is_clause = following is not None and following.text.isdigit() and not is_name and not _awaits_value(before)
        return None if is_clause else quoted(token.text)
    if word == "TIMESTAMP":
        return None if following is not None and _is_string(following) and not is_name else quoted(token.text)
    if word == "PARTITION":
        return None if following is not None and following.word == "BY" else quoted(token.text)
    return None


def _awaits_value(before: SqlToken | None) -> bool:
    return before is None or before.word in BEFORE_VALUES or before.text in SIGNS - {")", "*"}


def _changes_strings(before: SqlToken, token: SqlToken) -> bool:
    """Tell whether a string continues one before it, is a name, or has a prefix."""
    return _is_string(before) or before.word == "AS" or (before.end == token.start and before.text not in SIGNS)


def _is_string(token: SqlToken) -> bool:
    return token.text.endswith(("'", '"')) and len(token.text) > 1


def _string(text: str) -> str:
    is_raw = text[0] in "rR"
    quote, content = text[-1], text[2 if is_raw else 1 : -1]
    if not is_raw and ("\\" in content or quote in content):
        raise NotAlike("a string has escapes in it")
    return single_quoted(content)
