"""A statement of Spark in the spelling of DuckDB's parser: quoted names, strings, and words that only one reserves.

What is spelled alike and means something else (escapes in strings, `10L`, hints of types behind numbers) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import attrs

from kafscale.spark.quick.constants import string
from kafscale.spark.quick.errors import NotAlike
from kafscale.spark.quick.kinds import quoted
from kafscale.spark.sql.edits import Edit, edited
from kafscale.spark.sql.tokens import Token, tokenize

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
    """The text, and the edits that made it."""

    text: str
    edits: Sequence[Edit]

    def original(self, position_bytes: int) -> int:
        """Return where in the original statement a place of the text is, which DuckDB counts in bytes of UTF-8."""
        position = len(self.text.encode()[:position_bytes].decode(errors="ignore"))
        moved = 0
        for each in self.edits:
            if each.start + moved >= position:
                break
            moved += len(each.text) - (each.end - each.start)
        return position - moved


def spelled(text: str) -> Spelled:
    """Raises NotAlike."""
    tokens = tokenize(text)
    edits = [edit for index in range(len(tokens)) if (edit := _edit(tokens, index)) is not None]
    edits = sorted([*edits, *_fields(tokens)], key=lambda edit: edit.start)
    return Spelled(edited(text, edits), edits)


def _fields(tokens: Sequence[Token]) -> Iterator[Edit]:
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


def _edit(tokens: Sequence[Token], index: int) -> Edit | None:
    token = tokens[index]
    before = tokens[index - 1] if index else None
    following = tokens[index + 1] if index + 1 < len(tokens) else None
    replaced = _spelling(token, before, following)
    return None if replaced is None else Edit(start=token.start, end=token.end, text=replaced)


def _spelling(token: Token, before: Token | None, following: Token | None) -> str | None:
    """Return what is to stand in the place of a token; None to leave it as it is."""
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


def _word(token: Token, before: Token | None, following: Token | None) -> str | None:
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


def _awaits_value(before: Token | None) -> bool:
    return before is None or before.word in BEFORE_VALUES or before.text in SIGNS - {")", "*"}


def _changes_strings(before: Token, token: Token) -> bool:
    """Tell whether a string goes on with one before it, is a name, or has a letter before it that says what it is."""
    return _is_string(before) or before.word == "AS" or (before.end == token.start and before.text not in SIGNS)


def _is_string(token: Token) -> bool:
    return token.text.endswith(("'", '"')) and len(token.text) > 1


def _string(text: str) -> str:
    is_raw = text[0] in "rR"
    quote, content = text[-1], text[2 if is_raw else 1 : -1]
    if not is_raw and ("\\" in content or quote in content):
        raise NotAlike("a string has escapes in it")
    return string(content).sql
