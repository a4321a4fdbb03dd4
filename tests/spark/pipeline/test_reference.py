"""The page of keys is the one that the code makes."""

from pathlib import Path

from kafscale.spark.pipeline.reference import reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "pipeline.md"


def test_the_page_matches_the_generated_reference():
    assert PAGE.read_text() == reference()
