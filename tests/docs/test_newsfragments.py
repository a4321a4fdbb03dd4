"""Changelog fragments: each has a known kind, and holds one paragraph for users."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DIRECTORY = REPOSITORY / "newsfragments"
FRAGMENTS = sorted(path for path in DIRECTORY.iterdir() if path.name != "README.md")
_SETTINGS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["towncrier"]


def test_towncrier_reads_the_newsfragments_directory_and_the_changelog_marker() -> None:
    assert REPOSITORY / _SETTINGS["directory"] == DIRECTORY
    assert (REPOSITORY / _SETTINGS["filename"]).read_text().count(_SETTINGS["start_string"]) == 1


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda fragment: fragment.name)
def test_a_fragment_has_a_valid_kind_and_one_paragraph(fragment: Path) -> None:
    kinds = {kind["directory"] for kind in _SETTINGS["type"]}
    assert re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(kinds)})\.md", fragment.name)
    text = fragment.read_text()
    assert text.strip().endswith(".")
    assert "\n\n" not in text.strip()
