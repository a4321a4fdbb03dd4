"""The calls of the broker's source that write to its log, found in the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

import kafscale

ROOT = Path(kafscale.__file__).parent
LEVELS = ("debug", "info", "warning", "error", "exception")
OUTSIDE = ("spark", "console", "testing", "cli", "client")  # rooms that write no log of a broker
QUIET = "warning"  # the level of QuietLog.tell; a bug is an error
PASSED_ON = ("quiet_log.py: message", "log.py: self.message")  # messages of callers, found there


@attrs.frozen
class LogCall:
    """One call. A message that is not literal is shown as its source."""

    path: str
    level: str
    message: str
    is_literal: bool
    argument_count: int
    logger: str


def log_calls() -> Sequence[LogCall]:
    return [call for path in _paths() for call in _calls_of(path) if f"{path.name}: {call.message}" not in PASSED_ON]


def _paths() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] not in OUTSIDE or path.name == "serve.py":
            yield path


def _calls_of(path: Path) -> Iterator[LogCall]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and (found := _level_and_arguments(node)) is not None:
            level, (message, *arguments) = found
            is_literal = isinstance(message, ast.Constant)
            yield LogCall(
                path=str(path.relative_to(ROOT.parent)),
                level=level,
                message=str(message.value) if isinstance(message, ast.Constant) else ast.unparse(message),
                is_literal=is_literal,
                argument_count=sum(map(_count, arguments)),
                logger=".".join(path.relative_to(ROOT.parent).with_suffix("").parts),
            )


def _level_and_arguments(node: ast.Call) -> tuple[str, Sequence[ast.expr]] | None:
    if isinstance(node.func, ast.Name) and node.func.id == "_Progress":
        return "info", [node.args[0], ast.Constant(0), *node.args[1:]]
    if not isinstance(node.func, ast.Attribute):
        return None
    owner, name = ast.unparse(node.func.value), node.func.attr
    if owner.endswith("logger") and name in LEVELS:
        return ("error" if name == "exception" else name), node.args
    if owner.endswith("logger") and name == "log":
        return ast.unparse(node.args[0]), node.args[1:]
    if owner.endswith("quiet") and name == "tell":
        return ("error" if node.keywords else QUIET), node.args[1:]
    return None


def _count(argument: ast.expr) -> int:
    """Count the values of an argument, which may be a starred tuple, or a starred partition's topic and index."""
    if isinstance(argument, ast.Tuple):
        return len(argument.elts)
    if not isinstance(argument, ast.Starred):
        return 1
    return len(argument.value.elts) if isinstance(argument.value, ast.Tuple) else 2
