"""The committed page of formats is what the modules say."""

from __future__ import annotations

from pathlib import Path

from kafscale.formats.reference import formats_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "formats.md"


def test_the_page_is_made_from_the_code() -> None:
    assert PAGE.read_text() == formats_page(), "run: python -m kafscale.formats.reference > docs/reference/formats.md"
