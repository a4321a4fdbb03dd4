"""The pages: links lead somewhere, every page can be found, and every option that is named exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from kafscale.config import options

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(DOCS.rglob("*.md")),
]
WRITTEN_PAGES = [page for page in PAGES if page.parent.name != "reference"]  # the others are made from the code

_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FILE = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|json|txt))`")
_MODULE = re.compile(r"`(?:[a-z_0-9]+/)*([a-z_0-9]+\.py)`")
_FLAG = re.compile(r"(?<![\w-])--[a-z0-9][a-z0-9-]*")
_COMMANDS_OF_OTHERS = re.compile(
    r"^.*(?:docker|curl|cp -a|kafka-[\w-]+\.sh|pip install|create(?:user|db) |spark-(?:submit|class)|kubectl|helm "
    r"|uvx --from|useradd |systemctl ).*$",
    re.MULTILINE,
)
_FLAGS_OF_OTHERS = {"--cores", "--memory", "--packages", "--py-files"}  # Spark's own
_FLAGS_OF_OTHERS |= {"--set"}  # Helm's
_FLAGS_OF_OTHERS |= {"--add-config", "--entity-type", "--entity-name"}  # those of Kafka's tools


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_files_that_are_named_exist(page: Path) -> None:
    """A file is named by its path in the repository, or below `kafscale`."""
    roots = (REPOSITORY, REPOSITORY / "kafscale")
    named = set(_FILE.findall(page.read_text()))
    assert {name for name in named if not any((root / name).exists() for root in roots)} == set()


@pytest.mark.parametrize("page", WRITTEN_PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_modules_that_are_named_exist(page: Path) -> None:
    """Also those that a page names without the folder, which it has told before."""
    assert set(_MODULE.findall(page.read_text())) - _modules() <= {"read.py"}, "which the tutorial has its reader write"


@cache
def _modules() -> set[str]:
    return {path.name for room in ("kafscale", "tests", "bench") for path in (REPOSITORY / room).rglob("*.py")}


def test_every_page_can_be_found_from_the_index() -> None:
    linked = {target for target, _ in _links(DOCS / "README.md")}
    for index in (DOCS / "decisions" / "README.md", DOCS / "benchmarks" / "README.md"):
        assert index in linked
        linked |= {target for target, _ in _links(index)}
    assert {page for page in DOCS.rglob("*.md") if page.name != "README.md"} <= linked


@pytest.mark.parametrize("page", WRITTEN_PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_options_exist(page: Path) -> None:
    named = set(_FLAG.findall(_COMMANDS_OF_OTHERS.sub("", page.read_text())))
    assert named <= {option.flag for option in options()} | _flags_of_commands() | _FLAGS_OF_OTHERS, "no such option"


@cache
def _flags_of_commands() -> set[str]:
    """Every flag of the other commands, from their sources."""
    folders = [REPOSITORY / name for name in ("kafscale/cli", "bench", "tests/devtools", "deploy")]
    sources = [source for folder in folders for source in folder.rglob("*.py")]
    return {flag for source in sources for flag in _FLAG.findall(source.read_text())}


_TERMS = re.compile(r"\b(?:epochs?|incarnations?|fenced?|footers?|manifests?|chunk pool|leases?|superseded)\b")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", WRITTEN_PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_pages_that_use_terms_link_to_the_glossary(page: Path) -> None:
    if _TERMS.search(_CODE.sub("", page.read_text())):
        assert DOCS / "reference" / "glossary.md" in {target for target, _ in _links(page)}
