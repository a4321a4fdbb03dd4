"""SQL cut into tokens by the rules of Spark's lexer: enough to find words and parentheses outside of strings, quoted
names and comments. What the tokens mean is for Spark's own parser.

Positions count characters, as Spark's parser does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import attrs

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
class Token:
    """`end` is exclusive. `is_open`: a string, name or comment that the text ends within."""

    text: str
    start: int
    end: int
    is_open: bool = False

    @property
    def word(self) -> str:
        """The word to compare with keywords. That of a quoted name equals none, as it keeps its quotes."""
        return self.text.upper()

    @property
    def name(self) -> str:
        """The name that an identifier stands for."""
        return self.text[1:-1].replace("``", "`") if self.text.startswith("`") else self.text


def tokenize(text: str) -> Sequence[Token]:
    """All tokens but spaces and comments."""
    return list(_tokens(text))


def split_statements(text: str) -> tuple[Sequence[str], str]:
    """The statements that a semicolon ends, without it, and what is behind the last one."""
    statements: list[str] = []
    start = 0
    for token in _tokens(text):
        if token.text == ";":
            statements.append(text[start : token.start].strip())
            start = token.end
    return [each for each in statements if tokenize(each)], text[start:]


def closing(tokens: Sequence[Token], opening: int) -> int:
    """Index of the parenthesis that closes the one at index `opening`; of the last token if none does."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[index].text, 0)
        if depth == 0:
            return index
    return len(tokens) - 1


def _tokens(text: str) -> Iterator[Token]:
    position = 0
    while match := _TOKEN.match(text, position):
        position = match.end()
        if match["comment"]:
            position = _comment_end(text, position)
            if position < 0:
                yield Token(text[match.start() :], match.start(), len(text), is_open=True)
                return
        elif not match["space"]:
            yield Token(match[0], match.start(), match.end(), is_open=match["open"] is not None)


def _comment_end(text: str, position: int) -> int:
    """Comments nest. -1 if the text ends within."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, position):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return -1
