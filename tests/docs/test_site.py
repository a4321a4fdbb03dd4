"""The site of the documentation: its navigation has every page, and what `make docs` has built needs no other host."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs
import pytest

from tests.docs.test_pages import DOCS, REPOSITORY

SITE = REPOSITORY / "build" / "site"
ASSETS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
LINKED_RELATIONS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload", "dns-prefetch"}


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", REPOSITORY / "deploy" / "site" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages_in(navigation: Any) -> Iterator[str]:
    if isinstance(navigation, str):
        yield navigation
        return
    for entry in navigation.values() if isinstance(navigation, dict) else navigation:
        yield from pages_in(entry)


def test_the_navigation_has_every_page_once(hooks: ModuleType) -> None:
    found = list(pages_in(hooks.navigation()))
    assert sorted(found) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_sections_are_those_of_the_index(hooks: ModuleType) -> None:
    titles = [title for section in hooks.navigation() for title in section]
    assert titles[0] == "Start"
    assert {"Connect programs", "Run brokers", "Secure brokers", "Look something up"} <= set(titles)


def test_links_that_leave_docs_lead_to_copies(hooks: ModuleType) -> None:
    text = "[a](../CONTRIBUTING.md#style) [b](operations.md) [c](https://example.org/x.md)"
    assert hooks.relinked(text, DOCS / "README.md") == (
        "[a](repository/CONTRIBUTING.md#style) [b](operations.md) [c](https://example.org/x.md)"
    )
    back = hooks.relinked("[a](docs/operations.md) [b](LICENSE)", REPOSITORY / "CONTRIBUTING.md")
    assert back == "[a](../operations.md) [b](LICENSE)"
    assert "repository/CONTRIBUTING.md" in hooks.outside_files()


# ---- the built site -----------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Parsed(HTMLParser):
    ids: set[str] = attrs.field(factory=set)
    links: list[str] = attrs.field(factory=list)
    assets: list[str] = attrs.field(factory=list)

    def __attrs_pre_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {str(given[name]) for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        is_loaded = tag != "link" or LINKED_RELATIONS & set(str(given.get("rel")).split())
        if is_loaded and given.get(ASSETS.get(tag, "")):
            self.assets.append(str(given[ASSETS[tag]]))


@cache
def parsed(page: Path) -> Parsed:
    parser = Parsed()
    parser.feed(page.read_text())
    return parser


@pytest.fixture(scope="module")
def built() -> list[Path]:
    if not SITE.exists():
        pytest.skip("there is no build/site: run `make docs`")
    return sorted(page for page in SITE.rglob("*.html") if page.name != "404.html")


@pytest.mark.site
def test_each_page_is_built(built: list[Path]) -> None:
    wanted = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    names = {page.with_name("index.html") if page.name == "README.html" else page for page in wanted}
    assert names <= {page.relative_to(SITE) for page in built}


@pytest.mark.site
def test_links_of_the_built_pages_lead_to_pages_and_their_headings(built: list[Path]) -> None:
    broken = []
    for page in built:
        for link in parsed(page).links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (url.fragment and unquote(url.fragment) not in parsed(target).ids):
                broken.append(f"{page.relative_to(SITE)}: {link}")
    assert broken == []


@pytest.mark.site
def test_nothing_is_loaded_from_another_host(built: list[Path]) -> None:
    outside = [asset for page in built for asset in parsed(page).assets if urlsplit(asset).netloc]
    assert outside == []
    styles = "".join(sheet.read_text() for sheet in SITE.rglob("*.css"))
    assert "url(http" not in styles.replace('"', "").replace("'", "")
    assert "@import" not in styles


@pytest.mark.site
def test_the_search_finds_an_option_and_a_heading(built: list[Path]) -> None:
    index = json.loads((SITE / "search" / "search_index.json").read_text())
    texts = {document["location"]: document["text"] for document in index["docs"]}
    assert "--chunk-pool-bytes" in "".join(text for place, text in texts.items() if "options" in place)
    assert any("the-store-does-not-answer" in place for place in texts)
