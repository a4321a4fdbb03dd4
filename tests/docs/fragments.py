"""Finds docstrings that begin in the middle of a sentence: `python -m tests.docs.fragments [FOLDER...]`.

A docstring is read by somebody who has not read the code around it. "Of the mapping." or "By topic id." is no sentence:
it needs its author. So none may begin with a preposition, a conjunction or a pronoun that stands for what came before.
That of a function does not begin with `whether`, `what` or `how` either, which lack the verb that governs them; that of
a class or a module may, where such a clause is a title.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

REPOSITORY = Path(__file__).parents[2]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEVER = _words(
    "Of By As With Without Also Those Until Since Behind Or And But So Over Such Like After Before Than Between"
)
NOT_OF_FUNCTIONS = _words(
    "Whether What Where How Which Who Whose When While From For At In To That Not Both Each Nothing"
)


@attrs.frozen(kw_only=True)
class Fragment:
    """A docstring that is no sentence, and where it is."""

    path: Path
    line: int
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.name}: {self.text}"


def fragments(path: Path) -> Iterator[Fragment]:
    """Find the fragments among the docstrings of one file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text and _is_fragment(node, text):
            yield Fragment(
                path=path,
                line=getattr(node, "lineno", 1),
                name=getattr(node, "name", "the module"),
                text=" ".join(text.split())[:80],
            )


def _is_fragment(node: ast.AST, text: str) -> bool:
    word = re.split(r"\W", text, maxsplit=1)[0]
    return word in NEVER or (word in NOT_OF_FUNCTIONS and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def main(folders: Sequence[str]) -> int:
    """Print all fragments below the folders, or below `kafscale`; returns their number."""
    found = [
        fragment
        for folder in folders or ["kafscale"]
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        for fragment in fragments(path)
    ]
    for fragment in found:
        print(fragment)
    return len(found)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
