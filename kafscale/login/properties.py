"""Kafka's files of client settings, as java.util.Properties.load reads them: `name = value` in lines.

# or ! begins a comment, a backslash at the end continues a line, and elsewhere it begins an escape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kafscale.errors import ConfigError

_LINE = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.|$)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_BLANK = " \t\f"


def read_properties(path: Path) -> dict[str, str]:
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(
            f"'{path}' can't be read ({exc.strerror or exc}); allowed: a file of Kafka's settings"
        ) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"'{path}' is not UTF-8; allowed: a file of settings, NAME=VALUE in lines") from exc


def parse_properties(text: str) -> dict[str, str]:
    """Read the lines of a file; the last one of a name counts."""
    found = {}
    for line in _logical_lines(text):
        match = _LINE.match(line)
        assert match is not None  # any text matches
        found[_unescape(match[1])] = _unescape(match[2])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yield joined lines without comments."""
    begun = ""
    for line in re.split(r"\r\n|\n|\r", text):
        line = line.lstrip(_BLANK)
        if not begun and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun += line[:-1]
            continue
        yield begun + line
        begun = ""
    if begun:
        yield begun


def _unescape(text: str) -> str:
    def meaning(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) > 1 else _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(meaning, text)
