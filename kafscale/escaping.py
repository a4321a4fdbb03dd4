"""Text that strangers chose, made safe for a log or a terminal.

Control characters (C0, C1 and DEL), separators of lines and paragraphs, and bidirectional controls
(https://trojansource.codes) are shown as escapes. May not import anything of KafScale.
"""

from __future__ import annotations

from typing import Final

_BIDI: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SEPARATORS: Final = (0x2028, 0x2029)
_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0))
# Surrogates too: what is printed must be encoded, and they can't be.
_ESCAPES: Final = {
    **{code: f"\\x{code:02x}" for code in _CONTROLS},
    **{code: f"\\u{code:04x}" for code in (*_BIDI, *_SEPARATORS, *range(0xD800, 0xE000))},
}
_ESCAPES_IN_LINES: Final = {code: escape for code, escape in _ESCAPES.items() if chr(code) not in "\n\t"}
_JSON_ESCAPES: Final = {code: f"\\u{code:04x}" for code in _ESCAPES if chr(code) != "\n"}


def escaped(text: str) -> str:
    return text.translate(_ESCAPES)


def escaped_lines(text: str) -> str:
    """Escape the text, except for line ends and tabs."""
    return text.translate(_ESCAPES_IN_LINES)


def escaped_bytes(data: bytes) -> bytes:
    """Escape bytes like `escaped_lines`, and bytes that are not UTF-8."""
    return escaped_lines(data.decode(errors="backslashreplace")).encode()


def escaped_json(document: str) -> str:
    """Escape a JSON document by JSON's own escapes, except for line ends."""
    return document.translate(_JSON_ESCAPES)


def bounded(text: str, most_count: int) -> str:
    """Return the text, or its first `most_count` characters and its length."""
    return text if len(text) <= most_count else f"{text[:most_count]}… ({len(text)} characters)"
