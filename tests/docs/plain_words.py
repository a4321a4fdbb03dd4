"""Finds prose that a stranger has to read twice: `python -m tests.docs.plain_words [ROOM...]` prints it.

It reads docstrings, comments and sentences in string literals of Python files, and the text of pages. The rules are
those of *Plain words* in `CONTRIBUTING.md`. A room is a folder of `kafscale/`, or one of the folders in `OTHER_ROOMS`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs

REPOSITORY = Path(__file__).parents[2]
OTHER_ROOMS = ("bench", "tests/devtools", "docs")

OPENERS = frozenset(
    word
    for words in (
        "What Who Whom Whose Whoever Whether Which Where When While How Why Of As So By At In To From For With Without",
        "Also Those Until Since Behind Or And But Over Such Like After Before Than Between Both Not Nothing Nobody",
        "Somebody Something It Its They Them These Some Up Once Have Has There Another",
    )
    for word in words.split()
)
_PHRASES = {
    "nobody": r"\bnobody\b",
    "whoever": r"\bwho(?:m)?ever\b",
    "a clause with who in place of a noun": r"\b(?:for|to|by|of|from|with|but|only|is|as|than) who\b",
    "have X done": (
        r"\b(?:have|has|having) (?:it|them|itself|themselves|the \w+|its \w+) (?:\w+ed|done|made|written|read)\b"
    ),
    "there is none that": r"\bthere (?:is|are|was|were) none\b",
    "a negated noun": r"(?<!there )\b(?:is|are|was|were|be) no (?!longer\b|more\b|such\b|way\b|room\b|matter\b)[a-z]+",
    "beside others": r"\bbeside (?:the )?others?\b",
    "heir": r"\bheirs?\b",
    "so many": r"\bso many\b",
    "so much": r"\bso much of\b",
    "of no use": r"\bof no use\b",
    "of that kind": r"\b(?:nothing|something) of the kind\b",
    "what there is": r"\bwhat there is\b",
    "a clause with what in place of a noun": (
        r"\b(?:of|by|from|for|than|with|in|to|as|all|about) what (?:is|are|was|were|has|have|had|it|they|can|may)\b"
    ),
}
PHRASES = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _PHRASES.items()}
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"[A-Za-z']+")


@attrs.frozen(kw_only=True)
class Finding:
    """One breach of a rule, and where it is."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def findings(path: Path) -> Iterator[Finding]:
    """Find the breaches in one Python file or page."""
    source = path.read_text()
    if path.suffix == ".md":
        yield from _in_text(path, _CODE.sub(_blank, source), 1)
        return
    tree = ast.parse(source)
    yield from _openers(path, tree)
    yield from _loop_variables(path, tree)
    for line, text in (*_sentences(tree), *_comments(source)):
        yield from _in_text(path, text, line)


def _blank(code: re.Match[str]) -> str:
    return "\n" * code.group().count("\n")


def _openers(path: Path, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            word = _WORD.match(text)
            if word and word.group() in OPENERS:
                yield _finding(
                    path, getattr(node, "lineno", 1), "a docstring that begins with neither verb nor noun", text
                )


def _loop_variables(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Find loops over `each`; a name of the thing says more."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            for target in ast.walk(node.target):
                if isinstance(target, ast.Name) and target.id == "each":
                    yield _finding(path, target.lineno, "`each` as a loop variable", ast.unparse(node.iter))


def _sentences(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Iterate over docstrings, messages and other literals that have several words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= 2:
            yield node.lineno, _CODE.sub(_blank, node.value)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], _CODE.sub("", token.string)


def _in_text(path: Path, text: str, first_line: int) -> Iterator[Finding]:
    for rule, pattern in PHRASES.items():
        for match in pattern.finditer(text):
            start = text.rfind("\n", 0, match.start()) + 1
            yield _finding(path, first_line + text.count("\n", 0, match.start()), rule, text[start:].partition("\n")[0])


def _finding(path: Path, line: int, rule: str, text: str) -> Finding:
    return Finding(path=path, line=line, rule=rule, text=" ".join(text.split())[:100])


def rooms() -> dict[str, list[Path]]:
    """Return the files of each room; those directly in `kafscale/` are the room `kafscale`."""
    files: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((REPOSITORY / "kafscale").rglob("*.py")):
        parts = path.relative_to(REPOSITORY).parts
        files["/".join(parts[: min(2, len(parts) - 1)])].append(path)
    for room in OTHER_ROOMS:
        files[room] = sorted((REPOSITORY / room).rglob("*.md" if room == "docs" else "*.py"))
    return dict(files)


def shared_class_names(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Return the names of classes that several of these modules define, and the modules."""
    modules: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        for name in {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)}:
            modules[name].append(path)
    return {name: found for name, found in sorted(modules.items()) if len(found) > 1}


def main(names: Sequence[str]) -> int:
    """Print the findings of these rooms, or of all, and their number."""
    count = 0
    for room, paths in rooms().items():
        if not names or room in names or room.removeprefix("kafscale/") in names:
            for finding in (finding for path in paths for finding in findings(path)):
                print(finding)
                count += 1
    print(f"{count} findings")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
