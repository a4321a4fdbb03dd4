"""Hooks of the site: make its navigation from docs/README.md, and take in the files outside of docs that pages link to.

A section of the navigation is a bold row of that page's table, with the pages of the rows behind it. The folders of
decisions and benchmarks have an index of their own, whose pages come below it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
OUTSIDE = "repository"  # where files outside of docs are on the site
FIRST_SECTION = "start"
INDEXES = ("decisions/README.md", "benchmarks/README.md")
_ROW = re.compile(r"^\| (?P<cell>.*?) \|(?P<links>.*)\|$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?!https?://|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")

Nav = Sequence[Any]


def navigation() -> Nav:
    """Return the navigation in the form of MkDocs, without titles of pages."""
    sections: dict[str, list[Any]] = {FIRST_SECTION: ["README.md"]}
    section, seen = FIRST_SECTION, {"README.md"}
    for row in _ROW.finditer((DOCS / "README.md").read_text()):
        if row["cell"].startswith("**"):
            section = row["cell"].strip("*")
        for page in _pages_of(DOCS / "README.md", row["links"]):
            if page not in seen:
                seen.add(page)
                entry: Any = {_title_of(page): [page, *_below(page, seen)]} if page in INDEXES else page
                sections.setdefault(section, []).append(entry)
    return [{name[0].upper() + name[1:]: pages} for name, pages in sections.items()]


def _below(index: str, seen: set[str]) -> Sequence[str]:
    pages = dict.fromkeys(_pages_of(DOCS / index, (DOCS / index).read_text()))
    found = [page for page in pages if page not in seen and page.startswith(index.partition("/")[0])]
    seen.update(found)
    return found


def _pages_of(page: Path, text: str) -> Iterator[str]:
    for target in _targets(page, text):
        if target.suffix == ".md" and target.is_relative_to(DOCS):
            yield str(target.relative_to(DOCS))


def _targets(page: Path, text: str) -> Iterator[Path]:
    for link in _LINK.finditer(text):
        yield Path(os.path.normpath(page.parent / link["path"]))


def _title_of(page: str) -> str:
    return (DOCS / page).read_text().partition("\n")[0].removeprefix("# ")


def outside_files() -> Mapping[str, Path]:
    """Return the files outside of docs that pages link to, directly or not, by their place on the site."""
    found: dict[str, Path] = {}
    waiting = sorted(DOCS.rglob("*.md"))
    while waiting:
        page = waiting.pop()
        for target in _targets(page, page.read_text()):
            place = _place(target)
            if target.is_file() and not target.is_relative_to(DOCS) and place not in found:
                found[place] = target
                waiting += [target] if target.suffix == ".md" else []
    return found


def _place(path: Path) -> str:
    """Return the place of a file on the site."""
    if path.is_relative_to(DOCS):
        return str(path.relative_to(DOCS))
    return f"{OUTSIDE}/{path.relative_to(REPOSITORY)}"


def relinked(text: str, source: Path) -> str:
    """Return a page with its links as they are on the site."""
    here = os.path.dirname(_place(source))

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / found["path"]))
        if not target.is_relative_to(REPOSITORY):
            return found[0]
        return os.path.relpath(_place(target), here or ".") + (found["anchor"] or "")

    return _LINK.sub(link, text)


# ---- what MkDocs calls --------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    outside = [place for place in outside_files() if place.endswith(".md")]
    config.nav = [*navigation(), {"Repository": sorted(outside)}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for place, path in outside_files().items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    path = page.file.abs_src_path
    assert path is not None
    return relinked(markdown, Path(path))
