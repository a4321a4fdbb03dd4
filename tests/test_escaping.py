"""Text of strangers: nothing in it acts on a terminal or ends a line, and what is harmless stays as it is."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from kafscale.escaping import bounded, escaped, escaped_bytes, escaped_json, escaped_lines

HOSTILE = "a\x1b[2J\x9b31m\u202eb\u2066c\u2028d\x7f\r\n\te\ud800"


def _acts(text: str) -> list[str]:
    """What a terminal, or a reader of lines, would act on."""
    return [each for each in text if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp")]


def test_control_characters_are_shown_as_escapes() -> None:
    assert escaped(HOSTILE) == r"a\x1b[2J\x9b31m\u202eb\u2066c\u2028d\x7f\x0d\x0a\x09e\ud800"
    assert escaped_lines("a\tb\n\x1b") == "a\tb\n\\x1b"
    assert escaped_bytes("é\n\x1b".encode() + b"\xff\x9b") == "é\n\\x1b\\xff\\x9b".encode()


def test_harmless_text_is_unchanged() -> None:
    text = "plain, ü, 漢字, العربية, 🎉 and a \\"
    assert escaped(text) == escaped_lines(text) == text


@given(st.text())
def test_no_text_gets_through(text: str) -> None:
    assert _acts(escaped(text)) == []
    assert set(_acts(escaped_lines(text))) <= {"\n", "\t"}


@given(st.dictionaries(st.text(), st.text()))
def test_a_json_document_keeps_its_meaning(fields: dict[str, str]) -> None:
    for indent in (None, 2):
        document = escaped_json(json.dumps(fields, ensure_ascii=False, indent=indent))
        assert json.loads(document) == fields
        assert set(_acts(document)) <= {"\n"}


def test_a_long_text_is_cut() -> None:
    assert bounded("abc", 3) == "abc"
    assert bounded("abcd", 3) == "abc… (4 characters)"
