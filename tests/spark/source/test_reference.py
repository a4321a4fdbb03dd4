"""The page of options is the one that the code makes."""

from pathlib import Path

from kafscale.spark.source.options import OPTIONS
from kafscale.spark.source.reference import HEADINGS, reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "spark-options.md"


def test_the_page_matches_the_generated_reference():
    assert PAGE.read_text() == reference()


def test_every_option_is_on_the_page():
    assert OPTIONS.keys() == HEADINGS.keys()
    options = [option for group in OPTIONS.values() for option in group]
    assert all(reference().count(f"| `{option.name}` |") == 1 for option in options)
