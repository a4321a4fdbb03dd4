"""The pages: links lead somewhere, every page can be found, and every option that is named exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafscale.config import options

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
WRITTEN_PAGES = [page for page in PAGES if page.parent.name != "reference"]  # the others are made from the code

_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FLAG = re.compile(r"(?<![\w-])--[a-z0-9][a-z0-9-]*")
_COMMANDS_OF_OTHERS = re.compile(
    r"^.*(?:docker|kafka-[\w-]+\.sh|pip install|create(?:user|db) |spark-(?:submit|class)).*$", re.MULTILINE
)
_FLAGS_OF_OTHERS = {"--cores", "--memory", "--packages", "--py-files"}  # Spark's own


def _links(page: Path) -> list[tuple[Path, str]]:
    return [
        ((page.parent / path).resolve() if path else page, anchor) for path, anchor in _LINK.findall(page.read_text())
    ]


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(page.read_text())
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _links(page):
        assert target.exists(), target
        assert not anchor or anchor in _anchors(target), f"{target}#{anchor}"


def test_every_page_can_be_found_from_the_index() -> None:
    linked = {target for target, _ in _links(DOCS / "README.md")}
    assert {page for page in DOCS.rglob("*.md") if page.name != "README.md"} <= linked


@pytest.mark.parametrize("page", WRITTEN_PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_options_exist(page: Path) -> None:
    named = set(_FLAG.findall(_COMMANDS_OF_OTHERS.sub("", page.read_text())))
    assert named <= {each.flag for each in options()} | _flags_of_commands() | _FLAGS_OF_OTHERS, "no such option"


def _flags_of_commands() -> set[str]:
    """Those of every other command, from the sources of `kafscale.cli` and `bench`."""
    sources = [*(REPOSITORY / "kafscale" / "cli").glob("*.py"), *(REPOSITORY / "bench").rglob("*.py")]
    return {flag for source in sources for flag in _FLAG.findall(source.read_text())}
