"""A folder is a room: its page says what it is for, and it and the modules of the folder around it are no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import attrs
import grimp
import pytest

from tests.docs.fragments import REPOSITORY

PACKAGE = "kafscale"
PAGES = sorted((REPOSITORY / PACKAGE).rglob("__init__.py"))


@attrs.frozen(order=True)
class Import:
    """One module needs another."""

    importer: str
    imported: str


def circles(graph: grimp.ImportGraph) -> list[str]:
    """The rooms that a module of a folder around them needs, while they need a module of that folder."""
    imports = {Import(importer, each) for importer in graph.modules for each in _imported(graph, importer)}
    arrows = {Import(_room(graph, each.importer), _room(graph, each.imported)) for each in imports}
    return sorted(
        f"{arrow.importer} and {arrow.imported}"
        for arrow in arrows
        if arrow.imported.startswith(f"{arrow.importer}.") and Import(arrow.imported, arrow.importer) in arrows
    )


def _imported(graph: grimp.ImportGraph, importer: str) -> Iterable[str]:
    return graph.find_modules_directly_imported_by(importer)


def _room(graph: grimp.ImportGraph, module: str) -> str:
    return module if graph.find_children(module) else module.rpartition(".")[0]


def test_no_room_and_its_parent_folder_import_each_other() -> None:
    """Left out is the top folder, which has both the broker, above all rooms, and errors and metrics, below them."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    assert [circle for circle in circles(graph) if not circle.startswith(f"{PACKAGE} ")] == []


@pytest.mark.parametrize(
    ("importer", "imported", "found"),
    [
        ("house.table", "house.topics.create", []),
        ("house.topics.create", "house.services", ["house and house.topics"]),
        ("house.topics.create", "house.handling.services", []),
    ],
)
def test_a_room_that_imports_its_parent_folder_is_found(importer: str, imported: str, found: list[str]) -> None:
    graph = grimp.ImportGraph()
    for module in ("house", "house.topics", importer, imported):
        graph.add_module(module)
    graph.add_import(importer="house.table", imported="house.topics.create")
    graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.parent.relative_to(REPOSITORY)))
def test_every_room_page_has_a_docstring(page: Path) -> None:
    assert ast.get_docstring(ast.parse(page.read_text()))
