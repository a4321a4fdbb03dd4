"""No docstring begins in the middle of a sentence, and what they name is there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.docs.fragments import REPOSITORY, fragments


def test_docstrings_are_sentences() -> None:
    found = [str(fragment) for path in sorted((REPOSITORY / "kafscale").rglob("*.py")) for fragment in fragments(path)]
    assert not found, "\n".join(found)


def test_modules_that_are_named_exist() -> None:
    """By a module's path, or that of something in it; a config and a logger begin likewise."""
    unknown = [
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path in sorted((REPOSITORY / "kafscale").rglob("*.py"))
        for name in re.findall(r"`(kafscale(?:\.[a-z_0-9]+)+)", path.read_text())
        if name not in ("kafscale.draining", "kafscale.audit") and not _is_module(name)
        if not _is_module(name.rpartition(".")[0])
    ]
    assert not unknown


def _is_module(name: str) -> bool:
    path = REPOSITORY.joinpath(*name.split("."))
    return "." in name and (path.is_dir() or path.with_suffix(".py").is_file())


@pytest.mark.parametrize(
    ("docstring", "is_fragment"),
    [
        ("Of the mapping.", True),
        ("By topic id.", True),
        ("Whether it is full.", True),
        ("Tell whether it is full.", False),
        ("The checkpoint of the mapping.", False),
    ],
)
def test_a_fragment_is_recognised_by_its_first_word(docstring: str, is_fragment: bool, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(f'def function():\n    """{docstring}"""\n')
    assert [fragment.name for fragment in fragments(path)] == (["function"] if is_fragment else [])


def test_a_class_docstring_can_be_a_clause(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        textwrap.dedent('''
        class Kind:
            """What a finding is about."""

            class Other:
                """Of the mapping."""
    ''')
    )
    assert [fragment.name for fragment in fragments(path)] == ["Other"]
