"""Text that strangers chose, such as names, client ids and records, made fit for a log or a terminal.

What could write lines of its own, move the cursor or turn the direction of the text is shown as an escape: control
characters (C0, C1 and DEL), the separators of lines and paragraphs, and what directs bidirectional text (the attacks
of https://trojansource.codes). Everything else stays as it is.

May not import anything of KafScale.
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
    """The text on one line."""
    return text.translate(_ESCAPES)


def escaped_lines(text: str) -> str:
    """The text with its line ends and tabs as they are."""
    return text.translate(_ESCAPES_IN_LINES)


def escaped_bytes(data: bytes) -> bytes:
    """Escape bytes as `escaped_lines` does text; what is not UTF-8 is shown as escapes too."""
    return escaped_lines(data.decode(errors="backslashreplace")).encode()


def escaped_json(document: str) -> str:
    """A JSON document of the same meaning, in which they are JSON's own escapes; its line ends stay."""
    return document.translate(_JSON_ESCAPES)


def bounded(text: str, most_count: int) -> str:
    """The text, or that many of its first characters and how many there were."""
    return text if len(text) <= most_count else f"{text[:most_count]}… ({len(text)} characters)"
