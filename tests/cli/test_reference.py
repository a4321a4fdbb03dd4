"""The committed reference page is what the code says."""

from __future__ import annotations

from pathlib import Path

from kafscale.cli.reference import SECTIONS, options_page
from kafscale.config import options

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"


def test_the_page_is_made_from_the_code() -> None:
    assert PAGE.read_text() == options_page(), "run: kafscale config --reference > docs/reference/options.md"


def test_each_option_is_in_one_section_and_the_first_has_ten() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(each.name for each in options())
    assert len(next(iter(SECTIONS.values()))) == 10


def test_there_are_at_most_97_options() -> None:
    assert len(options()) <= 97


def test_names_are_unique_and_fit_all_three_places() -> None:
    names = [each.name for each in options()]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() and name == name.lower() for name in names)
    assert not [name for name in names if name.endswith(("-ms", "-seconds", "-count"))]


def test_a_cell_of_the_table_holds_no_bare_bar() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `--")]
    assert len(rows) == len(options())
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)
